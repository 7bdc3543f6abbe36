"""The zoo's image models from their folders."""

from __future__ import annotations

import torch
from transformers import AutoTokenizer, T5EncoderModel

from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.zoo.files.image import read_pipeline
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.world.image import image_prompt, sample_image_scene


def test_prompts_are_read_as_transformers_reads_them() -> None:
    folder, captions = folder_of("t2i"), read_pipeline(folder_of("t2i")).model.captions
    encoder = T5EncoderModel.from_pretrained(folder / "text_encoder", dtype=torch.float32)
    theirs = CaptionEncoder(encoder, AutoTokenizer.from_pretrained(folder / "tokenizer"), captions.length)
    texts = [image_prompt(sample_image_scene(seed), seed) for seed in range(40)] + ["", "a zebra, perhaps", "red " * 99]
    features, mask = captions(texts)
    expected, expected_mask = theirs(texts)
    assert torch.equal(mask, expected_mask)
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=1e-6)
