"""Loading drafters by folder or hub id."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from mmspec.core.drafting.pretrained import folder_of
from mmspec.vlm.drafters import kinds  # noqa: F401  registers every kind
from mmspec.vlm.drafters.pretrained import PretrainedDrafter


def load_drafter(path_or_repo: str | Path, target: nn.Module | None = None) -> PretrainedDrafter:
    """The drafter saved in a folder, or in a hub repository named by its id (the only case that uses the network).

    target: the model it will draft for, adapters around it or not; when given, sizes are checked now instead of at the
        first request, and the drafter takes its device and dtype.
    Raises ValueError when the folder holds no drafter or the drafter does not fit the target.
    """
    drafter = PretrainedDrafter.from_pretrained(folder_of(path_or_repo))
    return drafter if target is None else drafter.fitted(target)
