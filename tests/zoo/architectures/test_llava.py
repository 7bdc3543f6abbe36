from __future__ import annotations

import pytest
import torch

from mmspec.zoo.architectures.llava import TextSize, chat_prompt, new_model, new_processor
from mmspec.zoo.architectures.vision_tower import HEADS, IGNORE, patch_labels, to_pixels
from mmspec.zoo.training.captioner import Mixture, answer_logits
from mmspec.zoo.training.conversations import RowEncoder, many_row, picture_row, text_row
from mmspec.zoo.world.captions import caption
from mmspec.zoo.world.phrases import count_tokens
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


def test_captions_are_one_token_a_word(processor):
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
    assert torch.allclose(inputs["pixel_values"], to_pixels([render_array(scene)]), atol=1e-6)


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


@pytest.mark.parametrize("make", [picture_row, text_row, many_row])
def test_every_branch_sees_what_a_plain_conversation_sees(processor, make):
    torch.manual_seed(0)
    tokenizer = processor.tokenizer
    model = new_model(tokenizer, TINY).eval()
    row = make(11)
    rows = RowEncoder(tokenizer)([row])
    logits, targets = answer_logits(model, rows)
    lead = "<s>USER: " + ("<image>" * 144 + "\n") * len(row.scenes) if row.scenes else "<s>USER: "
    for turns in row.branches:
        text = lead + "USER: ".join(f"{prompt} ASSISTANT: {answer}</s>" for prompt, answer in turns)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        count = sum(len(tokenizer(f" {answer}</s>", add_special_tokens=False)["input_ids"]) for _, answer in turns)
        pixels = {} if rows.pixels is None else {"pixel_values": rows.pixels}
        with torch.no_grad():
            plain = model(input_ids=ids, **pixels).logits[0]
        spots = _answer_spots(tokenizer, ids[0])
        assert len(spots) == count and ids[0, spots].tolist() == targets[:count].tolist()
        assert torch.allclose(plain[[spot - 1 for spot in spots]], logits[:count], atol=1e-4)
        logits, targets = logits[count:], targets[count:]
    assert len(targets) == 0


def _answer_spots(tokenizer, ids):
    names, spots, inside = tokenizer.convert_ids_to_tokens(ids.tolist()), [], False
    for index, name in enumerate(names):
        if inside:
            spots.append(index)
        if name == ":" and names[index - 1] == "ĠASSISTANT":
            inside = True
        elif name == "</s>":
            inside = False
    return spots


def test_patch_labels_cover_objects_only():
    scene = sample_scene(3)
    labels = patch_labels(scene)
    inside = labels["color"] != IGNORE
    assert inside.any() and not inside.all()
    assert ((labels["tone"] != IGNORE) == ~inside).all()
    assert all((labels[name] < len(HEADS[name][0])).all() for name in HEADS)


def test_mixture_brings_many_pictures_late():
    mixture = Mixture(batch=4, many_batch=2, many_every=2)
    assert {len(row.scenes) for row in mixture.rows(0, 100)} <= {0, 1}
    assert {len(row.scenes) for row in mixture.rows(98, 100)} <= {2, 3}
    assert mixture.rows(5, 100) == mixture.rows(5, 100)
