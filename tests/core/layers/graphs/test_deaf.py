"""The stretch in which nothing is asked notices whoever asks, so that a round that passes it asks nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mmspec.core.layers.graphs import HostReadError, recorded_operations
from tests.core.layers.graphs.deaf import Asked, deaf

X = torch.arange(6.0).view(2, 3)
ASKING: dict[str, Callable] = {
    "item": lambda: X.sum().item(),
    "float": lambda: float(X.sum()),
    "int": lambda: int(X.sum()),
    "index": lambda: [1, 2][X.argmin()],
    "bool": lambda: bool(X.sum() > 0),
    "if": lambda: 1 if (X > 0).any() else 0,
    "any of rows": lambda: any(X.sum(-1) > 0),
    "in": lambda: 3 in X,
    "tolist": lambda: X.tolist(),
    "numpy": lambda: X.numpy(),
    "nonzero": lambda: X.nonzero(),
    "torch.nonzero": lambda: torch.nonzero(X),
    "where": lambda: torch.where(X > 0),
    "mask": lambda: X[X > 0],
    "mask of rows": lambda: X[torch.tensor([True, False])],
    "writes through a mask": lambda: X.clone().__setitem__(X > 3, X[0, :2]),
    "one number as an index": lambda: X[X.argmin()],
    "masked_select": lambda: X.masked_select(X > 0),
    "unique": lambda: X.unique(),
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "bincount": lambda: torch.bincount(X.long().flatten()),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_who_asks_is_noticed(ask: Callable) -> None:
    ask()
    with pytest.raises(Asked), deaf():
        ask()


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_the_proof_of_a_round_notices_it_too(ask: Callable) -> None:
    with pytest.raises(HostReadError):
        recorded_operations(ask)


def test_code_without_host_reads_passes_and_the_context_restores_torch() -> None:
    def quiet() -> torch.Tensor:
        y = torch.where(X > 1, X, 0.0).masked_fill(X > 4, -1.0)
        y[:, torch.tensor([0, 2])] = y[:, :2] * 2
        return y.gather(1, y.argmax(-1, keepdim=True))

    expected = quiet()
    with deaf():
        found = quiet()
    assert torch.equal(found, expected) and bool((found == expected).all())
    assert torch.tensor([X[0, 0], X[0, 1]]).shape == (
        2,
    )  # which takes numbers, while a Tensor is no sequence of Python
