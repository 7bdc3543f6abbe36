"""A canvas holds what one pass over its known values would compute, whatever order they came in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Law, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import chains
from mmspec.imagegen.any_order import AnyOrderTarget
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.rowwise import ZipAR
from mmspec.imagegen.rowwise.row_parallel import RowParallelRule
from mmspec.imagegen.target import Guidance, Warp
from tests.imagegen.tiny import TinyModel

LABELS = torch.tensor([1, 2])  # the first prompt has a slot of padding


class Finite:
    """Evidence of finite numbers."""

    bad = None


def canvas(scale: float, geometry: Geometry | None = None) -> tuple[TinyModel, AnyOrderTarget]:
    model = TinyModel(geometry, sharp=2.0)
    target = AnyOrderTarget(model, LABELS, guidance=Guidance(scale), warp=Warp())
    draft, _ = target.prefill()
    target.cache.keys.add_(50.0)  # what lies in empty slots must not matter
    target.cache.keys[:, :, :, : target.prompt].sub_(50.0)
    assert draft.index.tolist() == [[-1], [-1]]
    return model, target


def feed(target: AnyOrderTarget, places: list[int], values: Tensor, drafted: int = 0) -> tuple[Draft, Tensor]:
    """Feeds known values int64 [B, N]; the last `drafted` of them as a chain below the last one before. All are kept."""
    known = len(places) - drafted
    tree = chains((0,) * (known - 1) + (drafted,))
    draft = Draft(values, tree, Law("none"), index=torch.tensor(places).expand(2, -1))
    scores = target.score(draft).scores
    node = torch.zeros(2, dtype=torch.long)
    keep = torch.ones_like(values, dtype=torch.bool)
    target.commit(draft, Finite, Verdict("mask", node, node[:, None], node, torch.full_like(values, -1), keep))
    return draft, scores


def fresh(model: TinyModel, target: AnyOrderTarget, places: list[int], values: Tensor) -> Tensor:
    """Scores [B, n, V] of one causal pass over values at those places and nothing else."""
    other = AnyOrderTarget(model, LABELS, guidance=target.guidance, warp=target.warp)
    other.cache = SlotPool(model.layers, 64, copies=other.copies)
    other.prefill()
    seen = torch.ones(len(places), len(places), dtype=torch.bool).tril()[None]
    bias, index = other.cache.bias(seen, model.dtype), torch.tensor(places).expand(2, -1)
    copies = other.copies
    scored = model.forward(values.repeat(copies, 1), index.repeat(copies, 1), bias, other.cache)
    return other.guided(scored.logits, index + 1)


@pytest.mark.parametrize("scale", (1.0, 3.0))
def test_known_places_are_attended_and_empty_places_are_not(scale: float) -> None:
    model, target = canvas(scale)
    places = [0, 2, 3, 7, 9, 12]
    values = torch.randint(16, (2, len(places)), generator=torch.Generator().manual_seed(0))
    expected = fresh(model, target, places, values)
    feed(target, places[:2], values[:, :2])
    _, middle = feed(target, places[2:4], values[:, 2:4], drafted=1)
    _, last = feed(target, places[4:], values[:, 4:])
    assert torch.allclose(middle, expected[:, 2:4], atol=1e-5) and torch.allclose(last, expected[:, 4:], atol=1e-5)
    assert target.known.sum(1).tolist() == [6, 6] and torch.equal(target.known, target.stored)
    assert target.filled == [6, 6] and not target.done
    values[:, 1] = (values[:, 1] + 1) % 16  # a place fed again overwrites its own keys and values
    _, again = feed(target, places[1:], values[:, 1:])
    assert torch.allclose(again, fresh(model, target, places, values)[:, 1:], atol=1e-5)
    _, behind = feed(target, [15], values[:, :1])
    assert torch.allclose(behind, fresh(model, target, [*places, 15], values[:, [*range(6), 0]])[:, 6:], atol=1e-5)


def test_rejected_padded_and_placeholder_values_leave_no_trace() -> None:
    model, target = canvas(1.0)
    value = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    index = torch.tensor([0, 1, 7, target.total]).expand(2, -1)
    valid = torch.tensor([True, True, False, False]).expand(2, -1)
    draft = Draft(value, chains((1, 0, 0)), Law("none"), valid, index)
    scores = target.score(draft).scores
    assert torch.allclose(scores[:, 2:3], fresh(model, target, [0, 7], value[:, [0, 2]])[:, 1:], atol=1e-5)
    keep = torch.tensor([True, False, True, True]).expand(2, -1)
    node, behind = torch.zeros(2, dtype=torch.long), torch.tensor([[11, -1, 12, 13]] * 2)
    accepted = target.commit(draft, Finite, Verdict("mask", node, node[:, None], node, behind, keep))
    assert accepted == [0, 0] and target.filled == [3, 3]
    assert target.values[:, [0, 1, 8]].tolist() == [[3, 11, 12], [7, 11, 12]]
    assert target.known.nonzero()[:, 1].tolist() == [0, 1, 8] * 2
    assert target.stored.nonzero()[:, 1].tolist() == [0] * 2


def test_places_stay_open_where_the_draft_leaves_them_and_forced_places_are_known() -> None:
    _, target = canvas(1.0, Geometry(((2, 3),), row_end=16, tail=(17,)))
    assert target.known.nonzero()[:, 1].tolist() == [3, 7, 8] * 2
    assert target.values[0, [3, 7, 8]].tolist() == [16, 16, 17]
    value, index = torch.tensor([[3, 4, 16]] * 2), torch.tensor([0, 2, 3]).expand(2, -1)
    draft = Draft(value, chains((0, 0, 0)), Law("none"), None, index, torch.tensor([True, True, False]).expand(2, -1))
    target.score(draft)
    node, behind = torch.zeros(2, dtype=torch.long), torch.tensor([[5, 6, 7]] * 2)
    keep = torch.ones(2, 3, dtype=torch.bool)
    target.commit(draft, Finite, Verdict("mask", node, node[:, None], node, behind, keep))
    assert target.values[0].tolist() == [3, 5, 4, 16, 0, 0, 0, 16, 17]  # 6 met a forced place, 7 a closed one
    with pytest.raises(ValueError, match="mask verdicts"):
        target.commit(draft, Finite, Verdict("path", node, node[:, None], node, node))


class Nan(TinyModel):
    """Loses its mind at place 5 of label 1."""

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> object:
        scored = super().forward(value, index, bias, cache)
        scored.logits[0] = torch.where((index[0] == 5)[:, None], torch.nan, scored.logits[0])
        return scored


def test_a_row_that_fails_stops_alone() -> None:
    target = AnyOrderTarget(Nan(), LABELS, guidance=Guidance(), warp=Warp())
    decoding = DecodingRun(target, ZipAR(2), RowParallelRule(), Keys.of(0, 2))
    stats = decoding.run()
    assert list(target.errors) == [0] and "NaN" in target.errors[0]
    assert target.filled[1] == 16 and target.filled[0] < 16 and stats.emitted == target.filled
