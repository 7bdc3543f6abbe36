"""The joint law of whole images and videos, over all rounds, enumerated: the target's own, for every way to draft; not for
mutants."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import random_tables, target_law
from mmspec.core.round.rules import Rule
from mmspec.core.round.rules.by_name import resolve
from mmspec.imagegen import SCD
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi import SJD, Proactive
from mmspec.imagegen.jacobi.initialisation import INITS
from tests.imagegen.jacobi import mutants
from tests.imagegen.jacobi.process import process_law

GRID = Geometry(((2, 3),))
VIDEO = Geometry(((1, 2),), frames=2)


def tables_of(geometry: Geometry, codes: int, seed: int) -> list[Tensor]:
    """Random laws of all values, forced ones in their place."""
    forced = geometry.forced.tolist()
    size = max(codes, max(forced) + 1)
    tables = random_tables(size, geometry.total, seed)
    for table, value in zip(tables, forced, strict=True):
        table[:, codes:] = 0
        if value >= 0:
            table.zero_()
            table[:, value] = 1
        table /= table.sum(-1, keepdim=True)
    return tables


def distance(drafter, rule: str | Rule = "exact", geometry: Geometry = GRID, codes: int = 3, seed: int = 1) -> float:
    """Total variation between the images of the process and the target's."""
    tables = tables_of(geometry, codes, seed)
    law = process_law(drafter, resolve(rule, greedy=False), tables, geometry, codes)
    return float((law - target_law(tables)).abs().sum() / 2)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("coupling", (None, "maximal"))
@pytest.mark.parametrize("init", INITS)
def test_every_init_keeps_the_distribution(init: str, coupling: str | None) -> None:
    assert distance(SJD(3, init, coupling)) < 1e-12


@pytest.mark.parametrize("drafter", (SJD(3), SJD(3, coupling="maximal"), SJD(3, "mix", tree=Proactive(2, 2))))
def test_four_codes_keep_the_distribution(drafter: SJD) -> None:
    assert distance(drafter, geometry=Geometry(((1, 5),)), codes=4) < 1e-12


@pytest.mark.covering
@pytest.mark.parametrize("init", ("left", "random", "repeat_up"))
@pytest.mark.parametrize("rule", ("exact", "recursive", "kseq"))
@pytest.mark.parametrize("coupling", (None, "maximal"))
def test_trees_keep_the_distribution(coupling: str | None, rule: str, init: str) -> None:
    drawn = "with_replacement" if rule == "kseq" else "without_replacement"
    assert distance(SJD(3, init, coupling, Proactive(2, 2, drawn)), rule, geometry=Geometry(((1, 5),))) < 1e-12


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("window", (2, 4, 5))
@pytest.mark.parametrize("coupling", (None, "maximal", "gumbel"))
def test_windows_longer_than_a_row_keep_the_distribution(window: int, coupling: str | None) -> None:
    assert distance(SJD(window, "up", coupling), geometry=Geometry(((3, 2),)), codes=2) < 1e-12


@pytest.mark.parametrize("init", ("uniform", "left", "up"))
@pytest.mark.parametrize("tree", (None, Proactive(2, 2)))
def test_gumbel_coupling_keeps_the_distribution_of_two_codes(init: str, tree: Proactive | None) -> None:
    assert distance(SCD(3, "gumbel", init, tree), codes=2) < 1e-12


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("init", ("random", "repeat_left", "sample_up", "left", "mix"))
@pytest.mark.parametrize("coupling", (None, "maximal"))
def test_forced_values_keep_the_distribution(init: str, coupling: str | None) -> None:
    geometry = Geometry(((2, 2),), row_end=2, tail=(3,))
    assert distance(SJD(4, init, coupling), geometry=geometry, codes=2) < 1e-12


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("coupling", (None, "maximal"))
@pytest.mark.parametrize("init", INITS)
def test_every_init_keeps_the_distribution_of_videos(init: str, coupling: str | None) -> None:
    assert distance(SJD(3, init, coupling), geometry=VIDEO) < 1e-12
    assert distance(SJD(4, init, coupling), geometry=Geometry(((1, 2),), frames=3), codes=2) < 1e-12


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("init", ("random", "left", "repeat_frame", "frame"))
@pytest.mark.parametrize("rule", ("exact", "recursive", "kseq"))
def test_trees_keep_the_distribution_of_videos(rule: str, init: str) -> None:
    drawn = "with_replacement" if rule == "kseq" else "without_replacement"
    for coupling in (None, "maximal"):
        assert distance(SJD(3, init, coupling, Proactive(2, 2, drawn)), rule, VIDEO) < 1e-12


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("init", ("random", "repeat_frame", "frame"))
@pytest.mark.parametrize("window", (2, 3, 6))
def test_gumbel_coupling_keeps_the_distribution_of_videos_of_two_codes(window: int, init: str) -> None:
    for geometry in (VIDEO, Geometry(((2, 1),), frames=2), Geometry(((1, 1),), frames=4)):
        assert distance(SCD(window, "gumbel", init), geometry=geometry, codes=2) < 1e-12


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("init", ("repeat_frame", "sample_frame", "frame"))
@pytest.mark.parametrize("coupling", (None, "maximal"))
def test_forced_values_keep_the_distribution_of_videos(init: str, coupling: str | None) -> None:
    geometry = Geometry(((1, 2),), row_end=2, tail=(3,), frames=2)
    assert distance(SJD(4, init, coupling), geometry=geometry, codes=2) < 1e-12


@pytest.mark.parametrize("rule", ("token", "block"))
def test_plain_drafts_of_videos_may_be_judged_as_a_whole(rule: str) -> None:
    for init in ("frame", "repeat_frame"):
        assert distance(SJD(3, init), rule, VIDEO) < 1e-12


def test_wrong_frame_distributions_are_detected() -> None:
    assert distance(mutants.With(SJD(3, "frame"), mutants.FrameBeforeOnRecord), geometry=VIDEO) > 1e-3
    assert distance(mutants.With(SJD(3, "repeat_frame"), mutants.NewestFrameNotYetDrawn), geometry=VIDEO) > 1e-3
    assert distance(mutants.With(SJD(3, "repeat_frame"), mutants.UniformRecord), geometry=VIDEO) > 1e-3


@pytest.mark.parametrize("rule", ("token", "block"))
def test_plain_drafts_may_be_judged_as_a_whole(rule: str) -> None:
    assert distance(SJD(3), rule) < 1e-12


@pytest.mark.parametrize("coupling", ("maximal", "gumbel"))
def test_coupled_drafts_may_not(coupling: str) -> None:
    with pytest.raises(ValueError, match="drawn anew every round"):
        distance(SJD(3, coupling=coupling), "block", codes=2)
    assert distance(SJD(3, coupling=coupling), mutants.ShortSighted(), codes=2) > 1e-3


@pytest.mark.parametrize("state", (mutants.OldLawOfSurvivors, mutants.NewLawOfOldValues))
def test_wrong_bookkeeping_of_survivors_shows(state: type) -> None:
    assert distance(mutants.With(SJD(3, coupling="maximal"), state)) > 1e-3


def test_wrong_recorded_distributions_are_detected() -> None:
    assert distance(mutants.With(SJD(3), mutants.OffByOne)) > 1e-3
    assert distance(mutants.With(SJD(3, "repeat_left"), mutants.UniformRecord)) > 1e-3


@pytest.mark.parametrize("tau", (0.5, 1.0))
def test_keeping_confident_values_shows(tau: float) -> None:
    with patch("mmspec.imagegen.jacobi.jacobi_drafts.maximal_law", mutants.keep_above(tau)):
        assert distance(SJD(3, coupling="maximal")) > 1e-3


def test_tables_of_forced_values() -> None:
    tables = tables_of(Geometry(((1, 2),), row_end=3), 3, 0)
    assert torch.equal(tables[2][:, 3], torch.ones(16, dtype=torch.float64))
