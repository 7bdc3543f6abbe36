"""Transformer, head and denoising steps compute what MAR's description says, written out beside them."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.continuous.mar.diffusion import kept_timesteps
from tests.imagegen.continuous.mar.reference import condition, head, reverse_step
from tests.imagegen.continuous.tiny import SIZES, transformer

CLOSE = dict(atol=2e-5, rtol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("masked", (0, 1, 9, 16))
@pytest.mark.parametrize("label", (-1, 0, 4))
def test_conditions_match_the_reference(label: int, masked: int) -> None:
    model, tokens = transformer(), torch.randn(1, 16, 3)
    mask = torch.zeros(1, 16, dtype=torch.bool).index_fill(1, torch.randperm(16)[:masked], True)
    expected = condition(
        tokens[0], mask[0], label, model.state_dict(), (SIZES.encoder_num_heads, SIZES.decoder_num_heads)
    )
    torch.testing.assert_close(model(tokens, mask, torch.tensor([label]))[0], expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("scale", (None, 1.0, 3.5))
@pytest.mark.parametrize("respacing", ("ddim8", "20"))
def test_denoising_steps_match_the_reference(respacing: str, scale: float | None) -> None:
    model = transformer()
    state, made, kept = model.state_dict(), model.head(respacing), kept_timesteps(respacing).tolist()
    x, z = torch.randn(5, 3), torch.randn(2, 5, 24)
    for step in range(len(kept) - 2, 0, -1):  # the first amplifies, the last has a variance of its own
        out, null = (head(x, kept[step], one, state) for one in z)
        mean, log_variance = reverse_step(x, kept[step], kept[step - 1], out, None if scale is None else null, scale)
        guidance = None if scale is None else torch.full((5,), scale)
        law = made.gaussian(x, step, made.about(z[0] if scale is None else z), guidance)
        torch.testing.assert_close(law.mean, mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(2 * law.log_scale, log_variance, atol=1e-4, rtol=1e-4)
    mean, _ = reverse_step(x, kept[0], None, head(x, kept[0], z[0], state), None, 1.0)
    last, above = (
        made.gaussian(x, 0, made.about(z[0])),
        reverse_step(x, kept[1], kept[0], torch.full((5, 6), -1.0), None, 1.0)[1],
    )
    torch.testing.assert_close(last.mean, mean, atol=1e-4, rtol=1e-4)
    share = (head(x, kept[0], z[0], state)[:, 3:] + 1) / 2  # below, the variance of the step above stands in for none
    beta = made.schedule.betas[0].log().float()
    torch.testing.assert_close(2 * last.log_scale, share * beta + (1 - share) * above, atol=1e-4, rtol=1e-4)
