"""Requests that captured rounds and the ordinary loop answer alike."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters import Chain
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.output import Generated
from tests.vlm.drafters.trained import eagle
from tests.vlm.test_sampled_law import V, narrow

GREEDY = dict(do_sample=False)
SAMPLED = dict(do_sample=True, temperature=0.9, top_k=30, top_p=0.95, seed=[3, 4, 5, 6])
WARM = dict(do_sample=True, temperature=1.3, top_k=0, seed=7)


@cache
def chain(length: int = 3, kind: str = "tiny") -> ShapedDrafter:
    """A random drafter of chains: of the tiny models, or of the narrow one, whose draws are often kept."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        if kind == "tiny":
            made = eagle()
        else:
            made = Eagle(EagleConfig(hidden_size=16, intermediate_size=16, num_attention_heads=2, vocab_size=V)).eval()
    return made.requires_grad_(False).with_shape(Chain(FixedLength(length)))


def rows(batch: int) -> dict[str, Tensor]:
    """Prompts of the narrow model, ragged and padded from the left."""
    ids = torch.randint(1, V, (batch, 9), generator=torch.Generator().manual_seed(batch))
    mask = torch.ones_like(ids)
    for row in range(batch):
        mask[row, : 2 * row] = 0
    return dict(input_ids=ids * mask, attention_mask=mask)


def both(model: nn.Module, rounds: Rounds | None = None, **settings: object) -> tuple[Generated, Generated]:
    """The same request by the ordinary loop and by captured rounds. A request that falls back fails the test."""
    ordinary = mmspec.generate(model, return_dict=True, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmspec.vlm.graphs.decoding.warn", _fell_back)
        captured = mmspec.generate(model, return_dict=True, capture=rounds or True, **settings)
    return ordinary, captured


def alike(ordinary: Generated, captured: Generated) -> bool:
    """Whether tokens, what was kept of every draft, and failures are the same."""
    same = torch.equal(ordinary.sequences, captured.sequences) and ordinary.errors == captured.errors
    return same and ordinary.stats.accepted == captured.stats.accepted


def _fell_back(sentence: str, *args: object, **kwargs: object) -> None:
    raise AssertionError(sentence)


__all__ = ["GREEDY", "SAMPLED", "WARM", "alike", "both", "chain", "narrow", "rows"]
