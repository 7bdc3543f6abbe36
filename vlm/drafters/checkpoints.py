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
    """The drafter in a folder, or in a hub repository (the only case that uses the network): saved here, published with a
    config that names its kind, or the MTP layer of the target's own checkpoint.

    target: the model it will draft for, which checks sizes now and gives the drafter its device and dtype; an MTP layer
        needs it.
    kind: of a published drafter whose config does not name it, as those of EAGLE, MSD and ViSpec do not; see
        `published_kinds`. A config that names its kind has the last word.
    Raises ValueError when the folder holds no drafter or the drafter does not fit the target.
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
                         f"{config['speculators_model_type']!r} in {folder}; no drafter here is of that kind")  # fmt: skip
    if isinstance(config.get("kind"), str):
        drafter_class(config["kind"])  # imports its module
    if config.get("kind") not in list(PretrainedDrafter.kinds):
        drafter_classes()  # the error names them all
    drafter = PretrainedDrafter.from_pretrained(folder)
    return drafter if target is None else drafter.fitted(target)


def published_kind(config: Mapping[str, Any], target: nn.Module | None) -> str | None:
    """The drafter that a published config is of, by its name in the registry; None where the config does not tell.

    A config of the target's own class is that of its checkpoint, in which an MTP layer may be.
    """
    named = config.get("architectures") or []
    projector = (config.get("dflash_config") or {}).get("projector_type")
    signs = (f"projector:{projector}", f"speculators:{config.get('speculators_model_type')}", *named)
    drafters = methods("vlm", "drafter")
    by_sign = {sign: one.name for one in drafters for sign in one.facts.get("published_as", ())}
    kind = next((by_sign[sign] for sign in signs if sign in by_sign), None)
    if kind is None and target is not None and type(unwrapped(target)).__name__ in named:
        return next((one.name for one in drafters if one.facts.get("in_target")), None)
    return kind


def speculators_kinds() -> list[str]:
    """The types of `speculators_model_type` that are read, in order."""
    signs = (sign for one in methods("vlm", "drafter") for sign in one.facts.get("published_as", ()))
    return sorted(sign.removeprefix("speculators:") for sign in signs if sign.startswith("speculators:"))


def tensors_of(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors files whose names are wanted.   Raises ValueError without such files."""
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
    """The drafter a published checkpoint holds, in float32 and eval mode.

    kind: a kind of drafters that is published, or the name of such a drafter in `mmspec methods`: "msd", "eagle", "mtp"...
    sd: tensors under the published names, of any size.   config: fields of the published config file.
    target: the model it will draft for, which checks sizes now and gives the drafter its device and dtype.
    Raises ValueError for an unknown kind, missing or unknown keys, and sizes that fit neither the config nor the target.
    """
    if kind not in (known := published_kinds()):
        raise ValueError(f"kind: expected one of {', '.join(known)}, got {kind!r}")
    target = None if target is None else unwrapped(target)
    drafter = drafter_class(kind).from_published(dict(sd), dict(config), target)
    drafter = drafter.eval().requires_grad_(False)
    return drafter if target is None else drafter.fitted(target)
