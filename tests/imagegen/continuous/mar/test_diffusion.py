"""Schedules: what they keep of the training's steps, and that they are consistent."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.continuous.mar.diffusion import diffusion, kept_timesteps


def test_evenly_spaced_steps_hold_the_first_and_the_last() -> None:
    assert kept_timesteps("5").tolist() == [0, 250, 500, 749, 999]
    assert kept_timesteps(4).tolist() == [0, 333, 666, 999]
    assert kept_timesteps("1000").tolist() == list(range(1000))


def test_strided_steps_begin_at_0() -> None:
    assert kept_timesteps("ddim4").tolist() == [0, 250, 500, 750]
    assert kept_timesteps("ddim250").tolist() == list(range(0, 1000, 4))


def test_each_section_keeps_its_own_timesteps() -> None:
    assert kept_timesteps("2,3").tolist() == [0, 499, 500, 750, 999]


@pytest.mark.parametrize("given", ("", "1", "0", "1001", "ddim3.5", "ddim7000", "ddim999", "ten", "-5", "600,2", "5,0"))
def test_other_forms_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"num_sampling_steps: expected 2 to 1000 steps such as '100', .* got"):
        kept_timesteps(given)


def test_a_respaced_schedule_has_the_same_levels() -> None:
    whole = diffusion()
    for given in ("100", "ddim50", "20,30"):
        kept = diffusion(given)
        torch.testing.assert_close(kept.alphas_cumprod, whole.alphas_cumprod[kept.timestep_map], rtol=1e-9, atol=0)
    assert whole.steps == 1000 and diffusion("100") is diffusion("100")


def test_the_posterior_is_bayes() -> None:
    tables = diffusion("20")
    t = torch.arange(1, 20)
    beta, before = tables.betas[t], tables.alphas_cumprod_prev[t]
    precision = 1 / (1 - before) + (1 - beta) / beta  # of x_{t-1} given x_0 and x_t
    torch.testing.assert_close(tables.posterior_variance[t], 1 / precision)
    torch.testing.assert_close(tables.posterior_mean_coef1[t], before.sqrt() / (1 - before) / precision)
    torch.testing.assert_close(tables.posterior_mean_coef2[t], (1 - beta).sqrt() / beta / precision)
    assert tables.posterior_variance[0] == 0
    assert tables.posterior_log_variance_clipped[0] == tables.posterior_log_variance_clipped[1]
