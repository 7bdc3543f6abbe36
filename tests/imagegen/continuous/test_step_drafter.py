"""What is held of a prediction gives back the law it was read from, and other steps' laws around the same clean token."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Head
from mmspec.imagegen.continuous.head_sampling.sde_head import SDEHead
from tests.imagegen.continuous.heads import Field, WaveHead
from tests.imagegen.continuous.tiny import transformer


def heads() -> dict[str, Head]:
    field = lambda x, t, z: torch.sin(x + t.reshape(-1, 1) / 1000 + z[:, :3])  # noqa: E731
    return {
        "table": WaveHead(6, 3),
        "predicted scales": WaveHead(6, 3, network_variance=True),
        "mar": transformer().head("ddim4"),
        "mar, even steps": transformer().head(25),
        "sde with a plain last step": SDEHead(Field(field), 3, steps=7),
        "sde": SDEHead(Field(field), 3, steps=7, span=1.0),
    }


def laid_out(head: Head, held: object, x: torch.Tensor, step: torch.Tensor) -> Gaussian:
    """The law of one step at state x [R, d], step int64 [R]."""
    ahead = head.step_drafter().ahead(held, step[:, None])
    return Gaussian(ahead.pull[:, 0] * x + ahead.shift[:, 0], ahead.log_scale[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("name", list(heads()))
def test_an_anchored_distribution_is_recovered_at_its_own_state(name: str) -> None:
    head = heads()[name]
    z = 0.3 * torch.randn(head.steps, 24)
    x, step = torch.randn(head.steps, head.dim), torch.arange(head.steps)
    law = head.gaussian(x, step, head.about(z))
    found = laid_out(head, head.step_drafter().read(law, x, step), x, step)
    torch.testing.assert_close(found.mean, law.mean, rtol=1e-4, atol=1e-4)
    drawn = law.log_scale.isfinite()
    torch.testing.assert_close(found.log_scale[drawn], law.log_scale[drawn], rtol=1e-4, atol=1e-4)
    assert drawn[1:].all()  # drafts are made of all steps but the last


@pytest.mark.parametrize("span", (1.0, 0.96))
def test_the_tables_of_a_flow_are_those_of_its_clean_token(span: float) -> None:
    """A field that always points at one token is held exactly from any step to any other."""
    token = torch.tensor([[0.5, -1.0, 2.0]])
    head = SDEHead(Field(lambda x, t, z: (token - x) / (1 - t.reshape(-1, 1) / 1000)), 3, steps=7, span=span)
    x, first = torch.randn(head.steps, 3), torch.full((head.steps,), head.steps - 1)
    held = head.step_drafter().read(head.gaussian(x, first, head.about(x)), x, first)
    torch.testing.assert_close(held.clean, token.expand_as(x), rtol=1e-4, atol=1e-4)
    step, other = torch.arange(head.steps), torch.randn(head.steps, 3)
    torch.testing.assert_close(
        laid_out(head, held, other, step).mean, head.gaussian(other, step, head.about(x)).mean, rtol=1e-3, atol=1e-3
    )
