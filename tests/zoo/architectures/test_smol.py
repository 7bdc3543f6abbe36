"""The captioner of the zoo's tower and a text model from elsewhere: its rows, its chat, and its drafted text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec.vlm.architectures import parts_of
from mmspec.zoo.architectures.smol import (
    PICTURE,
    SYSTEM,
    ProjectorSize,
    WindowProjector,
    compose,
    new_processor,
    picture_id,
)
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import sample_scene
from tests.zoo import tiny_smol

QUESTION = {"role": "user", "content": [{"type": "text", "text": "Describe the image."}, {"type": "image"}]}


@pytest.fixture(scope="module")
def captioner():
    picture = picture_id(tiny_smol.tokenizer())
    return compose(tiny_smol.tower(), tiny_smol.projector(), tiny_smol.language(), picture)


@pytest.fixture(scope="module")
def processor():
    return new_processor(tiny_smol.tokenizer())


def _inputs(processor, seed: int, count: int = 1):
    chat = [{"role": "user", "content": [{"type": "image"}] * count + QUESTION["content"][:1]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    return processor(images=[render(sample_scene(seed + i)) for i in range(count)], text=[text], return_tensors="pt")


def test_a_window_makes_rows_of_its_own_patches_in_reading_order() -> None:
    projector = WindowProjector(replace(tiny_smol.SIZE, side=4, window=2, rows=3))
    features = torch.randn(1, 16, 32)
    before = projector(features)
    assert before.shape == (1, projector.tokens_per_image, 64) and projector.tokens_per_image == 12
    for patch in range(16):
        changed = features.clone()
        changed[0, patch] += 1
        rows = (projector(changed) != before).any(-1)[0].nonzero()[:, 0]
        row, column = divmod(patch, 4)
        window = row // 2 * 2 + column // 2
        assert rows.tolist() == list(range(3 * window, 3 * window + 3))


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="size: expected"):
        ProjectorSize(side=12, window=5)
    tower, language = tiny_smol.tower(), tiny_smol.language()
    with pytest.raises(ValueError, match="tower: expected"):
        compose(tower, WindowProjector(replace(tiny_smol.SIZE, vision=16)), language, 4)
    with pytest.raises(ValueError, match="language: expected"):
        compose(tower, WindowProjector(replace(tiny_smol.SIZE, text=32)), language, 4)
    with pytest.raises(ValueError, match=f"tokenizer: expected .*{PICTURE}"):
        picture_id(mmspec.zoo.load("vlm")[1].tokenizer)


def test_the_processor_counts_as_many_rows_as_the_projector_makes(captioner, processor) -> None:
    inputs = _inputs(processor, 5, count=2)
    parts = parts_of(captioner)
    assert parts.tokens_per_image == 36 and parts.placeholders == (4,) and parts.trusted
    assert int((inputs["input_ids"] == 4).sum()) == 2 * parts.tokens_per_image
    assert captioner(**inputs).logits.shape[-1] == len(tiny_smol.tokenizer())


def test_the_chat_is_that_of_the_text_model(captioner, processor) -> None:
    turns = [
        {"role": "user", "content": "List the objects."},
        {"role": "assistant", "content": "I see a red star."},
        {"role": "user", "content": [{"type": "text", "text": "Describe the image."}]},
    ]
    text = processor.apply_chat_template(turns, add_generation_prompt=True)
    assert text == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nList the objects.<|im_end|>\n<|im_start|>assistant\n"
        "I see a red star.<|im_end|>\n<|im_start|>user\nDescribe the image.<|im_end|>\n<|im_start|>assistant\n"
    )
    own = processor.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, *turns], add_generation_prompt=True
    )
    assert own == text.replace(SYSTEM, "Be brief.")
    inputs = processor(text=[text], return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(captioner(**inputs).logits, tiny_smol.language()(**inputs).logits)


@pytest.mark.parametrize("drafter", ("none", "lookup", "recycling", "auto"))
def test_drafted_captions_equal_those_of_transformers(captioner, processor, drafter: str) -> None:
    makers = {"none": lambda: None, "lookup": mmspec.drafters.PromptLookup, "recycling": mmspec.drafters.TokenRecycling}
    for seed in (7, 8):
        inputs = _inputs(processor, seed)
        wanted = captioner.generate(**inputs, max_new_tokens=40, do_sample=False)
        draft = makers[drafter]() if drafter in makers else drafter
        assert torch.equal(
            mmspec.generate(captioner, drafter=draft, max_new_tokens=40, do_sample=False, **inputs), wanted
        )


def test_captions_depend_on_the_picture(captioner, processor) -> None:
    first, second = (captioner(**_inputs(processor, seed)).logits[0, -1] for seed in (7, 8))
    assert not torch.allclose(first, second)
