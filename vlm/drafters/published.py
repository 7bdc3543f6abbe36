"""Checkpoints of other projects: state dicts under their published key names, read into our drafters."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from mmspec.vlm.unwrapping import unwrapped

# kind -> the family whose `published.load(state, config, target)` reads it
_FAMILIES = {
    "dflash": "dflash",
    "dflash2": "dflash2",
    "dspark": "dspark",
    "eagle": "eagle",
    "eagle2": "eagle",
    "eagle3": "eagle3",
    "flash": "flash",
    "gemma4_assistant": "gemma4",
    "hydra": "hydra",
    "medusa": "medusa",
    "msd": "msd",
    "mtp": "mtp",
    "peagle": "peagle",
    "specdecpp": "specdecpp",
    "vispec": "vispec",
}


def drafter_from_state_dict(
    kind: str, sd: Mapping[str, Tensor], config: Mapping[str, Any], target: nn.Module | None = None
) -> Any:
    """The drafter a published checkpoint holds, in float32 and eval mode.

    kind: "dflash", "dflash2", "dspark", "eagle" or "eagle2", "eagle3", "vispec", "msd", "flash", "gemma4_assistant",
        "hydra", "medusa", "mtp", "peagle" or "specdecpp".
    sd: tensors under the published names, of any size.   config: fields of the published config file.
    target: the model it will draft for; when given, sizes are checked now, and the drafter takes its device and dtype.
    Raises ValueError for an unknown kind, for missing or unknown keys (all of them listed), for shapes that do not fit the
    config, and for a drafter that does not fit the target.
    """
    if kind not in _FAMILIES:
        raise ValueError(f"kind: expected one of {', '.join(_FAMILIES)}, got {kind!r}")
    target = None if target is None else unwrapped(target)
    drafter = import_module(f"mmspec.vlm.drafters.{_FAMILIES[kind]}.published").load(dict(sd), dict(config), target)
    drafter = drafter.eval().requires_grad_(False)
    return drafter if target is None else drafter.fitted(target)
