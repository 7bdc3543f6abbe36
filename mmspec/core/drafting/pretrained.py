"""Saving and loading of trained drafters: a config.json and one safetensors file, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar, Self

from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.core.config_fields import from_fields
from mmspec.core.files import replacing, write_json_atomic
from mmspec.core.loading import load_module
from mmspec.core.readers import naming, read_json

CONFIG, WEIGHTS, FORMAT = "config.json", "model.safetensors", 1


class Pretrained(nn.Module):
    """Base of trained drafters. Each domain has a root with `kinds` of its own; what derives from it sets `kind` and
    `config_class`, takes its config, and is listed by its kind there."""

    kind: ClassVar[str]
    config_class: ClassVar[type]
    kinds: ClassVar[dict[str, type[Pretrained]]]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:  # bases of several kinds have none of their own
            cls.kinds[cls.kind] = cls

    def __init__(self, config: object):
        super().__init__()
        self.config = config

    def save_pretrained(self, folder: str | Path, *, dtype: object = None) -> None:
        """Writes config.json and model.safetensors into `folder`. dtype: a torch dtype to store weights in."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = {k: _as(v.detach(), dtype or v.dtype).contiguous() for k, v in self.state_dict().items()}
        with replacing(folder / WEIGHTS) as path:
            save_file(state, path)
        write_json_atomic(folder / CONFIG, {"format_version": FORMAT, "kind": self.kind, **asdict(self.config)})

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Loads what `save_pretrained` wrote, in float32 and eval mode.

        Raises ValueError, one sentence that names the file, for a missing or damaged one, an unknown kind or field, a field
        of a wrong type, weights that do not fit the config, and weights that are NaN or Inf.
        """
        folder = Path(folder)
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():
                raise ValueError(f"drafter: expected {name} in {folder}, found none; save one with save_pretrained")
        raw = read_json(folder / CONFIG)
        kind, version = raw.pop("kind", None), raw.pop("format_version", None)
        found = cls.kinds.get(kind) if isinstance(kind, str) else None
        if found is None or not issubclass(found, cls):
            raise ValueError(f"drafter: expected a kind of {sorted(cls.kinds)}, got {kind!r} in {folder}")
        if version != FORMAT:
            raise ValueError(f"drafter: expected format_version {FORMAT}, got {version!r} in {folder}")
        with naming(folder / CONFIG):
            config = from_fields(found.config_class, raw)
        return load_module(lambda: found(config), folder / WEIGHTS).requires_grad_(False)


def _as(value: Tensor, dtype: object) -> Tensor:
    """Weights in another dtype; token ids and masks stay what they are."""
    return value.to(dtype) if value.is_floating_point() else value


def folder_of(path_or_repo: str | Path, patterns: Sequence[str] = ("*.json", "*.safetensors")) -> Path:
    """A folder itself, or that of a hub repository named by its id, of which the files of those patterns are fetched.

    Raises ValueError for neither.
    """
    folder = Path(path_or_repo)
    if folder.exists():
        return folder
    if len(str(path_or_repo).split("/")) != 2:
        raise ValueError(f"path_or_repo: expected a folder or a hub id 'owner/name', got {str(path_or_repo)!r}")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(path_or_repo), allow_patterns=list(patterns)))
