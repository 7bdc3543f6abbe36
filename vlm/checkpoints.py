"""Loading drafters by folder or hub id."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from mmspec.core.drafting.pretrained import folder_of
from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters import kinds  # noqa: F401  registers every kind
from mmspec.vlm.drafters.pretrained import PretrainedDrafter
from mmspec.vlm.unwrapping import unwrapped


def load_drafter(path_or_repo: str | Path, target: nn.Module | None = None) -> PretrainedDrafter:
    """The drafter saved in a folder, or in a hub repository named by its id (the only case that uses the network).

    target: the model it will draft for, adapters around it or not; when given, sizes are checked now instead of at the
        first request, and the drafter takes its device and dtype.
    Raises ValueError when the folder holds no drafter or the drafter does not fit the target.
    """
    drafter = PretrainedDrafter.from_pretrained(folder_of(path_or_repo))
    if target is not None:
        parts = take_apart(unwrapped(target))
        drafter.check(parts)
        drafter.to(device=parts.embed.weight.device, dtype=parts.embed.weight.dtype)
    return drafter
