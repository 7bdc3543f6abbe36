"""A few steps of the zoo's caption encoder and LlamaGen: what starts from what, and what a resumed run gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.zoo.architectures.caption_encoder import FactReader
from mmspec.zoo.files.image import read_vq
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.training.facts import train_image_prompt_encoder
from mmspec.zoo.training.image.build_llamagen import held_out, t2i_recipe, train_llamagen
from mmspec.zoo.world.image import LONGEST, image_prompt_tokenizer

DIM = 48


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> FactReader:
    return train_image_prompt_encoder(tmp_path_factory.mktemp("encoder"), DIM, steps=2, batch=4)


def test_every_token_is_read(reader: FactReader) -> None:
    rows = image_prompt_tokenizer()(["a red star", "a small blue ring at the top"], padding=True, return_tensors="pt")
    ids, mask = rows["input_ids"], rows["attention_mask"]
    with torch.no_grad():
        seen = [reader(ids, mask, seed)[0]["pairs"] for seed in range(20)]
        assert torch.equal(seen[3], reader(ids, mask, 3)[0]["pairs"])
    kinds = {tuple(round(value, 4) for value in row[0].tolist()) for row in seen}
    assert len(kinds) == 4  # three words and the end
    assert all(row.isfinite().all() for row in seen)


def test_an_encoder_resumes_where_it_was(reader: FactReader, tmp_path: Path) -> None:
    train_image_prompt_encoder(tmp_path, DIM, steps=2, batch=4)
    again = train_image_prompt_encoder(tmp_path, DIM, steps=2, batch=4)
    for name, value in reader.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_the_transformer_starts_from_the_readers_projection(reader: FactReader, tmp_path: Path) -> None:
    recipe = t2i_recipe(2)
    recipe = replace(recipe, batch=2, lr=1e-6, config=replace(recipe.config, dim=DIM, n_layer=2, n_head=2))
    vq = read_vq(folder_of("t2i") / "vq")
    encode = CaptionEncoder(reader.encoder, image_prompt_tokenizer(), LONGEST)
    gpt, notes = train_llamagen(recipe, vq, encode, tmp_path, projection=reader.projection)
    for name, value in reader.projection.state_dict().items():
        torch.testing.assert_close(gpt.cls_embedding.cap_proj.state_dict()[name], value, atol=1e-5, rtol=0)
    assert 6 < notes["loss"] and 6 < held_out(recipe, gpt.eval(), vq, encode, 4)["loss"] < 8
