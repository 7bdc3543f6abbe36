"""A stand-in for the zoo's hybrid: random tiny models of its classes with the processor it has."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from mmspec import zoo
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from mmspec.zoo.architectures.hybrid import HybridSize, new_model, new_processor
from tests.vlm.tiny import liven

TINY = HybridSize(kinds="df", width=64, inner=64, tower_width=32, tower_inner=32, tower_layers=1)


@lru_cache(maxsize=1)
def tiny_hybrid() -> dict[str, Any]:
    """What `mmspec.zoo.load` gives for the hybrid and its drafters."""
    processor = new_processor()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = new_model(processor.tokenizer, TINY).eval().requires_grad_(False)
        liven(model)
        parts = take_apart(model)
        made = {
            "dflash": new_drafter("dflash", model, num_hidden_layers=1, block_size=5, mask_token_id=3),
            "mtp": Mtp(MtpConfig(parts.hidden_size, parts.vocab_size), parts),
        }
    drafters = {f"vlm/hybrid/{name}": entry.eval().requires_grad_(False) for name, entry in made.items()}
    return {"vlm/hybrid": (model, processor), **drafters}


def use_tiny_hybrid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zoo names and hands out the tiny hybrid during the test, and nothing else that it has to load."""
    names = [*zoo.names(), *tiny_hybrid()]
    monkeypatch.setattr("mmspec.zoo.names", lambda: names)
    monkeypatch.setattr("mmspec.zoo.load", lambda name: tiny_hybrid()[name])
