"""The beam over a block's lattice: brute force, the drafter alone, candidates, and rows of their own length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import log
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from mmspec.core.drafting.lattice import LatticeSearch, best_path

V, DEPTH = 4, 3
LAWS = torch.tensor([[0.4, 0.35, 0.15, 0.1], [0.5, 0.3, 0.15, 0.05], [0.31, 0.3, 0.29, 0.1]])
WIDE = dict(beam=V**DEPTH, mass=1.0, most=V)


class Block:
    """A state whose levels are independent, or are read behind the token before: `laws` float [levels, V] or [.., V, V]."""

    independent, ids = True, None

    def __init__(self, laws: Tensor, rows: int = 1, conditional: bool = False):
        self.laws, self.conditional = laws, conditional
        self.root = torch.zeros(rows, 1)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        law = self.laws[depth - 1]
        return (law[out[..., 0].long()] if self.conditional else law.expand(*out.shape[:2], -1)).log()

    def expand(self, token: Tensor, hidden: Tensor, *_: object) -> Tensor:
        return token[..., None].float()


def bigrams(row: int, path: Sequence[int]) -> Mapping[int, float] | None:
    """Known distributions behind some tokens; the text of row r ends in token r."""
    last = path[-1] if path else row
    return {0: {1: 0.7, 2: 0.3}, 1: {3: 0.6, 0: 0.4}, 2: {2: 1.0}}.get(last)


def found(
    laws: Tensor, rooms: Sequence[int] = (DEPTH,), conditional: bool = False, **settings: object
) -> list[list[int]]:
    rows = len(rooms)
    target = SimpleNamespace(batch=rows, device="cpu", pending=torch.zeros(rows, dtype=torch.long))
    return best_path(Block(laws, rows, conditional), target, LatticeSearch(**settings), bigrams, rooms).tolist()


def score_of(path: Sequence[int], laws: Tensor, share: float, trust: float, conditional: bool) -> float:
    total = 0.0
    for place, token in enumerate(path):
        q = laws[place, path[place - 1] if place else 0] if conditional else laws[place]
        known, own = bigrams(0, path[:place]), float(q[token])
        mixed = own if known is None else trust * known.get(token, 0.0) + (1 - trust) * own
        total += share * log(own) + (1 - share) * log(mixed)
    return total


@pytest.mark.parametrize("conditional", (False, True), ids=("independent", "conditional"))
@pytest.mark.parametrize("share", (0.0, 0.3, 0.5, 0.8))
@pytest.mark.parametrize("trust", (0.5, 0.9))
def test_a_wide_beam_finds_the_best_of_all_paths(conditional: bool, share: float, trust: float) -> None:
    torch.manual_seed(3)
    laws = torch.rand(DEPTH, V, V).softmax(-1) if conditional else LAWS
    best = max(product(range(V), repeat=DEPTH), key=lambda path: score_of(path, laws, share, trust, conditional))
    path = found(laws, conditional=conditional, share=share, trust=trust, **WIDE)[0]
    assert path == list(best)
    if not conditional:
        assert path != LAWS.argmax(-1).tolist()  # the n-grams decide


@pytest.mark.parametrize("beam", (1, 3))
def test_the_drafter_alone_takes_the_likeliest_token_of_every_position(beam: int) -> None:
    assert found(LAWS, share=1.0, beam=beam) == [LAWS.argmax(-1).tolist()]


def test_a_beam_sees_further_than_a_single_path() -> None:
    laws, settings = torch.full((DEPTH, V), 1 / V), dict(share=0.0, trust=0.9, mass=1.0)
    single, several = (found(laws, beam=beam, **settings)[0] for beam in (1, 8))
    assert single[:2] == [1, 3] and several == [2, 2, 2]  # 0.7 * 0.6 * 0.25 against 0.3 * 1 * 1, but for the trust
    assert score_of(several, laws, 0.0, 0.9, False) > score_of(single, laws, 0.0, 0.9, False)


def test_candidates_are_the_fewest_tokens_with_the_mass() -> None:
    # token 3 of the first position is the n-grams' favourite behind token 1, but no candidate: 0.4 + 0.35 + 0.15 >= 0.8
    settings = dict(share=0.0, trust=0.9, beam=8)
    assert found(LAWS, (1,), most=V, mass=0.8, **settings) == [[1]]
    assert found(LAWS, (1,), most=1, mass=0.8, **settings) == found(LAWS, (1,), most=V, mass=1e-6, **settings) == [[0]]
    narrow = found(LAWS, (2, 2), most=V, mass=0.3, **settings)  # the first candidate is always there
    assert narrow == [[0, 0], [0, 0]]


def test_rows_end_where_their_room_does_and_do_not_meet() -> None:
    settings = dict(share=0.3, trust=0.9, beam=4, mass=1.0)
    together = found(LAWS, (3, 1, 2), **settings)
    assert together[1][1:] == [0, 0] and together[2][2:] == [0]
    for row, room in enumerate((3, 1, 2)):
        rooms = [1] * row + [room]
        assert found(LAWS, rooms, **settings)[row][:room] == together[row][:room]


def test_settings_are_checked() -> None:
    for wrong in (dict(beam=0), dict(mass=0.0), dict(share=1.5), dict(trust=1.0)):
        with pytest.raises(ValueError, match="expected"):
            LatticeSearch(**wrong)
