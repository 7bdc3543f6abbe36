"""Drafters that ship with models follow a conversation as the trained ones do."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.api import start
from mmspec.vlm.conversation import Past
from tests.vlm.drafters.gemma4.test_drafter import assistant, gemma
from tests.vlm.drafters.mtp.test_drafter import drafter as mtp
from tests.vlm.drafters.mtp.test_drafter import target

GREEDY = dict(max_new_tokens=9, do_sample=False)
WORDS = ([5, 9, 3, 7, 2, 11, 4], [7, 6, 5, 4], [3, 2])
SHAPES = (Chain(FixedLength(3)), DynamicTree(nodes=6, depth=3, width=2))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES, ids=("chain", "tree"))
@pytest.mark.parametrize("name", ("qwen3_next", "deepseek_v3", "glm4_moe", "gemma4"))
def test_turns_match_fresh_prompts_and_leave_the_same_state(name: str, shape: object) -> None:
    model, drafter = (gemma(60), assistant(60)) if name == "gemma4" else (target(name), mtp(name))
    drafter, past, ids = drafter.with_shape(shape), Past(model), torch.zeros(1, 0, dtype=torch.long)
    for number, words in enumerate(WORDS):
        ids = torch.cat([ids, torch.tensor([words])], 1)
        out = mmspec.generate(model, drafter=drafter, past_key_values=past, input_ids=ids, return_dict=True, **GREEDY)
        assert torch.equal(out.sequences, model.generate(ids, **GREEDY))
        assert out.read == (len(words) + 1 if number else len(words))
        run = start(model, drafter=drafter, input_ids=ids, **GREEDY)
        run.run()
        assert run.stats.accepted == out.stats.accepted
        if name != "gemma4":
            count = run.state.cache.width
            assert run.state.next_position - count == past.state.next_position - past.state.cache.width
            for mine, theirs in zip(past.state.cache.at(0), run.state.cache.at(0), strict=True):
                assert torch.allclose(mine[:, :, :count], theirs[:, :, :count], atol=1e-4)
        ids = out.sequences
