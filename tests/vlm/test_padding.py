"""Passes that are padded to a wider one: tokens, caches and statistics are those of the passes that are not."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.length.pass_costs import PassCosts
from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.tree import chain
from mmspec.vlm.drafters import PromptLookup, TokenRecycling
from mmspec.vlm.pass_timing import measure_pass_costs
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny

DRAFTERS = {
    "lookup": lambda: PromptLookup(longest=4, min_ngram=1),
    "recycling": TokenRecycling,
    "eagle3": lambda: make("eagle3"),
    "none": lambda: None,
}


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every pass is padded by 1 to 3 nodes; the list holds the nodes of passes and their widths."""
    seen = []

    def padded(self: PassCosts, nodes: int, adapts: bool = True) -> int:
        seen.append((nodes, nodes + 1 + len(seen) % 3))
        return seen[-1][1]

    monkeypatch.setattr(PassCosts, "padded", padded)
    return seen


def both(kind: str, drafter: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> list:
    """The request with the fixture's widths, and without padding."""
    runs = []
    for pads in (True, False):
        if not pads:
            monkeypatch.setattr(PassCosts, "padded", lambda self, nodes, adapts=True: nodes)
        run = mmspec.vlm.start(tiny(kind), drafter=DRAFTERS[drafter](), max_new_tokens=16, **options)
        run.run()
        runs.append(run)
    return runs


@pytest.mark.parametrize(
    "drafter, kind, batch, sampled",
    (
        ("lookup", "llava", 1, False),
        ("lookup", "mistral", 3, True),
        ("recycling", "mistral", 1, False),
        ("recycling", "qwen2_5_vl", 3, True),
        ("eagle3", "qwen2_5_vl", 3, False),
        ("eagle3", "llava", 1, True),
        ("none", "mistral", 3, False),
    ),
)
def test_padding_changes_neither_tokens_nor_caches_nor_counts(
    drafter: str, kind: str, batch: int, sampled: bool, widths: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = prompt(kind, batch=batch) if kind == "mistral" else prompt(kind, images=batch, batch=batch)
    options |= dict(do_sample=True, temperature=0.8, seed=3) if sampled else dict(do_sample=False)
    padded, narrow = both(kind, drafter, monkeypatch, **options)
    assert len(widths) == padded.stats.target_passes - 1 and all(width > nodes for nodes, width in widths)
    assert padded.target.tokens == narrow.target.tokens
    assert padded.target.cache.lengths == narrow.target.cache.lengths
    for row, length in enumerate(narrow.target.cache.lengths):
        for ours, theirs in zip(padded.target.cache.at(0), narrow.target.cache.at(0), strict=True):
            torch.testing.assert_close(ours[row, :, :length], theirs[row, :, :length], atol=1e-5, rtol=1e-4)
    ours, theirs = padded.stats, narrow.stats
    assert (ours.target_passes, ours.row_passes, ours.accepted) == (
        theirs.target_passes,
        theirs.row_passes,
        theirs.accepted,
    )


def test_strict_passes_are_not_padded(widths: list) -> None:
    out = mmspec.generate(
        tiny("llama"),
        drafter=PromptLookup(),
        strict=True,
        max_new_tokens=6,
        do_sample=False,
        return_dict=True,
        **prompt("llama"),
    )
    assert widths == [] and out.stats.target_passes > 1


def test_costs_are_measured_on_the_way_and_widths_stay_fixed() -> None:
    import copy

    model = copy.deepcopy(tiny("llama"))
    run = mmspec.vlm.start(model, drafter=PromptLookup(), max_new_tokens=12, do_sample=False, **prompt("llama"))
    run.run()
    costs = run.target.pass_costs
    # neither the prompt's pass nor the first one behind it counts
    assert sum(one.rounds for one in costs.measured.measured.values()) == run.stats.target_passes - 2
    assert costs.fixed_widths == {} and not run.target.adapts
    again = mmspec.vlm.start(model, drafter=None, max_new_tokens=2, do_sample=False, **prompt("llama"))
    assert again.target.pass_costs is costs


def test_a_measured_curve_commits_nothing_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import copy

    model = copy.deepcopy(tiny("llama"))
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    passes = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    curve = measure_pass_costs(model, (2, 4, 9), prompt=8, repeats=2)
    assert list(curve) == [1, 2, 4, 9] and curve[1] == 1.0 and min(curve.values()) >= 1.0
    assert passes == [8, *[1, 2, 4, 9] * 3]  # the prompt, a pass of each width to warm up, and two that count
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="repeats: expected at least 1, got 0"):
        measure_pass_costs(model, repeats=0)


def test_repeated_passes_without_a_commit_are_identical() -> None:
    run = mmspec.vlm.start(tiny("llama"), max_new_tokens=8, do_sample=False, **prompt("llama"))
    run.step()
    target = run.target
    draft = Draft(target.pending[:, None].expand(-1, 3), chain(2), Law("deterministic"))
    first = target.score(draft).scores.clone()
    target.score(Draft(target.pending[:, None].expand(-1, 7), chain(6), Law("deterministic")))
    assert torch.equal(target.score(draft).scores, first)
