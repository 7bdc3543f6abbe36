"""The zoo VLM's pieces: tokenizer, processor, chat template, model."""

from __future__ import annotations

import pytest
import torch

from mmspec.zoo.architectures.llava import TextSize, chat_prompt, new_model, new_processor
from mmspec.zoo.world.captions import caption
from mmspec.zoo.world.language import count_tokens
from mmspec.zoo.world.pixels import to_pixels
from mmspec.zoo.world.render import render, render_array
from mmspec.zoo.world.scene import EVAL_START, sample_scene

TINY = TextSize(layers=1, width=64, inner=96)


@pytest.fixture(scope="module")
def processor():
    return new_processor()


def test_any_text_survives_the_tokenizer(processor):
    tokenizer = processor.tokenizer
    for text in ("Zażółć gęślą jaźń 😀", "two  spaces\n\nand\ttabs", "What, really?! 12.5%", "USER: hi ASSISTANT: ho"):
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert 400 <= len(tokenizer) <= 600


def test_captions_have_one_token_per_word(processor):
    for seed in range(EVAL_START, EVAL_START + 50):
        text = caption(sample_scene(seed), seed)
        ids = processor.tokenizer(f" {text}", add_special_tokens=False)["input_ids"]
        assert len(ids) == count_tokens(text)
        assert processor.tokenizer.decode(ids) == f" {text}"


def test_processor_expands_and_matches_the_training_pixels(processor):
    scene = sample_scene(1)
    inputs = processor(images=[render(scene)], text=[chat_prompt("Describe the image.")], return_tensors="pt")
    image_id = processor.tokenizer.convert_tokens_to_ids("<image>")
    assert int((inputs["input_ids"] == image_id).sum()) == 144
    assert torch.allclose(inputs["pixel_values"], to_pixels(render_array(scene)[None]), atol=1e-6)


def test_chat_template_gives_the_llava_prompt(processor):
    user = {"role": "user", "content": [{"type": "text", "text": "Hello?"}, {"type": "image"}]}
    turns = [user, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
    assert processor.apply_chat_template([user], add_generation_prompt=True) == chat_prompt("Hello?")
    whole = processor.apply_chat_template(turns, add_generation_prompt=True)
    assert whole == chat_prompt("Hello?") + " Yes.</s>USER: And? ASSISTANT:"


def test_processor_and_model_come_back_from_disk(processor, tmp_path):
    from transformers import LlavaForConditionalGeneration, LlavaProcessor

    torch.manual_seed(0)
    model = new_model(processor.tokenizer, TINY).eval()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    again = LlavaProcessor.from_pretrained(tmp_path)
    inputs = again(images=[render(sample_scene(2))], text=[chat_prompt("What is shown here?")], return_tensors="pt")
    reloaded = LlavaForConditionalGeneration.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, reloaded(**inputs).logits)
