"""Every rule on every domain: it decodes, or one sentence refuses it before anything is judged."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun, Target
from mmspec.core.round.rules import Rule, resolve
from mmspec.core.round.rules.typical import TypicalAcceptance
from mmspec.methods import names
from tests.core.domains.blocks import Film, RewardThreshold
from tests.core.domains.canvas import Canvas, CellByCell
from tests.core.domains.gaussians import Chain


class Words:
    """A target of tokens that can only be prefilled."""

    batch, pending, done, emitted, verdicts = 2, torch.zeros(2, dtype=torch.long), False, [0, 0], ("path",)

    def __init__(self, greedy: bool):
        self.greedy = greedy

    def prefill(self) -> tuple[Draft, Evidence]:
        return root_only(self.pending), Evidence(torch.zeros(2, 1, 5), self.greedy)

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        assert verdict.kind == "path" and verdict.correction.shape == (2,)
        return [0, 0]


DOMAINS = {
    "tokens": lambda: Words(greedy=False),
    "greedy tokens": lambda: Words(greedy=True),
    "vectors": lambda: Chain(torch.zeros(2, 3), 4),
    "canvas": lambda: Canvas(torch.zeros(4, 5), 2),
    "blocks": lambda: Film(torch.ones(3), 2, 4),
}
RULES = {
    **{name: lambda name=name: resolve(name, greedy=False) for name in names(kind="rule", exact=True)},
    "typical": TypicalAcceptance,
    "cells": CellByCell,
    "reward": lambda: RewardThreshold(0.5),
}
OVER_VECTORS = {"reflection", "gaussian_block"}
OVER_TOKENS = set(names(kind="rule", exact=True)) - OVER_VECTORS | {"typical"}
FIT = {
    "tokens": OVER_TOKENS,
    "greedy tokens": OVER_TOKENS,
    "vectors": {"exact", *OVER_VECTORS},
    "canvas": {"cells"},
    "blocks": {"reward"},
}


def first_round(domain: str, rule: Rule) -> None:
    target: Target = DOMAINS[domain]()
    DecodingRun(target, None, rule, Keys.of(0, 2)).step()


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", RULES)
def test_the_first_round_takes_the_rules_that_fit_and_refuses_the_others(name: str, domain: str) -> None:
    rule = RULES[name]()
    if name in FIT[domain]:
        return first_round(domain, rule)
    with pytest.raises(ValueError, match=r"^rule '.*': expected .* got .*; use "):
        first_round(domain, rule)


def test_a_refusal_names_the_output_kind_of_the_target() -> None:
    with pytest.raises(
        ValueError, match="'reflection': expected a target that gives Gaussians, got a target that gives scores"
    ):
        first_round("tokens", resolve("reflection", greedy=False))
    with pytest.raises(
        ValueError, match="'token': expected a target that gives scores of tokens, got a target that gives Gaus"
    ):
        first_round("vectors", resolve("token", greedy=False))
