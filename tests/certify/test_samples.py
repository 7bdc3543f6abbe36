"""Steps that draw their own numbers: right ones pass, wrong ones fail by name, and the stated power is what it is."""

from __future__ import annotations

import json
import random

import numpy
import pytest
import torch

from mmspec.certify import certify
from mmspec.certify.cases import case_of, chain_of
from mmspec.certify.runners import BATCH, STATE
from mmspec.certify.samples import chi_square, sample, visible_distance
from mmspec.certify.step import AcceptStep
from tests.certify import planted

FEW = dict(samples=20_000, laws=("random", "far"))


def test_a_right_step_passes() -> None:
    found = certify(planted.draws, **FEW)
    assert found.exact and found.method == "samples" and found.behaves_like is None
    assert all(case.visible < 0.05 and case.statistic <= case.limit for case in found.cases)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (planted.draws_zeros, "always accepts"),
        (planted.draws_and_keeps, STATE),
        (planted.draws_for_the_first_row, BATCH),
        (planted.DrawsHaunted, STATE),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_wrong_step_is_named(step: object, name: str) -> None:
    found = certify(step, **FEW)
    assert not found.exact and found.behaves_like == name


def test_mixed_uniforms_are_sampled_with_a_note() -> None:
    found = certify(planted.mixes, samples=5000, laws=("random",))
    assert found.exact and found.method == "samples"
    assert any("mixed with another" in note and "sampled" in note for note in found.notes)


def test_a_step_with_different_answers_in_a_second_call_is_sampled() -> None:
    found = certify(planted.ignores_its_uniforms, samples=5000, laws=("random",))
    assert found.exact and found.method == "samples" and "in a second call" in found.notes[0]


def test_picked_drafts_are_tested_each_by_itself() -> None:
    case = case_of("random", chain_of(2), 3, 0)
    picked = case_of("random", type(chain_of(1))((0, 1), "deterministic"), 3, 0)
    assert sample(AcceptStep(planted.draws), case, 1000, 100, 0).counts.shape == (1, 27)
    assert sample(AcceptStep(planted.draws), picked, 900, 100, 0).counts.sum(-1).tolist() == [100.0] * 9


def test_the_generators_go_on_where_they_were() -> None:
    def state() -> tuple:
        return torch.get_rng_state().sum().item(), random.getstate(), numpy.random.get_state()[1].sum()

    before = state()
    certify(planted.draws, samples=1000, laws=("random",))
    assert state() == before


def test_a_deviation_of_the_stated_size_shows() -> None:
    # the hardest law of its distance: all cells off by the same share, half up and half down
    cells, count = 26, 20_000
    flat = torch.full((cells,), 1 / cells, dtype=torch.float64)
    tv = visible_distance(count, cells - 1)
    off = flat * (1 + 2 * tv * torch.tensor([1.0, -1.0]).repeat(cells // 2))
    dice, failed = torch.Generator().manual_seed(0), []
    for law in (flat, off):
        drawn = torch.multinomial(law.repeat(300, 1), count, replacement=True, generator=dice)
        failed.append(sum(not chi_square(torch.bincount(row, minlength=cells), flat * count).passed for row in drawn))
    assert failed[0] == 0 and failed[1] >= 290


def test_an_impossible_value_is_reported_in_valid_json() -> None:
    found = certify(planted.draws_zeros_and_takes_the_last, samples=2000, laws=("p with zeros",))
    assert not found.exact and found.cases[0].statistic is None
    json.dumps(found.to_dict(), allow_nan=False)
