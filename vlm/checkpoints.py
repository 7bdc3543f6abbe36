"""Loading drafters by folder or hub id."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters import kinds  # noqa: F401  registers every kind
from mmspec.vlm.drafters.pretrained import PretrainedDrafter


def load_drafter(path_or_repo: str | Path, target: nn.Module | None = None) -> PretrainedDrafter:
    """The drafter saved in a folder, or in a hub repository named by its id (the only case that uses the network).

    target: the model it will draft for; when given, sizes are checked now instead of at the first request.
    Raises ValueError when the folder holds no drafter or the drafter does not fit the target.
    """
    folder = Path(path_or_repo)
    if not folder.exists():
        if len(str(path_or_repo).split("/")) != 2:
            raise ValueError(f"path_or_repo: expected a folder or a hub id 'owner/name', got {str(path_or_repo)!r}")
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(path_or_repo), allow_patterns=["*.json", "*.safetensors"]))
    drafter = PretrainedDrafter.from_pretrained(folder)
    if target is not None:
        parts = take_apart(target)
        drafter.check(parts)
        drafter.to(device=parts.embed.weight.device, dtype=parts.embed.weight.dtype)
    return drafter
