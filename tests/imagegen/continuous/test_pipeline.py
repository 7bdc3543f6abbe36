"""MAR end to end: labels to pictures through the one round."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmspec.core.round.keys import Keys
from mmspec.core.round.rules import TokenWise
from mmspec.imagegen import MARPipeline
from mmspec.imagegen.continuous.head_sampling.head import sample
from mmspec.imagegen.continuous.head_sampling.sampling import GivenNoise, KeyedNoise
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.continuous.masked_target import TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps
from tests.house.tree import ROOT
from tests.imagegen.continuous.tiny import pipeline, transformer


def test_labels_become_pictures() -> None:
    out = pipeline(pixels=True)([1, 4, -1], seed=0, guidance_scale=2.0)
    assert [image.size for image in out.images] == [(8, 8)] * 3
    assert out.tokens.shape == (3, 16, 3) and out.tokens.dtype == torch.float32 and not (out.tokens == 0).any()
    stats = out.stats
    assert (stats.target_passes, stats.emitted, stats.exact, stats.drafter) == (4, [16] * 3, True, "none")
    assert stats.accept_length == 4 and out.errors == {} and stats.accepted == [[0, 0, 0]] * 4


def written_out(pipe: MARPipeline, label: int, seed: int, scale: float, schedule: str, count: int) -> torch.Tensor:
    """The published loop, one row, from the same order and noise."""
    model, keys = pipe.model.transformer, Keys.of([seed], 1)
    run = pipe.start([label], seed=[seed], num_iter=count)
    order, head = run.target.order[0], model.head()
    initial, noise = KeyedNoise(keys, head.steps, head.dim).at(torch.arange(16)[None])
    tokens, mask = torch.zeros(1, 16, 3), torch.ones(1, 16, dtype=torch.bool)
    for number in range(1, count + 1):
        masked = max(1, min(int(mask.sum()) - 1, math.floor(16 * math.cos(math.pi / 2 * number / count))))
        now = order[: int(mask.sum())] if number == count else order[masked : int(mask.sum())]
        z = [model(tokens, mask, torch.tensor([one]))[0, now] for one in (label, -1)]
        at = scale if schedule == "constant" else 1 + (scale - 1) * (16 - masked) / 16
        walk = sample(head, torch.stack(z), initial[0, now], noise[0, now], guidance=torch.full((len(now),), at))
        tokens[0, now], mask[0, now] = walk.value, False
    return tokens


@torch.no_grad()
@pytest.mark.parametrize("schedule", ("linear", "constant"))
@pytest.mark.parametrize("count", (1, 5, 16))
def test_plain_decoding_is_the_published_loop(count: int, schedule: str) -> None:
    pipe = pipeline()
    out = pipe([3, 0], seed=[5, 6], num_iter=count, guidance_scale=2.5, guidance_schedule=schedule, pixels=False)
    for row, (label, seed) in enumerate(((3, 5), (0, 6))):
        expected = written_out(pipe, label, seed, 2.5, schedule, count)
        torch.testing.assert_close(out.tokens[row : row + 1], expected, atol=1e-4, rtol=1e-4)


def test_rows_do_not_depend_on_the_batch() -> None:
    pipe = pipeline()
    whole = pipe([0, 1, 2], seed=[7, 8, 9], guidance_scale=3.0, pixels=False).tokens
    for row in range(3):
        alone = pipe([row], seed=[7 + row], guidance_scale=3.0, pixels=False).tokens
        torch.testing.assert_close(alone[0], whole[row], atol=1e-4, rtol=1e-4)


def test_seeds_settle_everything() -> None:
    pipe = pipeline()
    one, same, other = (pipe([1, 1], seed=seed, pixels=False).tokens for seed in (3, 3, 4))
    assert torch.equal(one, same) and not torch.isclose(one, other).any()
    assert not torch.isclose(one[0], one[1]).any()


def test_guidance_1_is_the_conditional_branch() -> None:
    pipe = pipeline(guidance_scale=2.0)
    alone = pipe([1], seed=0, guidance_scale=1.0, pixels=False).tokens
    nearly = pipe([1], seed=0, guidance_scale=1.0 + 1e-6, pixels=False).tokens
    torch.testing.assert_close(alone, nearly, atol=1e-3, rtol=1e-3)
    assert not torch.isclose(alone, pipe([1], seed=0, pixels=False).tokens).all()
    given = pipe([1], seed=0, guidance_scale=TokenGuidance(2.0, "linear"), pixels=False).tokens
    assert torch.equal(given, pipe([1], seed=0, pixels=False).tokens)


def test_no_class_under_guidance_is_no_class() -> None:
    pipe = pipeline()
    guided, plain = (pipe([-1], seed=0, guidance_scale=s, pixels=False).tokens for s in (4.0, 1.0))
    torch.testing.assert_close(guided, plain, atol=1e-4, rtol=1e-4)


def test_temperature_scales_the_noise_of_the_steps() -> None:
    pipe = pipeline()
    still = pipe([1], seed=0, temperature=0, guidance_scale=1.0, pixels=False).tokens
    noise = KeyedNoise(Keys.of(0, 1), 4, 3).at(torch.arange(16)[None])
    silent = GivenNoise(noise[0], torch.zeros_like(noise[1]))
    assert torch.equal(still, pipe([1], seed=0, guidance_scale=1.0, noise=silent, pixels=False).tokens)
    half = GivenNoise(noise[0], 0.5 * noise[1])
    expected = pipe([1], seed=0, guidance_scale=1.0, noise=half, pixels=False).tokens
    found = pipe([1], seed=0, guidance_scale=1.0, temperature=0.5, pixels=False).tokens
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def spoil(pipe: MARPipeline, label: int) -> None:
    with torch.no_grad():
        pipe.model.transformer.class_emb.weight[label] = torch.nan


def test_nan_stops_its_row_and_leaves_the_others() -> None:
    pipe = pipeline(pixels=True)
    whole = pipe([0, 1, 2], seed=[1, 2, 3], guidance_scale=2.0)
    spoil(pipe, 1)
    out = pipe([0, 1, 2], seed=[1, 2, 3], guidance_scale=2.0)
    assert list(out.errors) == [1] and "after 0 of 16 values; the row stopped there" in out.errors[1]
    assert out.images[1] is None and (out.tokens[1] == 0).all() and out.stats.emitted == [16, 0, 16]
    torch.testing.assert_close(out.tokens[[0, 2]], whole.tokens[[0, 2]], atol=1e-4, rtol=1e-4)
    assert [row[1] for row in out.stats.accepted] == [0, None, None, None]


def test_nan_midway_leaves_the_earlier_values() -> None:
    pipe = pipeline()
    run = pipe.start([0, 1], seed=[1, 2], guidance_scale=1.0)
    run.step()
    run.target.noise = Spoiled(run.target.noise, row=0)
    before = run.target.values.clone()
    stats = run.run()
    filled = run.target.filled[0]
    assert 0 < filled < 16 and stats.emitted == [filled, 16] and list(run.target.errors) == [0]
    assert torch.equal(run.target.values[0], before[0])
    torch.testing.assert_close(
        run.target.values[1:],
        pipe([0, 1], seed=[1, 2], guidance_scale=1.0, pixels=False).tokens[1:],
        atol=1e-4,
        rtol=1e-4,
    )


class Spoiled:
    """Noise that is NaN in one row."""

    def __init__(self, noise: KeyedNoise, row: int):
        self.noise, self.row, self.steps, self.dim = noise, row, noise.steps, noise.dim

    def at(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        initial, noise = self.noise.at(position)
        return initial.index_fill(0, torch.tensor(self.row), torch.nan), noise


def test_the_listener_hears_every_round() -> None:
    heard = []
    pipeline()([0, 1], seed=0, pixels=False, listener=lambda row, filled: heard.append((row, filled)))
    steps = cosine_steps(16, 4)
    assert heard == [(row, 16 - step.first) for step in steps for row in (0, 1)]


def test_a_pipeline_comes_back(tmp_path: Path) -> None:
    pipe = pipeline(pixels=True, guidance_scale=1.5, guidance_schedule="constant", num_iter=5)
    pipe.save_pretrained(tmp_path / "pipe")
    names = {p.relative_to(tmp_path / "pipe").as_posix() for p in (tmp_path / "pipe").rglob("*") if p.is_file()}
    assert names == {
        "model_index.json",
        "transformer/config.json",
        "transformer/model.safetensors",
        "vae/config.json",
        "vae/model.safetensors",
    }
    again = MARPipeline.from_pretrained(tmp_path / "pipe")
    assert (again.guidance_scale, again.guidance_schedule, again.num_iter, again.image_size) == (1.5, "constant", 5, 8)
    one, two = (p([1, 2], seed=3) for p in (pipe, again))
    assert torch.equal(one.tokens, two.tokens) and one.stats.target_passes == 5
    assert [x.tobytes() for x in one.images] == [x.tobytes() for x in two.images]
    low = again.to(dtype=torch.bfloat16)
    assert low.model.dtype == torch.bfloat16 and low.model.vae.dtype == torch.float32
    assert low([1], seed=0).images[0].size == (8, 8)


def test_a_pipeline_without_an_autoencoder_comes_back_too(tmp_path: Path) -> None:
    pipeline(pixels=True).save_pretrained(tmp_path)
    pipe = pipeline()
    pipe.save_pretrained(tmp_path)
    again = MARPipeline.from_pretrained(tmp_path)
    assert again.model.vae is None
    with pytest.raises(ValueError, match="vae: expected an autoencoder for pixels"):
        again([1])
    (tmp_path / "model_index.json").unlink()
    assert MARPipeline.from_pretrained(tmp_path).model.vae is not None


def test_encoded_pictures_are_tokens() -> None:
    model, images = pipeline(pixels=True).model, torch.rand(2, 3, 8, 8) * 2 - 1
    law = model.vae.encode(images).latent_dist
    noise = torch.randn(2, 3, 4, 4)
    tokens = model.encode(images, noise)
    expected = (law.mean + law.std * noise) * 0.2325
    torch.testing.assert_close(tokens, expected.flatten(2).transpose(1, 2))
    torch.testing.assert_close(model.encode(images), law.mean.flatten(2).transpose(1, 2) * 0.2325)
    pixels = model.decode(tokens)
    torch.testing.assert_close(pixels, ((model.vae.decode(expected / 0.2325).sample + 1) / 2).clamp(0, 1))
    with pytest.raises(ValueError, match=r"images: expected \[B, 3, 8, 8\]"):
        model.encode(images[..., :4])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": 5}, r"prompts: expected labels from 0 to 4 \(-1 for none\), got \[5\]"),
        ({"prompts": -2}, "prompts: expected labels"),
        ({"prompts": "a star"}, "prompts: expected class labels"),
        ({"temperature": -1.0}, "temperature: expected a number from 0 to 1000"),
        ({"temperature": float("nan")}, "temperature: expected"),
        ({"guidance_scale": -1.0}, "guidance_scale: expected"),
        ({"guidance_schedule": "cosine"}, "guidance_schedule: expected one of"),
        (
            {"guidance_scale": TokenGuidance(2.0), "guidance_schedule": "constant"},
            "guidance_schedule: expected None beside a TokenGuidance",
        ),
        ({"num_iter": 0}, "num_iter: expected"),
        ({"num_sampling_steps": "1"}, "num_sampling_steps: expected 2 to 1000"),
        ({"rule": "token"}, "rule: expected no rule or 'exact'"),
        ({"decoding": "plain"}, "decoding: expected one of ar, head, cspd, stack, scheduled, got 'plain'"),
        ({"order": torch.zeros(1, 16, dtype=torch.long)}, "order: expected a permutation"),
        ({"order": torch.arange(15)[None]}, "order: expected a permutation"),
        (
            {"noise": GivenNoise(torch.zeros(1, 16, 3), torch.zeros(1, 16, 5, 3))},
            "noise: expected 4 steps of 3 values, got 5",
        ),
        (
            {"noise": GivenNoise(torch.zeros(3, 16, 3), torch.zeros(3, 16, 4, 3))},
            "noise: expected a row for each of 1 images",
        ),
        ({"seed": [1, 2]}, "seed: expected one int or 1 ints"),
        ({"pixels": True}, "vae: expected an autoencoder"),
    ],
)
def test_invalid_arguments_are_refused(given: dict, message: str) -> None:
    how = {"pixels": False, "seed": 0, **given}
    with pytest.raises(ValueError, match=message) as caught:
        pipeline()(how.pop("prompts", 1), **how)
    assert "\n" not in str(caught.value)


def test_rules_for_other_drafts_are_refused_in_the_round() -> None:
    assert pipeline()([1], seed=0, rule="exact", pixels=False).stats.exact
    with pytest.raises(
        ValueError, match="rule 'token': expected a target that gives scores of tokens, got a target that gives"
    ):
        pipeline()([1], seed=0, rule=TokenWise(), pixels=False)


def test_an_autoencoder_of_another_model_is_refused() -> None:
    from mmspec.imagegen.continuous.kl import KLConfig, build_kl

    other = build_kl(KLConfig(embed_dim=4, ch=8, ch_mult=(1, 1, 1), num_res_blocks=1, norm_groups=4))
    with pytest.raises(ValueError, match="vae: expected 3 channels at a stride of 2, got 4 at 4"):
        MARPipeline(transformer(), other)


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, "expected a MARPipeline, got 'FluxPipeline'"),
        ("model_index.json", {"num_iter": "5"}, "num_iter: expected int or None, got '5'"),
        ("transformer/config.json", {"class_num": 9}, r"class_emb\.weight of shape \(5, 16\) instead of \(9, 16\)"),
        ("vae/config.json", {"ch": 4}, r"of shape .* instead of"),
        ("vae/config.json", {"ch": [4]}, r"ch: expected int, got \[4\]"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path, file: str, fields: dict, message: str) -> None:
    pipeline(pixels=True).save_pretrained(tmp_path)
    path = tmp_path / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(ValueError, match=message.replace("|", r"\|")) as caught:
        MARPipeline.from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


LIGHT = """
import sys
from mmspec.imagegen import MARPipeline
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from mmspec.imagegen.continuous.mar.transformer import MAR
sizes = dict(encoder_embed_dim=8, encoder_depth=1, encoder_num_heads=2, decoder_embed_dim=8, decoder_depth=1,
             decoder_num_heads=2, diffloss_d=1, diffloss_w=8)
MARPipeline(MAR(MARConfig(img_size=32, **sizes)))([3], num_iter=2, num_sampling_steps="5", seed=0, pixels=False)
print(sorted({"diffusers", "transformers", "torchvision", "sympy", "torch._dynamo"} & set(sys.modules)))
"""


@pytest.mark.whole
def test_tokens_are_drawn_without_libraries_that_take_seconds_to_import() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_published_sizes_bring_their_published_guidance() -> None:
    assert pipeline().guidance_scale == 1.0 and pipeline(guidance_scale=3.3).guidance_scale == 3.3
    small = {"img_size": 32, "mlp_ratio": 0.02, "class_num": 2, "buffer_size": 1, "diffloss_d": 1, "diffloss_w": 4}
    assert MARPipeline(MAR(MARConfig.preset("B", **small))).guidance_scale == 2.9


def test_auto_is_plain() -> None:
    pipe = pipeline()
    plain, auto = (pipe([0, 1], decoding=decoding, seed=3, pixels=False) for decoding in (None, "auto"))
    assert torch.equal(plain.tokens, auto.tokens) and auto.stats.drafter == "none"
