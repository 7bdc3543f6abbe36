"""Loading drafters by folder or hub id."""

from __future__ import annotations

from pathlib import Path

from mmspec.core.drafting.pretrained import folder_of
from mmspec.imagegen.eagle.drafter import ImageEagle


def load_drafter(path_or_repo: str | Path, target: object | None = None) -> ImageEagle:
    """The drafter saved in a folder, or in a hub repository named by its id (the only case that uses the network).

    target: the pipeline or model it will draft for; when given, sizes are checked now instead of at the first request, and
    the drafter takes the model's device and dtype.
    Raises ValueError when the folder holds no drafter or the drafter does not fit the target.
    """
    drafter = ImageEagle.from_pretrained(folder_of(path_or_repo))
    return drafter if target is None else drafter.fitted(target)
