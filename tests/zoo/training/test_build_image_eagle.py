"""The builder of the image drafter: files of codes, steps that can be resumed, and what it writes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mmspec import imagegen
from mmspec.imagegen.eagle.training import image_eagle_loss
from mmspec.imagegen.llamagen.adapter import LlamaGenModel
from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.zoo.files.training_sets import generate_codes, read_codes, write_codes
from mmspec.zoo.training import loop
from mmspec.zoo.training.image import build_eagle
from mmspec.zoo.training.image.build_eagle import ImageEagleRecipe, build, train_image_eagle


@pytest.fixture(scope="module")
def pipe() -> ImagePipeline:
    torch.manual_seed(0)
    config = GPTConfig(dim=32, n_layer=1, n_head=4, multiple_of=16, vocab_size=24, block_size=16, model_type="t2i",
                       cls_token_num=6, caption_dim=8)  # fmt: skip

    def captions(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        length = torch.tensor([1 + len(text) % 6 for text in texts])
        return torch.ones(len(texts), 6, 8) * length[:, None, None], torch.arange(6) >= 6 - length[:, None]

    made = ImagePipeline(LlamaGenModel(Transformer(config).eval().requires_grad_(False), None, captions))
    made.guidance_scale = 2.0
    return made


RECIPE = ImageEagleRecipe(images=6, steps=4, batch=3, heads=4)


def test_codes_of_several_files_come_in_order(pipe: ImagePipeline, tmp_path: Path) -> None:
    paths = generate_codes(pipe, tmp_path, 5)
    write_codes(tmp_path / "more.safetensors", torch.full((2, 16), 7), ["a", "b"])
    data = read_codes([*paths, tmp_path / "more.safetensors"])
    assert data.codes.shape == (7, 16) and data.prompts[-2:] == ["a", "b"] and bool((data.codes[5:] == 7).all())
    seen = {prompt for step in range(3) for prompt in data.batch(step, 2)[0]}
    assert len(seen) == 6 and torch.equal(data.batch(4, 2)[1], data.batch(4, 2)[1])


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"codes": torch.zeros(1, 4)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="prompts in the metadata"):
        read_codes([tmp_path / "x.safetensors"])
    write_codes(tmp_path / "y.safetensors", torch.zeros(2, 4), ["one"])
    with pytest.raises(ValueError, match="a prompt for each image"):
        read_codes([tmp_path / "y.safetensors"])


def test_a_resumed_run_ends_where_a_whole_one_does(pipe: ImagePipeline, tmp_path: Path) -> None:
    data = read_codes(generate_codes(pipe, tmp_path, 6))
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
