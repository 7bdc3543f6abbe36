"""SWIFT: words, distribution and search of drafts by a target without some of its sub-layers."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.length.controls import FixedLength
from mmspec.estimate.drafters import drafter_cost
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.drafters.layer_search import LayerSet, SearchLimits, agreement, can_score
from mmspec.vlm.drafters.swift import Swift
from tests.vlm.drafters.test_kangaroo import deep, law_of
from tests.vlm.drafters.watched import Watched
from tests.vlm.test_sampled_law import LAWS, PROMPT, STEPS, p_value
from tests.vlm.tiny import VLMS, liven, prompt, tiny

GREEDY = dict(max_new_tokens=16, do_sample=False)


@cache
def tall(kind: str, layers: int = 5) -> nn.Module:
    """The tiny model of a kind with more layers."""
    model = tiny(kind)
    config = copy.deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = ["full_attention"] * layers
    with torch.random.fork_rng():
        torch.manual_seed(3)
        taller = type(model)(config).eval().requires_grad_(False)
        liven(taller)
    taller.generation_config = model.generation_config
    return taller


@pytest.mark.parametrize(
    "kind", ("qwen2_5_vl", *(pytest.param(k, marks=pytest.mark.whole) for k in ("llava", "qwen3_vl")))
)
def test_words_are_those_of_transformers(kind: str) -> None:
    model = tall(kind)
    inputs = dict(prompt(kind, images=int(kind in VLMS), batch=4), **GREEDY)
    watched = Watched(Swift(skip=0.3, window=3, length=FixedLength(3)))
    out = mmspec.generate(model, drafter=watched, return_dict=True, **inputs)
    assert torch.equal(out.sequences, model.generate(**inputs))
    assert watched.state.layer_set.trials > 3 and len(watched.state.layer_set.skipped) == 1
    assert out.stats.exact and all(seen.draft.entry is None for seen in watched.rounds)


def test_a_draft_with_all_sub_layers_is_accepted() -> None:
    inputs = dict(prompt("llama"), max_new_tokens=21, do_sample=False)
    drafter = Swift(skip=0, length=FixedLength(4))
    out = mmspec.generate(tall("llama"), drafter=drafter, return_dict=True, **inputs)
    assert out.stats.accepted[1:] == [[4]] * 4


def test_the_target_agrees_with_itself_on_its_own_words() -> None:
    """Behind pictures and in rows of several lengths, so places, positions and masks are those of the tokens."""
    model, window = tall("qwen2_5_vl"), 6
    run = start(model, **dict(prompt("qwen2_5_vl", images=1, batch=4), max_new_tokens=14, do_sample=False))
    while not can_score(run.target, window):
        assert run.step()
    target = run.target
    held = [[part.clone() for part in target.cache.at(layer)] for layer in range(target.parts.layers)]
    lengths = list(target.cache.lengths)
    assert agreement(target, window, frozenset()) == 1.0
    assert agreement(target, window, frozenset(LayerSet(5).free)) < 0.7
    assert target.cache.lengths == lengths
    for layer, before in enumerate(held):
        for now, then in zip(target.cache.at(layer), before, strict=True):
            for row, length in enumerate(lengths):
                assert torch.equal(now[row, :, :length], then[row, :, :length])


def test_the_kept_score_never_falls_and_the_search_ends() -> None:
    layer_set = LayerSet(8, limits=SearchLimits(goal=0.99, patience=10_000, most=400))
    wanted, scores, sizes = layer_set.free[::3], [], set()
    assert len(layer_set.skipped) == int(0.45 * 12) == 5
    while not layer_set.finished:
        trial = layer_set.trial()
        sizes.add(len(trial))
        assert trial <= set(layer_set.free)
        layer_set.learn(trial, sum(part in trial for part in wanted) / 4)
        scores.append(layer_set.score)
    assert scores == sorted(scores) and scores[-1] == 1.0 and set(wanted) <= layer_set.skipped and sizes == {5}
    idle = LayerSet(8, limits=SearchLimits(patience=7))
    while not idle.finished:
        idle.learn(idle.trial(), 0.5)
    assert idle.trials == 8 and LayerSet(2).finished and LayerSet(8, 0).finished


@pytest.mark.parametrize("setting", ("t0.7", pytest.param("t1_top_p0.9", marks=pytest.mark.whole)))
def test_sampled_words_have_the_targets_distribution_while_the_search_runs(setting: str) -> None:
    model, layer_set = deep(), LayerSet(4, 0.5, SearchLimits(goal=1.0))
    out = mmspec.generate(
        model,
        input_ids=PROMPT.expand(2000, -1),
        drafter=Swift(window=1, length=FixedLength(2), layer_set=layer_set),
        seed=0,
        do_sample=True,
        max_new_tokens=STEPS + 3,
        top_k=0,
        return_dict=True,
        **LAWS[setting],
    )
    assert layer_set.trials > 1 and out.stats.accept_length > 1.1
    assert p_value(out.sequences[:, 3 : 3 + STEPS], law_of(model, **LAWS[setting])) > 1e-3


def test_requests_share_a_set_only_if_it_is_passed() -> None:
    inputs = dict(input_ids=PROMPT, max_new_tokens=12, do_sample=False)
    shared, alone = LayerSet(4), Swift(window=2)
    for _ in range(2):
        mmspec.generate(deep(), drafter=Swift(window=2, layer_set=shared), **inputs)
        watched = Watched(alone)
        mmspec.generate(deep(), drafter=watched, **inputs)
    assert 0 < watched.state.layer_set.trials < shared.trials or shared.finished
    with pytest.raises(ValueError, match="layer_set: expected 5 layers as in the target, got 4"):
        Swift(layer_set=shared).open(start(tall("llama"), **dict(prompt("llama"), max_new_tokens=4)).target)
    for name, value in (("skip", 1.0), ("window", 0)):
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            Swift(**{name: value})
    with pytest.raises(ValueError, match=r"share: expected a share of the sub-layers in \[0, 1\), got 1"):
        LayerSet(4, 1)


def test_its_text_form_and_its_cost() -> None:
    call = mmspec.methods.parse("swift:skip=0.25,length=(fixed:longest=6)", domain="vlm")
    made = call.make(None)
    assert made.skip == 0.25 and made.length == FixedLength(6) and call.method.facts["drafts"] == ("sampled chain",)
    assert drafter_cost("swift").pattern == "part" and take_apart(deep()).layers == 4
