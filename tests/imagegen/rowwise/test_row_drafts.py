"""Rows ahead as drafts: exact like the window behind them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify.samples import chi_square
from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi import SJD, Proactive
from mmspec.imagegen.model import ImageModelOutput
from mmspec.imagegen.rowwise import RowDrafts
from tests.imagegen.tiny import TableModel, TinyModel, generate

FORCED = Geometry(((3, 6),), row_end=16, tail=(17,))
FRAMES = Geometry(((2, 4),), row_end=16, frames=3)
TREE = Proactive(2, 2)
DRAFTERS = [
    RowDrafts(SJD(4), 3),
    RowDrafts(SJD(4), 3, "row"),
    RowDrafts(SJD(4, "mix", "gumbel"), 9),
    RowDrafts(SJD(4, "up", "maximal", TREE), 2),
    RowDrafts(SJD(4, "uniform", "maximal", TREE), 2, "row"),
    RowDrafts(SJD(4, "frame"), 3),
]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("geometry", (FORCED, FRAMES), ids=("image", "video"))
@pytest.mark.parametrize("scale", (1.0, 2.0))
def test_greedy_equals_plain_decoding(scale: float, geometry: Geometry) -> None:
    settings, model = dict(temperature=0, guidance_scale=scale, seed=1), TinyModel(geometry, sharp=1.0)
    plain = generate(model, [0, 1, 2], **settings)
    for drafter in DRAFTERS:
        out = generate(model, [0, 1, 2], drafter, **settings)
        assert torch.equal(out.tokens, plain.tokens), drafter.name
        assert out.stats.exact and out.stats.target_passes < plain.stats.target_passes


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda d: d.name)
def test_a_row_does_not_depend_on_the_others(drafter: RowDrafts) -> None:
    model, seeds, labels = TinyModel(FORCED, sharp=1.0), [11, 12, 13], [0, 1, 2]
    together = generate(model, labels, drafter, seed=seeds, guidance_scale=2.0)
    for row in (0, 2):
        alone = generate(model, labels[row : row + 1], drafter, seed=seeds[row : row + 1], guidance_scale=2.0)
        assert torch.equal(alone.tokens[0], together.tokens[row])


@pytest.mark.default_cells(
    "image-SCD gumbel(2) + row 1", "video-SJD(2) + row 2", "video-SCD maximal(2) mix + tree 2x2 + row 2 row-causal"
)
@pytest.mark.parametrize(
    "drafter",
    [
        RowDrafts(SJD(2), 2),
        RowDrafts(SJD(2, coupling="gumbel"), 1),
        RowDrafts(SJD(2, "mix", "maximal", TREE), 2, "row"),
    ],
    ids=lambda d: d.name,
)
@pytest.mark.parametrize("geometry", (Geometry(((3, 2),)), Geometry(((1, 2),), frames=3)), ids=("image", "video"))
def test_sampled_images_have_the_targets_distribution(geometry: Geometry, drafter: RowDrafts) -> None:
    rows, model = 15_000, TableModel(geometry, codes=2, seed=3, sharp=1.5)
    tokens = generate(model, [0] * rows, drafter, seed=1).tokens
    seen = torch.bincount(tokens @ (2 ** torch.arange(5, -1, -1)), minlength=64)
    assert chi_square(seen, model.joint() * rows).passed


class Watching(TinyModel):
    """Notes the places of every pass, the root's first."""

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        self.seen.append(index[0].tolist())
        return super().forward(value, index, bias, cache)


def test_the_row_below_is_probed_and_drafted_from() -> None:
    model = Watching(Geometry.square(6), sharp=1.0)
    model.seen = []
    out = generate(model, [0], RowDrafts(SJD(3), 4), seed=0)
    first = model.seen[0]
    assert first == [0, 1, 2, 5, 6, 7, 8, 9]  # the window, then a stand-in for the end of the row and four places below
    assert all(places[0] == places[1] - 1 for places in model.seen if len(places) > 1)
    plain = generate(model, [0], SJD(3), seed=0)
    assert not torch.equal(out.tokens, plain.tokens)  # other laws were drafted from


def test_settings_out_of_range_are_refused() -> None:
    wrongs = (
        lambda: RowDrafts(lead=0),
        lambda: RowDrafts(sight="all"),
        lambda: RowDrafts(SJD(4, "repeat_up")),
        lambda: RowDrafts(16),
    )
    for wrong in wrongs:
        with pytest.raises(ValueError, match="expected"):
            wrong()
