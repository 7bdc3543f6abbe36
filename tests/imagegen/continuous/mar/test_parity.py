"""The public MAR's own numbers: conditioning, schedules, head, training loss and whole samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.continuous.head_sampling.head import sample
from mmspec.imagegen.continuous.head_sampling.sampling import GivenNoise
from mmspec.imagegen.continuous.mar.adapter import patchify, unpatchify
from mmspec.imagegen.continuous.mar.diffusion import diffusion
from mmspec.imagegen.continuous.mar.diffusion_head import DiffusionHead, timestep_embedding
from mmspec.imagegen.continuous.mar.load import mar_from_state_dict
from mmspec.imagegen.continuous.mar.pipeline import MARPipeline
from mmspec.imagegen.continuous.mar.training import head_loss, noised
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.continuous.masked_target import TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps
from tests.parity import case

FOLDER = "continuous_video"
CONFIG = {
    "img_size": 32, "vae_stride": 8, "patch_size": 1, "encoder_embed_dim": 64, "encoder_depth": 2, "encoder_num_heads": 4,
    "decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4, "mlp_ratio": 4, "vae_embed_dim": 4,
    "class_num": 10, "buffer_size": 8, "diffloss_d": 2, "diffloss_w": 64, "num_sampling_steps": "ddim10",
}  # fmt: skip
STEPS = [("100", step) for step in (0, 1, 2, 50, 99)] + [("10", step) for step in (0, 1, 5, 9)]
CLOSE = dict(atol=1e-5, rtol=1e-4)


def public_model() -> MAR:
    stored = case(f"{FOLDER}/a0_mar_tiny_weights")
    return mar_from_state_dict({name.removeprefix("w."): value for name, value in stored.items()}, CONFIG)


def within(found: Tensor, expected: Tensor, share: float) -> None:
    """The largest difference, relative to the largest value."""
    off = float((found.double() - expected.double()).abs().max() / expected.double().abs().max())
    assert off <= share, f"off by {off:.2e} of the largest value"


@torch.no_grad()
@pytest.mark.parametrize("masked", (16, 15, 10, 1, 0))
@pytest.mark.parametrize("branch", ("cond", "null"))
def test_conditioning_matches_the_public_code(branch: str, masked: int) -> None:
    public, model = case(f"{FOLDER}/a1_mar_conditioning"), public_model()
    mask = torch.zeros(2, 16, dtype=torch.bool).scatter(1, public["orders"][:, :masked], True)
    assert torch.equal(mask, public[f"mask_{masked}"].bool())
    labels = public["labels"] if branch == "cond" else torch.full((2,), -1)
    states, visible = model.encode(public["tokens"], mask, labels)
    torch.testing.assert_close(states, public[f"enc_{branch}_{masked}"], **CLOSE)
    torch.testing.assert_close(model.decode(states, visible), public[f"z_{branch}_{masked}"], **CLOSE)
    whatever = public["tokens"].masked_fill(mask[..., None], torch.nan)
    torch.testing.assert_close(model(whatever, mask, labels), public[f"z_{branch}_{masked}"], **CLOSE)


def test_patches_are_packed_channel_first() -> None:
    public = case(f"{FOLDER}/a1_mar_conditioning")
    assert torch.equal(patchify(public["patch2_in"], 2), public["patch2_tokens"])
    assert torch.equal(unpatchify(public["patch2_tokens"], 2, 2), public["patch2_in"])


@pytest.mark.parametrize("respacing", ("100", "10", "64", "5", "ddim10"))
def test_schedules_are_the_public_tables(respacing: str) -> None:
    public, tables = case(f"{FOLDER}/b_mar_head"), diffusion(respacing)
    names = [name.split(".")[1] for name in public if name.startswith(f"sched{respacing}.")]
    assert len(names) == 10
    for name in names:
        torch.testing.assert_close(getattr(tables, name), public[f"sched{respacing}.{name}"], rtol=1e-12, atol=0)


@torch.no_grad()
def test_time_embeddings_match_the_public_code() -> None:
    public, net = case(f"{FOLDER}/b_mar_head"), public_model().diffloss["net"]
    torch.testing.assert_close(timestep_embedding(public["t_emb_in"]), public["t_emb"], **CLOSE)
    torch.testing.assert_close(net.time_embed(public["t_emb_in"]), public["t_embed_mlp"], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(("respacing", "step"), STEPS)
def test_one_reverse_step_matches_the_public_code(respacing: str, step: int) -> None:
    public, net = case(f"{FOLDER}/b_mar_head"), public_model().diffloss["net"]
    name = f"s{respacing}_t{step}"
    head, x, z, noise = DiffusionHead(net, diffusion(respacing)), public["x"], public["z"], public["noise"]
    raw = net(x, diffusion(respacing).timestep_map[step].expand(len(x)), z)
    torch.testing.assert_close(raw, public[f"{name}.raw"], **CLOSE)
    both, scale = head.about(torch.stack((z, public["z_null"]))), torch.full((len(x),), 3.0)
    guided = head.gaussian(x, step, both, scale)
    for law, of, temperature in (
        (head.gaussian(x, step, head.about(z)), f"{name}.", 0.9),
        (guided, f"{name}.cfg3.", 1.0),
    ):
        within(law.mean, public[f"{of}mean"], 1e-3 if step == int(respacing) - 1 else 1e-5)
        torch.testing.assert_close(2 * law.log_scale, public[f"{of}log_variance"], **CLOSE)
        drawn = law.mean + (temperature * law.log_scale.exp() * noise if step else 0)
        key = f"{of}sample" if temperature == 1 else f"{of}sample_temp0.9"
        within(drawn, public[key], 1e-3 if step == int(respacing) - 1 else 1e-5)


@torch.no_grad()
def test_the_training_loss_matches_the_public_code() -> None:
    public, net = case(f"{FOLDER}/b_mar_head"), public_model().diffloss["net"]
    given = [public[f"train.{name}"] for name in ("x0", "t", "noise")]
    torch.testing.assert_close(noised(*given), public["train.x_t"], **CLOSE)
    loss = head_loss(net, *given, public["z"])
    torch.testing.assert_close(loss.noise, public["train.mse"], **CLOSE)
    torch.testing.assert_close(loss.variance, public["train.vb"], **CLOSE)
    torch.testing.assert_close(loss.noise + loss.variance, public["train.loss"], **CLOSE)


def test_a_whole_sample_matches_the_public_code() -> None:
    public, pipe = case(f"{FOLDER}/a2_mar_sample_cfg1"), MARPipeline(public_model())
    noise = GivenNoise(public["noise_init"], public["noise_steps"])
    run = pipe.start(public["labels"], guidance_scale=1.0, num_iter=6, order=public["order"], noise=noise)
    canvases, masks = [], []
    while True:
        masks.append(~run.target.known)
        more = run.step()
        canvases.append(run.target.values.clone())
        if not more:
            break
    assert torch.equal(torch.stack(masks), public["masks"].bool())
    torch.testing.assert_close(diffusion("ddim10").timestep_map, public["timestep_map"])
    within(torch.stack(canvases), public["tokens_after_step"], 1e-3)
    within(unpatchify(run.target.values, 1, 4), public["latent"], 1e-3)
    steps, guidance = cosine_steps(16, 6), TokenGuidance(1.0)
    assert [guidance.at(step.masked, 16) for step in steps] == public["cfg_per_step"].tolist()
    assert [step.last - step.first for step in steps] == public["predicted"][:, 0].sum(-1).tolist()


@torch.no_grad()
def test_z_of_every_step_matches_the_public_code() -> None:
    public, model = case(f"{FOLDER}/a2_mar_sample_cfg1"), public_model()
    before = torch.cat((torch.zeros_like(public["tokens_after_step"][:1]), public["tokens_after_step"][:-1]))
    for tokens, mask, z in zip(before, public["masks"].bool(), public["z"], strict=True):
        torch.testing.assert_close(model(tokens, mask, public["labels"]), z, **CLOSE)


@torch.no_grad()
def test_head_sampling_from_a_given_z_matches_the_public_code() -> None:
    public, head = case(f"{FOLDER}/a2_mar_sample_cfg1"), public_model().head()
    for z, written, after in zip(public["z"], public["predicted"], public["tokens_after_step"], strict=True):
        walk = sample(head, z[written], public["noise_init"][written], public["noise_steps"][written])
        within(walk.value, after[written], 1e-3)
