"""Sampled text of captured rounds has the target's law: the joint of the first three tokens, against every chance computed."""

from __future__ import annotations

import pytest
from torch import Tensor

import mmspec
from mmspec.core.round.keys import CountedKeys, Purpose
from mmspec.vlm.graphs import rounds
from mmspec.vlm.graphs.rounds import Rounds
from tests.vlm.graphs.cases import chain, narrow
from tests.vlm.test_sampled_law import LAWS, PROMPT, ROWS, STEPS, exact_law, p_value


@pytest.fixture(autouse=True)
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SLOTS", 16)


def sample(rule: str, settings: dict) -> tuple[Tensor, float]:
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(ROWS, -1),
        drafter=chain(2, kind="narrow"),
        rule=rule,
        seed=1,
        capture=Rounds(late=1),
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
        **settings,
    )
    return out.sequences[:, 3 : 3 + STEPS], out.stats.accept_length


@pytest.mark.default_cells("exact-t1", "token-t1_top_p0.9")
@pytest.mark.parametrize("law", ("t1", "t1_top_p0.9"))
@pytest.mark.parametrize("rule", ("exact", "token", "match"))
def test_joint_distribution(rule: str, law: str) -> None:
    tokens, length = sample(rule, LAWS[law])
    assert p_value(tokens, exact_law(**LAWS[law])) > 1e-3 and length > 1.05


def test_noise_that_two_purposes_share_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    own = CountedKeys.uniform
    monkeypatch.setattr(
        CountedKeys, "uniform", lambda keys, _, *shape, step=0: own(keys, Purpose.DRAFT, *shape, step=step)
    )
    tokens, _ = sample("exact", LAWS["t1"])
    assert p_value(tokens, exact_law(**LAWS["t1"])) < 1e-6
