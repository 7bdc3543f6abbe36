"""Random numbers are a pure function of (seed, round, purpose, step, lane), uniform, and unrelated to each other."""

from __future__ import annotations

import itertools

import pytest
import torch

from mmspec.core.round.keys import Keys, Purpose
from mmspec.kernels.counter import mix, mix_int, uniforms_reference


def test_rows_do_not_depend_on_the_batch() -> None:
    whole = Keys.of(7, 6).uniform(Purpose.DRAFT, 5)
    assert torch.equal(Keys.of(7, 3).uniform(Purpose.DRAFT, 5), whole[:3])
    alone = Keys(Keys.of(7, 6).seeds[4:5])
    assert torch.equal(alone.uniform(Purpose.DRAFT, 5), whole[4:5])
    listed = Keys.of([3, 4, 5], 3).uniform(Purpose.ACCEPT, 2)
    assert torch.equal(Keys.of([4], 1).uniform(Purpose.ACCEPT, 2)[0], listed[1])


def test_more_lanes_do_not_move_the_first_lanes() -> None:
    keys = Keys.of(1, 2)
    assert torch.equal(keys.uniform(Purpose.ACCEPT, 3), keys.uniform(Purpose.ACCEPT, 9)[:, :3])
    assert torch.equal(keys.uniform(Purpose.ACCEPT, 2, 3).flatten(1), keys.uniform(Purpose.ACCEPT, 6))


def test_nothing_is_stateful_but_the_round() -> None:
    keys = Keys.of(1, 2)
    first = keys.uniform(Purpose.ACCEPT, 3)
    keys.gumbel(Purpose.DRAFT, 4), torch.rand(3)
    assert torch.equal(keys.uniform(Purpose.ACCEPT, 3), first)
    keys.round += 1
    assert not (keys.uniform(Purpose.ACCEPT, 3) == first).any()


def test_no_two_streams_share_a_number() -> None:
    seen = []
    for seed in (0, 1, 2):
        keys = Keys.of(seed, 4)
        for keys.round in range(6):
            for purpose in Purpose:
                seen += [keys.uniform(purpose, 40, step=step).flatten() for step in (0, 1, 2)]
    values = torch.cat(seen)
    assert len(values.unique()) == len(values)


def test_streams_are_uncorrelated() -> None:
    keys = Keys.of(5, 50_000)
    columns = [keys.uniform(purpose, 2, step=step) for purpose in Purpose for step in (0, 1)]
    keys.round = 1
    columns += [keys.uniform(purpose, 2) for purpose in Purpose]
    sample = torch.cat([*columns, Keys.of(6, 50_000).uniform(Purpose.DRAFT, 2)], 1) - 0.5
    correlation = 12 * sample.T @ sample / len(sample) - torch.eye(sample.shape[1])
    assert correlation.abs().max() < 6 / len(sample) ** 0.5
    # neighbouring rows and lanes
    lanes = Keys.of(5, 1).uniform(Purpose.DRAFT, 50_000)[0] - 0.5
    for series in (sample[:, 0], lanes):
        assert abs(float(12 * (series[1:] * series[:-1]).mean())) < 6 / len(series) ** 0.5


@pytest.mark.parametrize("source", ("rows", "lanes", "rounds"))
def test_numbers_are_uniform(source: str) -> None:
    if source == "rows":
        sample = Keys.of(2, 100_000).uniform(Purpose.ACCEPT, 1)[:, 0]
    elif source == "lanes":
        sample = Keys.of(2, 1).uniform(Purpose.ACCEPT, 100_000)[0]
    else:
        sample = torch.cat([Keys(Keys.of(2, 10).seeds, r).uniform(Purpose.ACCEPT, 10).flatten() for r in range(1000)])
    assert 0 <= sample.min() and sample.max() < 1
    count = (sample * 64).long().bincount(minlength=64).double()
    expected = len(sample) / 64
    assert ((count - expected).square() / expected).sum() < 63 + 10 * 126**0.5


def test_derived_distributions_have_their_moments() -> None:
    keys = Keys.of(3, 200)
    normal, gumbel = keys.normal(Purpose.BONUS, 1000), keys.gumbel(Purpose.DRAFT, 1000)
    assert normal.dtype == gumbel.dtype == torch.float32 and normal.isfinite().all() and gumbel.isfinite().all()
    assert abs(float(normal.mean())) < 0.012 and abs(float(normal.var()) - 1) < 0.02
    assert abs(float(gumbel.mean()) - 0.5772) < 0.015 and abs(float(gumbel.var()) - torch.pi**2 / 6) < 0.04


def test_noise_of_a_position_is_the_same_in_every_round_and_batch() -> None:
    keys, position = Keys.of(3, 4), torch.tensor([[0, 1, 5], [2, 3, 4], [0, 0, 9], [7, 8, 9]])
    noise = keys.gumbel_at(position, 6)
    keys.round = 17
    assert torch.equal(keys.gumbel_at(position, 6), noise) and noise.dtype == torch.float32
    assert torch.equal(Keys(keys.seeds[2:3]).gumbel_at(position[2:3], 9)[..., :6], noise[2:3])
    assert torch.equal(keys.gumbel_at(position[:, 1:2], 6), noise[:, 1:2])
    assert torch.equal(noise[2, 0], noise[2, 1]) and not (noise[0, 0] == noise[2, 0]).any()


def test_noise_of_positions_is_gumbel_and_shares_no_number_with_the_rounds() -> None:
    keys, rows, places = Keys.of(4, 50), 50, 64
    noise = keys.gumbel_at(torch.arange(places).expand(rows, -1), 30)
    assert noise.isfinite().all() and abs(float(noise.mean()) - 0.5772) < 0.02
    assert abs(float(noise.var()) - torch.pi**2 / 6) < 0.06
    flat = noise.flatten(1).double()
    assert abs(float(torch.corrcoef(torch.stack((flat[0], flat[1])))[0, 1])) < 6 / flat.shape[1] ** 0.5
    assert abs(float(torch.corrcoef(torch.stack((flat[:, :-30].flatten(), flat[:, 30:].flatten())))[0, 1])) < 0.02
    drawn = set()
    for keys.round in range(3):
        for purpose in Purpose:
            drawn |= set(keys.gumbel(purpose, 30).flatten().tolist())
    assert len(drawn & set(noise.flatten().tolist())) < 0.01 * len(drawn)  # float32 repeats a few by chance


def test_normals_of_a_position_have_a_stream_of_their_own() -> None:
    keys, position = Keys.of(3, 40), torch.arange(50).expand(40, -1)
    noise = keys.normal_at(position, 30)
    assert noise.dtype == torch.float32 and noise.isfinite().all()
    assert abs(float(noise.mean())) < 0.02 and abs(float(noise.var()) - 1) < 0.03
    keys.round = 9
    assert torch.equal(keys.normal_at(position[:, 7:8], 12), noise[:, 7:8, :12])
    assert torch.equal(Keys(keys.seeds[5:6]).normal_at(position[:1], 30), noise[5:6])
    uniform = torch.special.ndtr(noise.double()).flatten()
    others = torch.exp(-torch.exp(-keys.gumbel_at(position, 30).double())).flatten()
    assert abs(float(torch.corrcoef(torch.stack((uniform, others)))[0, 1])) < 6 / len(others) ** 0.5


def test_seeds() -> None:
    assert not torch.equal(Keys.of(None, 2).seeds, Keys.of(None, 2).seeds)
    assert Keys.of(-3, 2).seeds.shape == (2,)
    with pytest.raises(ValueError, match="expected one int or 3 ints"):
        Keys.of([1, 2], 3)


def test_the_integer_mixer_matches_the_tensor_mixer() -> None:
    for number in (0, 1, -1, 12345678901234567, -(2**63), 2**63 - 1):
        assert mix_int(number) == int(mix(torch.tensor([number])))


def test_a_request_inside_another_has_streams_of_its_own() -> None:
    keys, seen = Keys.of(4, 3), []
    for inner in (keys, *(keys.child(number) for number in range(4)), keys.child(0).child(0)):
        seen += [inner.uniform(purpose, 50).flatten() for purpose in Purpose]
    numbers = torch.cat(seen)
    assert len(numbers.unique()) == len(numbers)
    assert torch.equal(keys.child(2).seeds[1:2], Keys(keys.seeds[1:2]).child(2).seeds)


def test_numbers_of_coming_rounds_are_the_rounds_own() -> None:
    """Small draws are made for several rounds at once; in whatever order they are asked for, they are those of one call."""
    rounds, counts = (0, 1, 2, 40, 3, 41, 2000), (1, 5, 2, 33)
    for rows in (1, 3, 700):
        shared = Keys.of(7, rows)
        for round, count in itertools.product(rounds, counts):
            alone = Keys.of(7, rows)
            alone.round = shared.round = round
            whole = uniforms_reference(alone.seeds, alone.stream(Purpose.ACCEPT), 64)
            assert torch.equal(shared.uniform(Purpose.ACCEPT, count), whole[:, :count])
            pairs = uniforms_reference(alone.seeds, alone.stream(Purpose.RESIDUAL), 2 * count).view(rows, count, 2)
            assert torch.equal(shared.uniform(Purpose.RESIDUAL, count, 2), pairs)
