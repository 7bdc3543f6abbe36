"""A round that the device counts has the numbers of the round that the host counts."""

from __future__ import annotations

import torch

from mmspec.core.round.keys import CountedKeys, Keys, Purpose


def test_numbers_are_those_of_the_hosts_rounds() -> None:
    keys = Keys.of([5, 6, 7], 3)
    counted = CountedKeys(keys.seeds, torch.zeros((), dtype=torch.long))
    for round in (0, 1, 7, 12345):
        keys.round = round
        counted.round = counted.round * 0 + round
        for purpose in Purpose:
            assert torch.equal(keys.uniform(purpose, 4), counted.uniform(purpose, 4))
            assert torch.equal(keys.uniform(purpose, 2, 3, step=2), counted.uniform(purpose, 2, 3, step=2))
            assert torch.equal(keys.gumbel(purpose, 5), counted.gumbel(purpose, 5))
            assert keys.stream(purpose, 1) == int(counted.stream(purpose, 1))


def test_a_row_of_a_larger_seat_keeps_its_numbers() -> None:
    seeds = Keys.of(3, 5).seeds
    wide = CountedKeys(torch.cat([seeds, seeds.new_zeros(3)]), torch.tensor(9))
    narrow = CountedKeys(seeds, torch.tensor(9))
    assert torch.equal(wide.uniform(Purpose.DRAFT, 6)[:5], narrow.uniform(Purpose.DRAFT, 6))
