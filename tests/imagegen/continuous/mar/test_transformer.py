"""MAR's transformer: what it sees, and that rows of a batch are alone."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.continuous.mar.transformer import MAR
from tests.imagegen.continuous.tiny import SIZES, transformer


def given(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mask = torch.rand(rows, 16) < torch.tensor([0.9, 0.5, 0.2])[:rows, None]
    return torch.randn(rows, 16, 3), mask, torch.tensor([0, 4, -1])[:rows]


def test_rows_that_know_differently_much_are_each_as_alone() -> None:
    model, (tokens, mask, labels) = transformer(), given()
    assert len(set(mask.sum(1).tolist())) > 1
    z = model(tokens, mask, labels)
    for row in range(3):
        mine = slice(row, row + 1)
        torch.testing.assert_close(z[mine], model(tokens[mine], mask[mine], labels[mine]), atol=1e-5, rtol=1e-5)


def test_masked_tokens_are_never_read() -> None:
    model, (tokens, mask, labels) = transformer(), given()
    hidden = tokens.masked_fill(mask[..., None], torch.nan)
    assert torch.equal(model(hidden, mask, labels), model(tokens, mask, labels))
    other = tokens + (~mask)[..., None]
    assert not torch.isclose(model(other, mask, labels), model(tokens, mask, labels)).all(-1).any()


@pytest.mark.parametrize("masked", (0, 16))
def test_nothing_and_all_may_be_masked(masked: int) -> None:
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[:, :masked] = True
    assert transformer()(torch.randn(2, 16, 3), mask, torch.tensor([1, 2])).isfinite().all()


def test_every_position_has_a_condition_of_its_own_when_all_is_masked() -> None:
    z = transformer()(torch.zeros(1, 16, 3), torch.ones(1, 16, dtype=torch.bool), torch.tensor([1]))[0]
    assert len({tuple(row.tolist()) for row in z}) == 16


def test_labels_matter_and_none_is_not_a_class() -> None:
    tokens, mask, _ = given(1)
    z = [transformer()(tokens, mask, torch.tensor([label])) for label in (-1, 0, 4)]
    assert not any(torch.allclose(one, other) for one, other in ((z[0], z[1]), (z[1], z[2]), (z[0], z[2])))


@pytest.mark.poison
def test_a_fresh_model_starts_finite_and_its_head_at_nothing() -> None:
    model = MAR(SIZES)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    out = model.diffloss["net"](torch.randn(2, 3), torch.tensor([5, 900]), torch.randn(2, 24))
    assert (out == 0).all()
    assert all(parameter.requires_grad for parameter in model.parameters())
