"""Drafts of asked-for lengths, over rounds without drafts, change nothing but the speed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.length.goodput import Goodput
from mmspec.vlm.drafters import PromptLookup, SmallModel, TokenRecycling, VisionSkip
from tests.vlm.drafters.test_lossless import true_law
from tests.vlm.drafters.trained import NAMES, make
from tests.vlm.drafters.watched import Watched, noisy
from tests.vlm.tiny import prompt, tiny

SHAPES = {"chain": Chain(FixedLength(5)), "dynamic": DynamicTree(8, 4, 3), "static": StaticTree((0, 0, 0, 1, 1, 3))}


class Whimsical:
    """A clock that makes any length look good for a while."""

    def __init__(self, seed: int = 0):
        self.rng, self.now = random.Random(seed), 0.0

    def __call__(self) -> float:
        self.now += self.rng.choice((0.1, 0.1, 1.0, 5.0))
        return self.now


class Whim(Goodput):
    """Chooses a random length, so that every order of drafts and rounds without one occurs."""

    def open(self, target):
        state = super().open(target)
        rng, most = random.Random(4), state.request.deepest or 1
        state.bandit.choose = lambda request: rng.choice((0, 0, *range(1, most + 1)))
        return state


def same_words(drafter: object, kind: str = "llava", batch: int = 4, tokens: int = 20):
    inputs = prompt(kind, images=2 if batch > 1 else 1, batch=batch)
    watched = Watched(drafter)
    out = mmspec.generate(
        tiny(kind), drafter=watched, max_new_tokens=tokens, do_sample=False, return_dict=True, **inputs
    )
    assert torch.equal(out.sequences, tiny(kind).generate(**inputs, max_new_tokens=tokens, do_sample=False))
    return out, watched


@pytest.mark.parametrize("name", NAMES)
def test_every_trained_drafter_takes_rounds_off(name: str) -> None:
    _, watched = same_words(Whim(make(name)))
    nodes = {seen.draft.tree.nodes for seen in watched.rounds}
    assert 1 in nodes and len(nodes) > 1


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind, batch", (("llava", 1), ("qwen2_5_vl", 4)))
def test_every_shape_takes_rounds_off(shape: str, kind: str, batch: int) -> None:
    _, watched = same_words(Whim(make("msd").with_shape(SHAPES[shape])), kind, batch)
    depths = {seen.draft.tree.max_depth for seen in watched.rounds}
    assert {0, 1, 2} < depths


@pytest.mark.parametrize("name", ("lookup", "recycling", "small", "viskip"))
def test_drafters_of_every_kind_take_rounds_off(name: str) -> None:
    drafters = {
        "lookup": PromptLookup,
        "recycling": TokenRecycling,
        "small": lambda: SmallModel(noisy("llava"), FixedLength(4)),
        "viskip": lambda: VisionSkip(make("msd").with_shape(SHAPES["chain"]), 0.2),
    }
    same_words(Whim(drafters[name]()))
    same_words(Goodput(drafters[name](), clock=Whimsical()), tokens=40)


def test_pairs_read_late_are_read_as_in_time() -> None:
    drafter, roots = make("msd").with_shape(SHAPES["chain"]), []
    for late in (False, True):
        request = mmspec.vlm.start(
            tiny("llava"),
            drafter=VisionSkipless(drafter, late),
            max_new_tokens=12,
            do_sample=False,
            **prompt("llava", images=2, batch=4),
        )
        for _ in range(6):
            request.step()
        request.state.inner.ready()
        roots.append((request.state.inner.root, request.state.passes))
    torch.testing.assert_close(roots[0][0], roots[1][0], atol=1e-5, rtol=1e-4)
    assert roots[0][1] == 7 and roots[1][1] == 2  # prompt and six pairs, or prompt and all pairs at once


class VisionSkipless:
    """Never drafts; reads every round, or only when asked."""

    name = "skipless"

    def __init__(self, drafter: object, late: bool):
        self.drafter, self.late = drafter, late

    def open(self, target):
        self.inner = self.drafter.open_without_prefill(target)
        return self

    passes = property(lambda self: self.inner.passes)

    def propose(self, target, keys):
        if not self.late:
            self.inner.ready()
        return self.inner.propose(target, keys, 0)

    def observe(self, *round):
        self.inner.observe(*round)


def test_a_drafter_that_never_drafts_reads_nothing() -> None:
    drafter = Goodput(make("msd"), clock=Whimsical())
    for _ in range(20):
        out = mmspec.generate(
            tiny("llava"),
            drafter=drafter,
            max_new_tokens=3,
            do_sample=False,
            return_dict=True,
            **prompt("llava", images=1),
        )
        assert out.stats.drafter_passes == 0


def test_a_resting_drafter_that_may_miss_rounds_is_not_shown_them() -> None:
    control, shown = Goodput(TokenRecycling()), []
    for paying in (True, False):
        request = mmspec.vlm.start(
            tiny("llama"), drafter=control, max_new_tokens=6, do_sample=False, **prompt("llama", seed=4)
        )
        request.step()
        state, count = request.state, []
        state.bandit.choose = lambda request: 0
        state.bandit.paying = paying
        state.inner.observe = lambda *round, count=count: count.append(round)
        request.run()
        shown.append(len(count))
    assert shown == [4, 0]


@pytest.mark.parametrize("longest", (1, 3))
def test_drafts_are_no_longer_than_the_requested_length(longest: int) -> None:
    drafters = [make("eagle").with_shape(SHAPES[shape]) for shape in ("chain", "dynamic")]
    for drafter in (*drafters, SmallModel(noisy("llama"), FixedLength(5))):
        watched = Watched(Asking(drafter, longest))
        mmspec.generate(tiny("llama"), drafter=watched, max_new_tokens=12, do_sample=False, **prompt("llama"))
        assert {seen.draft.tree.max_depth for seen in watched.rounds if _room(seen) >= longest} == {longest}


def _room(seen) -> int:
    return 12 - len(seen.tokens[0]) - 1


class Asking:
    """Asks for one length."""

    name = "asking"

    def __init__(self, drafter: object, longest: int):
        self.drafter, self.longest = drafter, longest

    def open(self, target):
        self.state = self.drafter.open(target)
        assert self.state.deepest > self.longest
        return self

    passes = property(lambda self: self.state.passes)

    def propose(self, target, keys):
        return self.state.propose(target, keys, self.longest)

    def observe(self, *round):
        self.state.observe(*round)


@pytest.mark.parametrize("name", ("small", "eagle"))
def test_sampled_words_have_the_targets_distribution(name: str) -> None:
    model, rows = tiny("llama"), 1500
    inner = SmallModel(noisy("llama")) if name == "small" else make("eagle").with_shape(SHAPES["chain"])
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 9, 5, 6, 7]])
    out = mmspec.generate(
        model,
        drafter=Whim(inner),
        seed=9,
        input_ids=ids.expand(rows, -1),
        max_new_tokens=4,
        do_sample=True,
        top_k=2,
        temperature=3.0,
    )
    warp = hf.LogitsProcessorList([hf.TemperatureLogitsWarper(3.0), hf.TopKLogitsWarper(2)])
    law = true_law(model, ids, 4, warp)
    seen = Counter(map(tuple, out[:, ids.shape[1] :].tolist()))
    assert set(seen) <= set(law)
    common = [k for k in law if law[k] * rows >= 8]
    rest = max(1 - sum(law[k] for k in common), 1e-9)
    pairs = [(seen[k], law[k] * rows) for k in common] + [(rows - sum(seen[k] for k in common), rest * rows)]
    statistic = sum((found - expected) ** 2 / expected for found, expected in pairs if expected >= 1)
    assert len(pairs) > 5 and statistic < len(pairs) + 4 * (2 * len(pairs)) ** 0.5


def test_interleaved_requests_match_requests_alone() -> None:
    control = Goodput(make("msd").with_shape(SHAPES["chain"]), clock=Whimsical(3))
    inputs = [prompt("llava", images=1, seed=seed) for seed in (0, 1, 2)]
    options = dict(max_new_tokens=24, do_sample=False)
    requests = [mmspec.vlm.start(tiny("llava"), drafter=control, **options, **given) for given in inputs]
    while any([request.step() for request in requests if not request.target.done]):
        pass
    for request, given in zip(requests, inputs, strict=True):
        alone = tiny("llava").generate(**given, **options)[0, given["input_ids"].shape[1] :]
        assert request.target.tokens[0] == alone.tolist()


def test_the_targets_levels_reach_the_drafter_through_wrappers() -> None:
    inner = make("eagle3")
    assert Goodput(VisionSkip(inner)).levels == inner.levels
    assert Goodput(VisionSkip(inner)).name == "goodput(viskip(eagle3))"
    same_words(Goodput(VisionSkip(inner, 0.9), clock=Whimsical()))
