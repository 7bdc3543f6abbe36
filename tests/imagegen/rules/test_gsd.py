"""Groups by the target's own ranking: against a sort, at its ends, and with one-hot drafts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.tree import chain
from mmspec.imagegen.rules.gsd import GSD
from tests.imagegen.rules.cases import WITHOUT, codebook


def group_of(p: Tensor, code: int, size: int, delta_p: float, distance: float, table: Tensor) -> set[int]:
    """The window by a full sort: most likely first, ties by index, cut values left out."""
    order = [i for i in sorted(range(len(p)), key=lambda i: (-float(p[i]), i)) if p[i] > 0]
    at = order.index(code)
    window = order[max(at - (size - 1) // 2, 0) : at + size // 2 + 1]
    apart = (table - table[code]).square().sum(-1)
    return {i for i in window if i != code and abs(float(p[i] - p[code])) < delta_p and apart[i] < distance}


@pytest.mark.parametrize("size", (2, 3, 14, 25, 60))
@pytest.mark.parametrize("delta_p, distance", ((1.5, 1e9), (0.01, 1e9), (1.5, 4.0)))
def test_groups_are_windows_of_the_ranking(size: int, delta_p: float, distance: float) -> None:
    scores = torch.randn(40).round(decimals=1)  # ties
    scores[torch.rand(40) < 0.3] = -torch.inf
    p, book = scores.softmax(-1), codebook(40)
    rule = GSD(size, delta_p, distance, book)
    token = torch.arange(40)[None]
    member, inside = rule.members(p.expand(1, 40, -1), token, p[None])
    whole = GSD(size, delta_p).members(p.expand(1, 40, -1), token, p[None])
    for code in range(40):
        if p[code] == 0:  # such a draft is never grouped
            continue
        found = member[0, code][inside[0, code]].tolist()
        expected = group_of(p, code, size, delta_p, distance, book)
        # values tied at the edge of the window may stand for each other
        assert len(found) == len(set(found))
        edge = {float(p[i]) for i in set(found) ^ expected}
        assert len(edge) <= 2
        if distance > 100:
            assert sorted(p[i] for i in found) == sorted(p[i] for i in expected)
        else:  # of the members of the whole window, just those that are close
            apart = (book - book[code]).square().sum(-1)
            assert set(found) == {i for i in whole[0][0, code][whole[1][0, code]].tolist() if apart[i] < distance}


def single(p: Tensor, q: Tensor | None, token: int) -> tuple[Draft, Evidence]:
    law = Law("deterministic") if q is None else Law(WITHOUT, torch.tensor([0, -1]), q.log()[None, None])
    return Draft(torch.tensor([[0, token]]), chain(1), law), Evidence(p.log().expand(1, 2, -1))


def test_the_threshold_is_the_ratio_of_the_groups() -> None:
    p, q = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.5, 0.1, 0.1])
    for group, mass in ((1, 0.2 / 0.5), (2, 0.3 / 0.8), (3, 0.6 / 0.9), (50, 1.0)):
        draft, evidence = single(p, q, 1)
        found = GSD(group, delta_p=1.0).weigh(evidence, draft).threshold[0, 1]
        assert float(found) == pytest.approx(mass, abs=1e-6)


@pytest.mark.parametrize("token", (0, 3))
def test_the_window_is_clamped_at_both_ends(token: int) -> None:
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    draft, evidence = single(p, None, token)
    found = GSD(4, delta_p=1.0).weigh(evidence, draft).threshold[0, 1]
    assert float(found) == pytest.approx({0: 0.1 + 0.2, 3: 0.4 + 0.3 + 0.2}[token], abs=1e-6)


def test_a_value_the_target_cut_is_rejected() -> None:
    p, q = torch.tensor([0.0, 0.4, 0.6]), torch.tensor([0.5, 0.25, 0.25])
    for law in (q, None):
        draft, evidence = single(p, law, 0)
        assert GSD(25, delta_p=1.0).weigh(evidence, draft).threshold[0, 1] == 0


@pytest.mark.parametrize("law", ("one-hot record", "no record"))
def test_cold_drafts_are_grouped_by_default(law: str) -> None:
    p, q = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.0, 1.0, 0.0, 0.0])
    draft, evidence = single(p, q if law == "one-hot record" else None, 1)
    found = [GSD(3, delta_p=1.0, cold=cold).weigh(evidence, draft).threshold[0, 1] for cold in ("group", "plain")]
    assert [float(x) for x in found] == pytest.approx([0.6, 0.2], abs=1e-6)


def test_values_without_an_embedding_are_in_no_group() -> None:
    p = torch.tensor([0.2, 0.3, 0.5])
    draft, evidence = single(p, None, 1)
    rule = GSD(5, delta_p=1.0, distance=100.0, table=torch.zeros(2, 3))
    assert float(rule.weigh(evidence, draft).threshold[0, 1]) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(
    "wrong", (dict(group=0), dict(delta_p=0.0), dict(distance=0.5), dict(table=torch.zeros(2, 2)), dict(cold="warm"))
)
def test_wrong_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        GSD(**wrong)
