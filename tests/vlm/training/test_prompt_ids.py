"""Prompts become ids by a single rule, that of transformers' `apply_chat_template` with `tokenize=True`."""

from __future__ import annotations

import copy
from typing import Any

import PIL.Image
import pytest
from tokenizers import processors

from mmspec.run.vlm_requests import VlmPrompt, encode, encode_turns
from mmspec.vlm.conversation.session import Session
from mmspec.vlm.training import examples
from mmspec.vlm.training.examples import Example
from mmspec.zoo.architectures.llava import BOS, EOS
from tests.evaluate.tiny_zoo import byte_processor, llava

TURNS = (("user", "What is it?"), ("assistant", "A dog."))
SPECIAL = {"none": "$A", "bos": f"{BOS} $A", "bos and eos": f"{BOS} $A {EOS}"}
BODY = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
TEMPLATES = {"with bos": "{{ bos_token }}" + BODY, "without bos": BODY, "no template": None}


def processor_of(template: str, special: str, *, plain: bool = False) -> Any:
    """A processor, or its tokenizer alone, with a chat template and a tokenizer that adds these special tokens."""
    processor = byte_processor()
    tokenizer = processor.tokenizer
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=SPECIAL[special], special_tokens=[(BOS, 1), (EOS, 2)]
    )
    processor.chat_template = tokenizer.chat_template = TEMPLATES[template]
    return tokenizer if plain else processor


def picture(shade: int) -> PIL.Image.Image:
    return PIL.Image.new("RGB", (12, 9), (shade, 30, 30))


def truth(processor: Any, text: str, pictures: tuple, history: tuple, plain: bool) -> list[int]:
    """The ids of transformers."""
    messages = [
        {"role": role, "content": words if plain else [{"type": "text", "text": words}]}
        for role, words in (*history, ("user", text))
    ]
    if pictures:
        shown = [{"type": "image", "image": image} for image in pictures]
        messages[0]["content"] = [*shown, *messages[0]["content"]]
    settings = dict(add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt")
    return processor.apply_chat_template(messages, **settings)["input_ids"][0].tolist()


@pytest.mark.parametrize("history", ((), TURNS), ids=("single", "turns"))
@pytest.mark.parametrize("count", (0, 1, 2))
@pytest.mark.parametrize("plain", (False, True), ids=("processor", "tokenizer"))
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("template", ("with bos", "without bos"))
def test_prompts_have_the_ids_of_apply_chat_template(
    template: str, special: str, plain: bool, count: int, history: tuple
) -> None:
    if plain and count:
        return
    processor, pictures = processor_of(template, special, plain=plain), tuple(map(picture, range(count)))
    ids = truth(processor, "And now?", pictures, history, plain)
    example = Example("key", "And now?", pictures, history=history)
    assert examples.encode(processor, [example])["input_ids"][0].tolist() == ids
    assert encode(processor, [VlmPrompt("And now?", pictures, history)])["input_ids"][0].tolist() == ids
    users = [text for role, text in history if role == "user"]
    answers = [text for role, text in history if role == "assistant"]
    assert encode_turns(processor, [*users, "And now?"], answers, pictures)["input_ids"][0].tolist() == ids
    session = Session(llava(1, 0), processor)
    session.messages = [
        {"role": role, "content": text if plain else [{"type": "text", "text": text}]} for role, text in history
    ]
    session.add("And now?", pictures if not history else ())
    if not history or not count:
        assert session.inputs()["input_ids"][0].tolist() == ids
    batch = examples.encode(processor, [example, Example("other", "?" * 200, pictures)])
    row, mask = batch["input_ids"][0], batch["attention_mask"][0]
    assert row[mask.bool()].tolist() == ids


@pytest.mark.parametrize("plain", (False, True), ids=("processor", "tokenizer"))
@pytest.mark.parametrize("special", SPECIAL)
def test_a_prompt_without_template_gets_the_special_tokens_once(special: str, plain: bool) -> None:
    processor = processor_of("no template", special, plain=plain)
    tokenizer = processor if plain else processor.tokenizer
    body = tokenizer("hello", add_special_tokens=False)["input_ids"]
    whole = {"none": body, "bos": [1, *body], "bos and eos": [1, *body, 2]}[special]
    assert examples.encode(processor, [Example("key", "hello")])["input_ids"][0].tolist() == whole
    typed = examples.encode(processor, [Example("key", f"{BOS}hello")])["input_ids"][0].tolist()
    assert typed == [1, *body]


def test_answers_follow_the_same_prompt() -> None:
    processor = processor_of("with bos", "bos")
    example = Example("key", "What?", answer="red")
    prompt = examples.encode(processor, [example])["input_ids"][0].tolist()
    whole = copy.copy(example.history) + (("user", "What?"), ("assistant", "red"))
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in whole]
    ids = processor.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"][0]
    answer = examples.reference_answer_ids(processor, example)
    assert prompt.count(1) == 1 and answer[-1] == 2 and ids[: len(prompt)] == prompt[: len(ids)]
