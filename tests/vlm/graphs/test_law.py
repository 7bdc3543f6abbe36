"""Sampled text of captured rounds has the target's law: the joint of the first three tokens, against every chance computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.graphs.keys import CountedKeys
from mmspec.core.keys import Purpose
from mmspec.vlm.graphs.rounds import Rounds
from tests.core.graphs.recorded import recorded
from tests.vlm.graphs.cases import chain, narrow
from tests.vlm.test_sampled_law import LAWS, PROMPT, ROWS, STEPS, exact_law, p_value


def sample(rule: str, settings: dict, rounds: int = 2) -> tuple[Tensor, float]:
    parts, lengths = [], []
    for seed in range(rounds):
        out = mmspec.generate(
            narrow(), input_ids=PROMPT.expand(ROWS, -1), drafter=chain(2, kind="narrow"), rule=rule, seed=seed,
            capture=Rounds(record=recorded, late=1), do_sample=True, max_new_tokens=STEPS + 3, top_k=0, return_dict=True,
            **settings,
        )  # fmt: skip
        parts.append(out.sequences[:, 3 : 3 + STEPS])
        lengths.append(out.stats.accept_length)
    return torch.cat(parts), sum(lengths) / rounds


@pytest.mark.parametrize("settings", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("rule", ("exact", "token", "match"))
def test_joint_law(rule: str, settings: dict) -> None:
    tokens, length = sample(rule, settings)
    assert p_value(tokens, exact_law(**settings)) > 1e-3 and length > 1.1


@pytest.mark.parametrize("purpose", (Purpose.DRAFT, Purpose.RESIDUAL))
def test_noise_that_two_purposes_share_shows(purpose: Purpose, monkeypatch: pytest.MonkeyPatch) -> None:
    own = CountedKeys.uniform
    monkeypatch.setattr(CountedKeys, "uniform", lambda keys, _, *shape, step=0: own(keys, purpose, *shape, step=step))
    tokens, _ = sample("exact", LAWS["t1"])
    assert p_value(tokens, exact_law(**LAWS["t1"])) < 1e-6
