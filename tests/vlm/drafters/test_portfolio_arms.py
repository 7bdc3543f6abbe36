"""Any order of drafters, lengths and trees of a portfolio gives the target's words, greedy and sampled."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.core.drafting.request_shape import tree_sizes, verified_nodes
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.length.portfolio import GoodputPortfolio
from mmspec.vlm.drafters import PromptLookup, SmallModel, TokenRecycling, VisionSkip
from tests.vlm.drafters.test_lossless import true_law
from tests.vlm.drafters.trained import DRAFTERS, make
from tests.vlm.drafters.watched import Watched, noisy
from tests.vlm.tiny import prompt, tiny

QUICK = ("eagle3", "medusa", "flash", "dspark")  # a family each; the whole lane takes all
TREE = StaticTree((0, 0, 0, 1, 1, 3, 0, 2, 4, 5, 1))


class AnyArm(GoodputPortfolio):
    """Chooses a random draft of a random drafter, or none."""

    def open(self, target):
        state = super().open(target)
        rng, choice = random.Random(4), state.choice

        def choose(target, left):
            target.pass_costs.add(1, 1.0)
            offers = [None]
            for number, source in enumerate(choice.sources):
                room = 1 << 30 if left is None else left - 1
                options = list(source.options(target, target.pass_costs, room)) if room > 0 else []
                offers += [(number, rng.choice(options))] * 2 if options else []
            chosen = rng.choice(offers)
            seen.append(chosen)
            return chosen

        seen = self.seen = []
        choice.choose = choose
        return state


def same_words(*drafters: object, kind: str = "llava", batch: int = 4, tokens: int = 20) -> AnyArm:
    inputs, control = prompt(kind, images=2 if batch > 1 else 1, batch=batch), AnyArm(drafters)
    warm = tiny(kind)
    out = mmspec.generate(
        warm, drafter=Watched(control), max_new_tokens=tokens, do_sample=False, return_dict=True, **inputs
    )
    assert torch.equal(out.sequences, warm.generate(**inputs, max_new_tokens=tokens, do_sample=False))
    return control


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.whole) for n in DRAFTERS])
def test_every_trained_drafter_takes_turns_with_lookup(name: str) -> None:
    control = same_words(PromptLookup(longest=6), make(name))
    assert {None if one is None else one[0] for one in control.seen} >= {None, 1}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    "shape", (DynamicTree(20, 4, 3), TREE, Chain(FixedLength(5))), ids=("dynamic", "static", "chain")
)
@pytest.mark.parametrize("kind, batch", (("llava", 1), ("qwen2_5_vl", 4)))
def test_trees_of_all_sizes_take_turns(shape: object, kind: str, batch: int) -> None:
    drafter = make("msd").with_shape(shape)
    control = same_words(PromptLookup(), drafter, kind=kind, batch=batch, tokens=30)
    sizes = {one[1].size for one in control.seen if one is not None and one[0] == 1}
    assert sizes == set(tree_sizes(shape) or (0,))


def test_drafters_of_every_other_kind_take_turns() -> None:
    same_words(TokenRecycling(), PromptLookup(), SmallModel(noisy("llava"), FixedLength(4)))
    same_words(VisionSkip(make("msd").with_shape(DynamicTree(8, 4, 3)), 0.2), PromptLookup())


@pytest.mark.parametrize("shape", (Chain(FixedLength(3)), TREE), ids=("chain", "tree"))
def test_sampled_words_have_the_targets_distribution(shape: object) -> None:
    model, rows = tiny("llama"), 1500
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 9, 5, 6, 7]])
    control = AnyArm([PromptLookup(), make("eagle").with_shape(shape)])
    out = mmspec.generate(
        model,
        drafter=control,
        seed=9,
        input_ids=ids.expand(rows, -1),
        max_new_tokens=4,
        do_sample=True,
        top_k=2,
        temperature=3.0,
    )
    law = true_law(model, ids, 4, hf.LogitsProcessorList([hf.TemperatureLogitsWarper(3.0), hf.TopKLogitsWarper(2)]))
    seen = Counter(map(tuple, out[:, ids.shape[1] :].tolist()))
    assert set(seen) <= set(law) and len({one and one[0] for one in control.seen}) > 1
    common = [k for k in law if law[k] * rows >= 8]
    rest = max(1 - sum(law[k] for k in common), 1e-9)
    pairs = [(seen[k], law[k] * rows) for k in common] + [(rows - sum(seen[k] for k in common), rest * rows)]
    statistic = sum((found - expected) ** 2 / expected for found, expected in pairs if expected >= 1)
    assert len(pairs) > 5 and statistic < len(pairs) + 4 * (2 * len(pairs)) ** 0.5


def test_sizes_of_trees_and_the_nodes_they_verify() -> None:
    dynamic = DynamicTree(30, 5, 4)
    assert list(tree_sizes(dynamic)) == [0, 8, 16, 24, 30] and tree_sizes(dynamic)[30] == dynamic
    assert tree_sizes(dynamic)[0].longest == 5 and tree_sizes(Chain()) == {}
    assert [verified_nodes(dynamic, depth) for depth in (1, 2, 5)] == [5, 21, 31]
    static = tree_sizes(TREE)
    assert static[8].parents == TREE.parents[:9] and static[10] == TREE and verified_nodes(TREE, 1) == 4
    assert 0 not in tree_sizes(StaticTree(TREE.parents, shared=True))


def test_several_drafters_may_be_offered() -> None:
    import copy

    model = copy.deepcopy(tiny("llama"))
    mmspec.vlm.offer(model, lambda: (PromptLookup(longest=15), TokenRecycling()))
    inputs, asked = prompt("llama"), dict(max_new_tokens=24, do_sample=False)
    for _ in range(2):
        out = mmspec.generate(model, drafter="auto", return_dict=True, **inputs, **asked)
        assert torch.equal(out.sequences, model.generate(**inputs, **asked))
    assert out.stats.drafter == "goodput(prompt_lookup, token_recycling)"
