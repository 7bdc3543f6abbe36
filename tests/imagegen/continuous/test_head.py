"""Heads: one walk through their Gaussians, whatever the head."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Head, sample
from mmspec.imagegen.continuous.head_sampling.sde_head import SDEHead
from mmspec.imagegen.continuous.mar import diffusion_head
from mmspec.imagegen.continuous.mar.diffusion import diffusion, thinned
from mmspec.imagegen.continuous.mar.diffusion_head import DenoisingMLP, DiffusionHead
from tests.imagegen.continuous.tiny import redrawn


def heads() -> dict[str, Head]:
    return {
        "diffusion": DiffusionHead(redrawn(DenoisingMLP(3, 6, 5, 2, 16)), diffusion("ddim5")),
        "sde": SDEHead(redrawn(DenoisingMLP(3, 3, 5, 2, 16)), 3, steps=4, span=1.0),
        "sde with a plain last step": SDEHead(redrawn(DenoisingMLP(3, 3, 5, 2, 16)), 3, steps=4, span=0.96),
    }


every_head = pytest.mark.parametrize("name", heads())


def inputs(head: Head, rows: int = 4) -> tuple[torch.Tensor, ...]:
    return torch.randn(2, rows, 5), torch.randn(rows, 3), torch.randn(rows, head.steps, 3)


@every_head
@torch.no_grad()
def test_a_sample_is_the_walk_written_out(name: str) -> None:
    head = heads()[name]
    (z, _), x, noise = inputs(head)
    walk = sample(head, z, x, noise, temperature=0.7)
    log_det = torch.zeros(4)
    for step in reversed(range(1, head.steps)):
        law = head.gaussian(x, step, head.about(z))
        scale = 0.7 * law.log_scale.exp()
        x, log_det = law.mean + scale * noise[:, step], log_det + scale.log().sum(-1)
    last = head.gaussian(x, 0, head.about(z))
    torch.testing.assert_close(walk.state, x)
    torch.testing.assert_close(walk.log_det, log_det)
    torch.testing.assert_close(walk.last.mean, last.mean)
    drawn = last.mean + (0.7 * last.log_scale.exp() * noise[:, 0] if head.last_noise else 0)
    torch.testing.assert_close(walk.value, drawn)
    assert head.last_noise == (name == "sde")


@every_head
@torch.no_grad()
def test_rows_may_stand_at_different_steps(name: str) -> None:
    head = heads()[name]
    z, x, _ = inputs(head)
    step, guidance = torch.tensor([0, head.steps - 1, 1, 0]), torch.tensor([1.0, 2.0, 0.5, 3.0])
    for at, scale in ((z[0], None), (z, guidance)):
        law = head.gaussian(x, step, head.about(at), scale)
        for row, number in enumerate(step.tolist()):
            mine = slice(row, row + 1)
            alone = head.gaussian(x[mine], number, head.about(at[..., mine, :]), None if scale is None else scale[mine])
            torch.testing.assert_close(law.mean[mine], alone.mean)
            torch.testing.assert_close(law.log_scale[mine], alone.log_scale)


@every_head
@torch.no_grad()
@pytest.mark.parametrize("ahead", (1, 7, 512))
def test_a_token_may_have_several_states(name: str, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps the modulations are computed for at once."""
    monkeypatch.setattr(diffusion_head, "TABLE_SIZE", ahead)
    head = heads()[name]
    z, _, _ = inputs(head)
    row, step = torch.tensor([2, 0, 2, 3, 3, 0]), torch.tensor([1, 0, 2, 1, 0, head.steps - 1])
    x, about = torch.randn(6, 3), head.about(z)
    law = head.gaussian(x, step, about, torch.full((6,), 1.5), row)
    for state, (token, number) in enumerate(zip(row.tolist(), step.tolist(), strict=True)):
        alone = head.gaussian(x[state, None], number, head.about(z[:, token, None]), torch.full((1,), 1.5))
        torch.testing.assert_close(law.mean[state, None], alone.mean)
        torch.testing.assert_close(law.log_scale[state, None], alone.log_scale)


@every_head
@torch.no_grad()
def test_guidance_1_is_the_condition_alone_and_0_the_null_mean(name: str) -> None:
    head = heads()[name]
    z, x, _ = inputs(head)
    cond, null = head.gaussian(x, 2, head.about(z[0])), head.gaussian(x, 2, head.about(z[1]))
    one, zero = (head.gaussian(x, 2, head.about(z), torch.full((4,), scale)) for scale in (1.0, 0.0))
    torch.testing.assert_close(one.mean, cond.mean)
    torch.testing.assert_close(zero.mean, null.mean)
    for law in (one, zero):  # the variance is never guided
        torch.testing.assert_close(law.log_scale, cond.log_scale)


@every_head
@torch.no_grad()
def test_only_a_network_variance_depends_on_the_state(name: str) -> None:
    head = heads()[name]
    z, x, _ = inputs(head)
    one, other = head.gaussian(x, 1, head.about(z[0])), head.gaussian(x + 1, 1, head.about(z[1]))
    same = torch.equal(one.log_scale, other.log_scale)
    assert same != head.network_variance


@every_head
@torch.no_grad()
def test_a_thinned_head_takes_fewer_steps_and_none_noisier_than_the_whole(name: str) -> None:
    head = heads()[name]
    assert head.thinned(head.steps) is head
    short = head.thinned(3)
    (z, _), x, noise = inputs(short)
    assert short.steps == 3 and sample(short, z, x, noise).value.isfinite().all()
    with pytest.raises(ValueError, match=f"steps: expected 2 to {head.steps} of the head's, got {head.steps + 1}"):
        head.thinned(head.steps + 1)


def test_a_thinned_schedule_keeps_steps_of_its_own_evenly_spaced() -> None:
    whole = diffusion("ddim50")
    assert thinned(whole, 5).timestep_map.tolist() == [0, 240, 480, 740, 980]
    torch.testing.assert_close(thinned(whole, 50).betas, whole.betas)
    torch.testing.assert_close(thinned(diffusion("1000"), 100).betas, diffusion("100").betas)
    with pytest.raises(ValueError, match="steps: expected 2 to 50 of the head's, got 1"):
        thinned(whole, 1)


def test_temperature_0_follows_the_means() -> None:
    head = heads()["sde"]
    (z, _), x, noise = inputs(head)
    walk = sample(head, z, x, noise, temperature=0.0)
    torch.testing.assert_close(walk.value, sample(head, z, x, torch.zeros_like(noise)).value)
    assert (walk.log_det == -math.inf).all()


def test_noise_of_another_shape_is_refused() -> None:
    head = heads()["sde"]
    (z, _), x, noise = inputs(head)
    with pytest.raises(ValueError, match=r"noise: expected \(4, 4, 3\) for 4 steps, got \(4, 3, 3\)"):
        sample(head, z, x, noise[:, 1:])


class Exact:
    """The denoising steps of a token that is N(m, 1) itself, in closed form, where a head has learned it."""

    def __init__(self, mean: float, respacing: str):
        self.mean, self.tables = mean, diffusion(respacing)
        self.steps, self.dim, self.network_variance, self.last_noise = self.tables.steps, 1, False, False

    def about(self, z: torch.Tensor) -> None:
        return None

    def gaussian(self, x: torch.Tensor, step: int, about: None, guidance: None = None) -> Gaussian:
        level = self.tables.alphas_cumprod[step].sqrt().float()
        clean = self.mean + level * (x - level * self.mean)  # E[x_0 | x_t], as the variance of x_t is 1
        coef1, coef2 = (
            table[step].float() for table in (self.tables.posterior_mean_coef1, self.tables.posterior_mean_coef2)
        )
        variance = self.tables.posterior_variance[step] + (self.tables.posterior_mean_coef1[step] ** 2) * (1 - level**2)
        return Gaussian(coef1 * clean + coef2 * x, variance.log().float().expand_as(x) / 2)


@pytest.mark.parametrize("respacing", ("10", "100"))
def test_the_schedule_samples_its_own_distribution(respacing: str) -> None:
    rows, head = 20000, Exact(1.5, respacing)
    noise = torch.randn(rows, head.steps, 1)
    value = sample(head, torch.zeros(rows, 1), torch.randn(rows, 1), noise).value
    assert abs(float(value.mean()) - 1.5) < 0.05
    # the last step's own spread is missing, no more than it
    assert 1 - float(diffusion(respacing).betas[0]) * 2 - 0.05 < float(value.var()) < 1.05
