"""Published drafters in the user's Hugging Face cache, looked up and loaded without a network, and only if they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import warn

from torch import nn

from mmspec.io.pretrained import CONFIG
from mmspec.io.readers import read_json
from mmspec.vlm.drafters.published import PublishedDrafter, published_for, size_misfit


@dataclass(frozen=True, slots=True)
class DrafterState:
    published: PublishedDrafter
    folder: Path | None = None  # in the cache; None where the cache does not have it
    reason: str = ""  # why it does not fit; "" where no reason is known

    def __str__(self) -> str:
        if self.reason:
            return f"{self.published} does not fit: {self.reason}"
        if self.folder:
            return f"{self.published} is in the cache"
        return f"{self.published} is not here; fetch it with `hf download {self.published.repo}`"


def cached_folder(repo: str) -> Path | None:
    """Return the folder of "owner/name" in the cache, None where the cache does not have it. The network is not used."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo, CONFIG)
    return Path(config).parent if isinstance(config, str) else None


def drafter_states(target: str, hidden_size: int, vocab_size: int) -> Iterator[DrafterState]:
    for published in published_for(target):
        folder = cached_folder(published.repo)
        reason = published.misfit(hidden_size, vocab_size)
        if folder is not None:
            reason = _reason(folder, hidden_size, vocab_size)
        yield DrafterState(published, folder, reason)


def _reason(folder: Path, hidden_size: int, vocab_size: int) -> str:
    """Return why a drafter in the cache cannot be used, before any weight is read; "" if it can."""
    try:
        config = read_json(folder / CONFIG)
    except ValueError as error:
        return str(error)
    if misfit := size_misfit(config, hidden_size, vocab_size):
        return f"expected the target's sizes, got {misfit}"
    if not any(folder.glob("*.safetensors")):
        return "expected safetensors files in the cache, got none, and pickles are never loaded; convert them"
    return ""


def load_cached(state: DrafterState, target: nn.Module) -> Any:
    from mmspec.vlm.drafters.checkpoints import load_drafter

    return load_drafter(state.folder, target, state.published.kind)


def loaded_name(model: nn.Module) -> str:
    return str(getattr(model, "name_or_path", "") or "")


def cached_drafter(model: nn.Module) -> Any:
    """Return the first published drafter in the cache that fits a model without wrappers; None if there is none. A
    warning says why a drafter in the cache does not fit, or names a drafter to download where the cache has none."""
    name = loaded_name(model)
    if not published_for(name):
        return None
    from mmspec.vlm.admission import take_apart

    try:
        parts = take_apart(model)
    except ValueError:  # the request itself reports an unsupported model
        return None
    states = list(drafter_states(name, parts.hidden_size, parts.vocab_size))
    for state in states:
        if state.folder is None:
            continue
        reason = state.reason
        if not reason:
            try:
                return load_cached(state, model)
            except ValueError as error:
                reason = str(error)
        warn(f"drafter 'auto': {state.published} in the cache is not used: {reason}", stacklevel=2)
    if missing := [state for state in states if state.folder is None and not state.reason]:
        warn(f"drafter 'auto': drafts by prompt lookup alone; {missing[0]}", stacklevel=2)
    return None
