"""The builder of the image drafter: stored codes, steps that can be resumed, and what it writes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from mmspec import imagegen
from mmspec.imagegen.eagle.training import image_eagle_loss
from mmspec.imagegen.llamagen.adapter import LlamaGenModel
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.zoo.training import loop
from mmspec.zoo.training.image import build_eagle
from mmspec.zoo.training.image.build_eagle import ImageEagleRecipe, build, generated_codes, train_image_eagle


@pytest.fixture(scope="module")
def pipe() -> ImagePipeline:
    torch.manual_seed(0)
    config = GPTConfig(
        dim=32,
        n_layer=1,
        n_head=4,
        multiple_of=16,
        vocab_size=24,
        block_size=16,
        model_type="t2i",
        cls_token_num=6,
        caption_dim=8,
    )

    def captions(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        length = torch.tensor([1 + len(text) % 6 for text in texts])
        return torch.ones(len(texts), 6, 8) * length[:, None, None], torch.arange(6) >= 6 - length[:, None]

    made = ImagePipeline(LlamaGenModel(Transformer(config).eval().requires_grad_(False), None, captions))
    made.guidance_scale = 2.0
    return made


RECIPE = ImageEagleRecipe(images=6, steps=4, batch=3, heads=4)


def test_stored_codes_are_reused_and_batches_are_pure(pipe: ImagePipeline, tmp_path: Path) -> None:
    data = generated_codes(pipe, tmp_path, 5)
    assert data.codes.shape == (5, 16) and data.codes.dtype == torch.int64 and len(set(data.prompts)) == 5
    (file,) = (tmp_path / "t2i_codes").iterdir()
    before = file.stat().st_ino
    assert torch.equal(generated_codes(pipe, tmp_path, 5).codes, data.codes) and file.stat().st_ino == before
    seen = {prompt for step in range(2) for prompt in data.batch(step, 2)[0]}
    assert len(seen) == 4 and torch.equal(data.batch(4, 2)[1], data.batch(4, 2)[1])


def test_a_resumed_run_ends_as_an_uninterrupted_run(pipe: ImagePipeline, tmp_path: Path) -> None:
    data = generated_codes(pipe, tmp_path, 6)
    whole, _ = train_image_eagle(RECIPE, pipe, data, tmp_path / "whole")

    def until_two(*given: object):
        def of(step: int):
            if step == 2:
                raise KeyboardInterrupt
            return image_eagle_loss(*given)(step)

        return of

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "TrainingPlan", partial(loop.TrainingPlan, save_every_s=-1.0))
        patch.setattr(build_eagle, "image_eagle_loss", until_two)
        with pytest.raises(KeyboardInterrupt):
            train_image_eagle(RECIPE, pipe, data, tmp_path / "parts")
    resumed, _ = train_image_eagle(RECIPE, pipe, data, tmp_path / "parts")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_the_builder_writes_a_drafter_that_loads(pipe: ImagePipeline, tmp_path: Path) -> None:
    card = build(tmp_path / "out", tmp_path, pipe, recipe=RECIPE)
    assert card["images"] == 6 and set(card["evaluation"]) == {"accept_length_chain5", "accept_length_tree24"}
    assert json.loads((tmp_path / "out" / "card.json").read_text())["name"] == "t2i/eagle"
    drafter = imagegen.load_drafter(tmp_path / "out", target=pipe)
    prompts = ["a red circle", "two", "three"]
    drafted = pipe(prompts, decoding=drafter, temperature=0, pixels=False)
    assert torch.equal(drafted.tokens, pipe(prompts, temperature=0, pixels=False).tokens)
