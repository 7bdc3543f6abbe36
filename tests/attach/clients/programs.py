"""The models, pictures and checks that the tests of client programs share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import transformers as hf
from PIL import Image
from torch import nn

import mmspec
from mmspec import zoo
from mmspec.attach.handle import Handle
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, sample_scene

QUESTION = "Describe this picture in detail."
STORY = "USER: Tell me a story. ASSISTANT:"
EAGLE = "eagle@zoo:vlm/eagle"


def installed(name: str) -> ModuleType:
    """The module of a client program; skips the test where it is not installed."""
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


@cache
def captioner() -> tuple[nn.Module, Any]:
    """The zoo's captioner and its processor."""
    return zoo.load("vlm")


@cache
def text_model() -> tuple[hf.LlamaForCausalLM, hf.PreTrainedTokenizerBase]:
    """The language model of the captioner as a `LlamaForCausalLM`, and its tokenizer."""
    model, processor = captioner()
    text = hf.LlamaForCausalLM(copy.deepcopy(model.config.text_config)).eval()
    text.model.load_state_dict(model.model.language_model.state_dict())
    text.lm_head.load_state_dict(model.lm_head.state_dict())
    text.generation_config = copy.deepcopy(model.generation_config)
    return text, processor.tokenizer


def messages(number: int = 0) -> list[dict]:
    """A conversation of one turn: a held-out picture and the question for a caption."""
    content = [{"type": "image", "image": picture(number)}, {"type": "text", "text": QUESTION}]
    return [{"role": "user", "content": content}]


def picture(number: int) -> Image.Image:
    return render(sample_scene(EVAL_SEEDS[number]))


def caption_inputs(number: int = 0) -> dict[str, Any]:
    """The inputs of the captioner for one picture."""
    processor = captioner()[1]
    text = processor.apply_chat_template(messages(number), add_generation_prompt=True)
    return dict(processor(images=picture(number), text=text, return_tensors="pt"))


def text_inputs(text: str = STORY) -> dict[str, Any]:
    """The inputs of the text model for one prompt."""
    return dict(text_model()[1](text, return_tensors="pt", return_token_type_ids=False))


@contextmanager
def drafting(model: nn.Module, drafter: Any = "lookup") -> Iterator[Handle]:
    """Enable `model`; check at the end that drafted tokens were accepted and that every call was exact."""
    with mmspec.enable(model, drafter) as handle:
        yield handle
    found = handle.summary()
    assert found.calls and found.exact and not found.refused
    assert found.accept_length > 1.0, found


def same_output(model: nn.Module, call: Callable[[], Any], drafter: Any = "lookup") -> Any:
    """The output of `call`, which has to be equal without and with drafting."""
    plain = call()
    with drafting(model, drafter):
        drafted = call()
    assert drafted == plain
    return drafted
