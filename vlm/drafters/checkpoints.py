"""Loading of drafters: saved here, or published by other projects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.io.pretrained import CONFIG, folder_of
from mmspec.io.readers import naming, open_tensors, read_json
from mmspec.methods import methods
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter
from mmspec.vlm.drafters.kinds import drafter_class, drafter_classes, published_kinds
from mmspec.vlm.hf_model import unwrapped


def load_drafter(
    path_or_repo: str | Path, target: nn.Module | None = None, kind: str | None = None
) -> PretrainedDrafter:
    """Return the drafter in a folder or a hub repository; only a repository uses the network.

    The drafter was saved here, or published with a config that names its kind, or it is the MTP layer of the target's
    own checkpoint.

    Args:
        path_or_repo: A folder or a hub id.
        target: The model that it will draft for. It checks the sizes now, and gives the drafter its device and dtype.
            An MTP layer needs it.
        kind: The kind of a published drafter whose config does not name it, such as EAGLE, MSD and ViSpec; see
            `published_kinds`. A kind in the config wins.

    Raises:
        ValueError: The folder holds no drafter, or the drafter does not fit the target.
    """
    folder = folder_of(path_or_repo)
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    kind = None if "kind" in config or not config else published_kind(config, target) or kind
    if kind is not None:
        wanted = drafter_class(kind).tensor_filter(None if target is None else unwrapped(target))
        with naming(folder):
            return drafter_from_state_dict(kind, tensors_of(folder, wanted), config, target)
    if "kind" not in config and "speculators_model_type" in config:
        raise ValueError(f"speculators_model_type: expected one of {', '.join(speculators_kinds())}, got "
                         f"{config['speculators_model_type']!r} in {folder}; this kind is not supported")  # fmt: skip
    if isinstance(config.get("kind"), str):
        drafter_class(config["kind"])  # imports its module
    if config.get("kind") not in list(PretrainedDrafter.kinds):
        drafter_classes()  # the error names them all
    drafter = PretrainedDrafter.from_pretrained(folder)
    return drafter if target is None else drafter.fitted(target)


def published_kind(config: Mapping[str, Any], target: nn.Module | None) -> str | None:
    """Return the registry name of the drafter that a published config belongs to; None where the config does not tell.

    A config of the target's own class belongs to its checkpoint, which may hold an MTP layer.
    """
    named = config.get("architectures") or []
    projector = (config.get("dflash_config") or {}).get("projector_type")
    signs = (f"projector:{projector}", f"speculators:{config.get('speculators_model_type')}", *named)
    drafters = methods("vlm", "drafter")
    by_sign = {sign: info.name for info in drafters for sign in info.facts.get("published_as", ())}
    kind = next((by_sign[sign] for sign in signs if sign in by_sign), None)
    if kind is None and target is not None and type(unwrapped(target)).__name__ in named:
        return next((info.name for info in drafters if info.facts.get("in_target")), None)
    return kind


def speculators_kinds() -> list[str]:
    """Return the supported values of `speculators_model_type`, in order."""
    signs = (sign for info in methods("vlm", "drafter") for sign in info.facts.get("published_as", ()))
    return sorted(sign.removeprefix("speculators:") for sign in signs if sign.startswith("speculators:"))


def tensors_of(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files whose names satisfy `wanted`.

    Raises:
        ValueError: The folder has no safetensors files.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: expected safetensors files beside {CONFIG}, got none; fetch them")
    tensors = {}
    for path in files:
        with open_tensors(path) as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys() if wanted(name)}
    return tensors


def drafter_from_state_dict(
    kind: str, sd: Mapping[str, Tensor], config: Mapping[str, Any], target: nn.Module | None = None
) -> Any:
    """Return the drafter of a published checkpoint, in float32 and eval mode.

    Args:
        kind: A kind that is published, or the name of such a drafter in `mmspec methods`: "msd", "eagle", "mtp".
        sd: Tensors under the published names, of any size.
        config: The fields of the published config file.
        target: The model that it will draft for. It checks the sizes now, and gives the drafter its device and dtype.

    Raises:
        ValueError: The kind is unknown, keys are missing or unknown, or sizes fit neither the config nor the target.
    """
    if kind not in (known := published_kinds()):
        raise ValueError(f"kind: expected one of {', '.join(known)}, got {kind!r}")
    target = None if target is None else unwrapped(target)
    drafter = drafter_class(kind).from_published(dict(sd), dict(config), target)
    drafter = drafter.eval().requires_grad_(False)
    return drafter if target is None else drafter.fitted(target)
