"""Rows in parallel: as many passes as the geometry says, and plain decoding where only one row is open."""

from __future__ import annotations

import pytest
import torch

from mmspec.certify.samples import chi_square
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.rowwise import PJD, ZipAR
from mmspec.imagegen.rowwise.row_schedule import row_schedule, row_spans
from mmspec.imagegen.rules.gsd import GSD
from tests.imagegen.tiny import TableModel, TinyModel, generate

FORCED = Geometry(((3, 5),), row_end=16, tail=(17,))
GRIDS = Geometry(((2, 2), (3, 4)))
FRAMES = Geometry(((2, 4),), row_end=16, frames=3)
NAMES = ("square", "row ends", "grids", "frames")
SERIAL = [ZipAR(8), ZipAR(8, adaptive=True), PJD(8, 3)]


@pytest.mark.parametrize("side", (1, 4, 7))
@pytest.mark.parametrize("window", (1, 2, 7))
def test_a_fixed_window_takes_n_plus_w_times_n_minus_1_passes(side: int, window: int) -> None:
    rounds = row_schedule(Geometry.square(side), window)
    assert len(rounds) + 1 == side + min(window, side) * (side - 1)
    asked = [feed.place + 1 for feeds in rounds for feed in feeds if feed.open]
    assert sorted([0, *asked]) == list(range(side * side))


@pytest.mark.parametrize(
    "geometry", (Geometry.square(4), FORCED, GRIDS, FRAMES), ids=("square", "row ends", "grids", "frames")
)
@pytest.mark.parametrize("window", (1, 3, 9))
def test_every_value_is_fed_once_it_is_known_and_stand_ins_only_before(geometry: Geometry, window: int) -> None:
    known = {0, *(i for i, value in enumerate(geometry.forced.tolist()) if value >= 0)}
    fed: set[int] = set()
    rounds = row_schedule(geometry, window)
    for feeds in rounds:
        for feed in feeds:
            assert feed.source in known and (feed.place == feed.source or feed.place not in known)
        true = [feed.place for feed in feeds if feed.place == feed.source]
        assert len(true) == len(set(true)) and not fed & set(true)
        fed |= set(true)
        known |= {feed.place + 1 for feed in feeds if feed.open}
    ends = {line.start + line.codes - 1 for line in row_spans(geometry)[:-1]}
    assert ends <= fed and known == set(range(geometry.total))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    "geometry", (Geometry.square(4), FORCED, GRIDS, FRAMES), ids=("square", "row ends", "grids", "frames")
)
@pytest.mark.parametrize("scale", (1.0, 2.0))
def test_a_window_of_a_row_is_plain_decoding(geometry: Geometry, scale: float) -> None:
    model = TinyModel(geometry, sharp=1.5)
    for temperature in (0.0, 1.0):
        settings = dict(temperature=temperature, guidance_scale=scale, seed=3)
        plain = generate(model, [0, 1, 2], **settings)
        for decoding in SERIAL:
            out = generate(model, [0, 1, 2], decoding, **settings)
            # where plain decoding takes no pass for forced values and nothing is drafted, even the draws are the same
            if not temperature or (geometry.row_end is None and isinstance(decoding, ZipAR)):
                assert torch.equal(out.tokens, plain.tokens), decoding.name
            assert not out.stats.exact and out.stats.emitted == plain.stats.emitted
            assert out.stats.target_passes <= plain.stats.target_passes


@pytest.mark.parametrize("decoding", (PJD(2, 2), ZipAR(2, adaptive=True)), ids=lambda d: d.name)
def test_serial_rows_have_the_targets_distribution(decoding: object) -> None:
    rows, model = 15_000, TableModel(Geometry(((2, 2),)), codes=3, seed=1, sharp=1.5)
    tokens = generate(model, [0] * rows, decoding, seed=2).tokens
    seen = torch.bincount(tokens @ torch.tensor([27, 9, 3, 1]), minlength=81)
    assert chi_square(seen, model.joint() * rows).passed


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    "geometry", (Geometry.square(5), FORCED, GRIDS, FRAMES), ids=("square", "row ends", "grids", "frames")
)
@pytest.mark.parametrize(
    "decoding", (ZipAR(2), ZipAR(1), ZipAR(2, adaptive=True), PJD(2, 3), PJD(1, 8)), ids=lambda d: d.name
)
def test_rows_open_early_finish_and_do_not_depend_on_the_batch(geometry: Geometry, decoding: object) -> None:
    model, seeds, labels = TinyModel(geometry, sharp=1.0), [5, 6, 7], [0, 1, 2]
    out = generate(model, labels, decoding, seed=seeds, guidance_scale=2.0)
    assert out.stats.emitted == [geometry.total] * 3 and int(out.tokens.max()) < 16 and not out.errors
    assert out.stats.target_passes < len(geometry.code_index) + 4
    for row in (0, 2):
        alone = generate(model, labels[row : row + 1], decoding, seed=seeds[row : row + 1], guidance_scale=2.0)
        assert torch.equal(alone.tokens[0], out.tokens[row])


def test_relaxed_decodings_bring_their_rule_and_say_so() -> None:
    out = generate(TinyModel(), [0], ZipAR(2), seed=0)
    assert out.stats.rule == "row parallel (relaxed)" and out.stats.exact is False
    for rule, name in (("token", "token"), ("exact", "exact"), (GSD(3), "gsd .relaxed.")):
        with pytest.raises(ValueError, match=f"brings its own, got '{name}'; leave it out"):
            generate(TinyModel(), [0], ZipAR(2), rule=rule)
    for wrong in (lambda: ZipAR(0), lambda: PJD(0, 3), lambda: PJD(3, 0)):
        with pytest.raises(ValueError, match="expected at least 1"):
            wrong()
