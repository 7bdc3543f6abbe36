"""Relaxed rules inside whole images: Jacobi windows, coupled ones and trees, rows of forced values, greedy requests."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.rules import RecursiveRejection, TokenWise
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi.jacobi_drafts import SJD
from mmspec.imagegen.jacobi.tree import Proactive
from tests.imagegen.rules.cases import exact_settings, relaxed_settings
from tests.imagegen.tiny import TinyModel, generate

LABELS = [0, 1, 2, 3]
MODEL = TinyModel(Geometry(((4, 4),), row_end=16, tail=(17,)), codes=16)
DECODINGS = {
    "fresh": SJD(window=6),
    "random": SJD(window=6, init="random"),
    "coupled": SJD(window=6, coupling="gumbel"),
    "tree": SJD(window=6, tree=Proactive()),
}
SETTINGS = dict(guidance_scale=2.0, top_k=12, seed=3)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", exact_settings(16))
@pytest.mark.parametrize("kind", DECODINGS)
def test_exact_settings_draw_the_exact_rules_images(name: str, kind: str) -> None:
    rule, exact = exact_settings(16)[name], RecursiveRejection() if kind == "tree" else TokenWise()
    if rule.chains_only and kind == "tree":
        return
    mine = generate(MODEL, LABELS, DECODINGS[kind], rule, **SETTINGS)
    other = generate(MODEL, LABELS, DECODINGS[kind], exact, **SETTINGS)
    assert torch.equal(mine.tokens, other.tokens) and mine.stats.accepted == other.stats.accepted
    assert not mine.stats.exact and "(relaxed)" in mine.stats.rule


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", relaxed_settings(16))
@pytest.mark.parametrize("kind", DECODINGS)
def test_relaxed_settings_take_fewer_passes(name: str, kind: str) -> None:
    rule = relaxed_settings(16)[name]
    if rule.chains_only and kind == "tree":
        with pytest.raises(ValueError, match="expected a chain"):
            generate(MODEL, LABELS, DECODINGS[kind], rule, **SETTINGS)
        return
    found = generate(MODEL, LABELS * 4, DECODINGS[kind], rule, **SETTINGS)
    exact = RecursiveRejection() if kind == "tree" else TokenWise()
    assert not found.errors and ((found.tokens >= 0) & (found.tokens < 16)).all()
    assert found.stats.row_passes < generate(MODEL, LABELS * 4, DECODINGS[kind], exact, **SETTINGS).stats.row_passes


@pytest.mark.parametrize("name", relaxed_settings(16))
def test_greedy_images_match_plain_decoding_unless_the_greedy_rule_is_relaxed(name: str) -> None:
    rule = relaxed_settings(16)[name]
    plain = generate(MODEL, LABELS, temperature=0.0).tokens
    found = generate(MODEL, LABELS, DECODINGS["fresh"], rule, temperature=0.0).tokens
    assert torch.equal(found, plain) or name.startswith("lantern")
