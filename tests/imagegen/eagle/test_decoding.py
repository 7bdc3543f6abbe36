"""The settings of the decoding "eagle": which shapes they name, a stop that follows the acceptance, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.entropy_stop import EntropyStop
from mmspec.imagegen.eagle.drafter import ImageEagle
from mmspec.methods import parse
from tests.imagegen.eagle.small import drafter_for
from tests.imagegen.tiny import TinyModel, generate


class _Parts:
    """The parts of a model with a trained drafter."""

    def __init__(self, model: TinyModel):
        self.model, self.eagle = model, drafter_for(model)

    def part(self, name: str) -> Any:
        return getattr(self, name)


def made(text: str, model: TinyModel | None = None) -> ImageEagle:
    return parse(text, "image", "decoding").make(_Parts(model or TinyModel()))


def test_trees_of_one_size_differ_in_their_levels() -> None:
    deep, wide = (made(f"eagle:nodes=24,{rest}").shapes[1] for rest in ("depth=5", "depth=3,tree=wide"))
    assert isinstance(deep, StaticTree) and isinstance(wide, StaticTree)
    assert len(deep.parents) == len(wide.parents) == 25
    assert (deep.longest, wide.longest) == (5, 3) and wide.parents.count(0) > deep.parents.count(0)


def test_grown_trees_and_chains_by_text() -> None:
    assert made("eagle:nodes=24,depth=4,tree=heap,width=5").shapes == (BestFirst(24, 4, 5),) * 2
    assert made("eagle:nodes=9,depth=4,tree=dynamic,stop=0.2").shapes[0] == DynamicTree(9, 4, stop=((2, 0.2), (3, 0.2)))
    assert made("eagle:nodes=9,depth=4,tree=dynamic").shapes[0] == DynamicTree(9, 4)
    assert made("eagle:chain=3").shapes[1].longest == 3
    assert made("eagle:length=(entropy:scale=none)").shapes[1] == Chain(EntropyStop(scale=None))


@pytest.mark.parametrize("text", ["eagle:tree=round", "eagle:tree=heap,stop=0.2", "eagle:nodes=99,depth=2,tree=heap"])
def test_what_there_is_no_tree_for_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        made(text)


def test_a_fitted_stop_ends_drafts_and_keeps_greedy_images() -> None:
    model = TinyModel()
    text = "eagle:length=(entropy:scale=none,goal=0.5,threshold=0.6)"
    drafter = made(text, model)
    plain = generate(model, [0, 1, 3], temperature=0, guidance_scale=2.0)
    drafted = generate(model, [0, 1, 3], drafter, temperature=0, guidance_scale=2.0)
    assert torch.equal(drafted.tokens, plain.tokens)
    fixed = generate(model, [0, 1, 3], made("eagle:chain=8", model), temperature=0, guidance_scale=2.0)
    assert drafted.stats.drafter_passes < fixed.stats.drafter_passes
