"""Whole captured rounds run on kernels behind the fence."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.kernels.dispatch import launches_shown
from mmspec.kernels.law import law_rows
from mmspec.vlm.drafters import DynamicTree, StaticTree
from mmspec.vlm.graphs import graph_slot, rounds
from mmspec.vlm.graphs.rounds import Rounds
from tests.kernels.interpreted.conftest import DEVICE
from tests.vlm.graphs.cases import GREEDY, WARM, chain, narrow, rows

SHAPES = {
    "plain": lambda: None,
    "chain": lambda: chain(kind="narrow"),
    "static tree": lambda: chain(kind="narrow").with_shape(StaticTree((0, 0, 0, 0, 3, 1))),
    "dynamic tree": lambda: chain(kind="narrow").with_shape(DynamicTree(5, 2, 2)),
}
pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("fence")]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are padded, and the steps of the interpreter itself are not those of a round."""
    monkeypatch.setattr(graph_slot, "check_capturable", lambda function: None)
    monkeypatch.setattr(rounds, "rows_for", lambda target: 1 << (target.batch - 1).bit_length())


@pytest.mark.parametrize(
    ("shape", "sampled", "batch"),
    [
        ("plain", True, 3),
        ("chain", False, 1),
        ("chain", True, 3),
        ("static tree", True, 3),
        ("dynamic tree", False, 3),
        ("dynamic tree", True, 1),
    ],
)
def test_a_captured_round_keeps_to_its_memory(shape: str, sampled: bool, batch: int) -> None:
    if DEVICE != "cpu":
        return  # the model lies on the CPU, where only the interpreter runs kernels
    settings = WARM if sampled else GREEDY
    out = mmspec.generate(
        narrow(), drafter=SHAPES[shape](), capture=Rounds(late=1), max_new_tokens=5, **settings, **rows(batch)
    )
    assert out.shape == (batch, 9 + 5)


def test_the_arguments_of_a_launch_are_shown() -> None:
    """The dispatcher of torch never sees them on a GPU, and a slot keeps them."""
    scores, shown = torch.zeros(1, 2, 9, device=DEVICE), []
    with launches_shown(shown.extend):
        law_rows(scores)
    law_rows(scores + 1)
    pointers = {argument.data_ptr() for argument in shown if isinstance(argument, torch.Tensor)}
    assert scores.data_ptr() in pointers and len(pointers) >= 2
