"""Given answers stand behind their prompts with the tokens they have where both are one text."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mmspec.vlm.training.examples import Example, prompt_text, reference_answer_ids

_PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
)
_TURNS = "{%% for m in messages %%}%s{%% endfor %%}{%% if add_generation_prompt %%}%s{%% endif %%}"
TEMPLATES = {
    "vicuna": _TURNS % ("{{ 'USER: ' if m.role == 'user' else ' ASSISTANT: ' }}" + _PARTS, " ASSISTANT:"),
    "chatml": _TURNS % ("<|im_start|>{{ m.role }}\n" + _PARTS + "<|im_end|>\n", "<|im_start|>assistant\n"),
    "tags": _TURNS % ("<{{ m.role }}>" + _PARTS, "<assistant>"),
    "thinking": _TURNS % ("<{{ m.role }}>" + _PARTS, "<assistant>\n<think></think>"),
    "blank": _TURNS % ("<{{ m.role }}> " + _PARTS, "<assistant> "),
    "users only": "{% if messages | length > 1 %}{{ raise_exception('one turn') }}{% endif %}{{ messages[0].content }}:",
    "strings": _TURNS % ("<{{ m.role }}>{{ m.content if m.role == 'user' else ' ' + m.content }}", "<assistant>"),
}
BEHIND = {
    "vicuna": " a dog",
    "chatml": "a dog",
    "tags": "a dog",
    "thinking": " a dog",
    "blank": "a dog",
    "users only": " a dog",
    "strings": " a dog",
}
ASKED = Example("k", "what?", (), "a dog")


class Processor:
    """A tokenizer and a chat template, as processors have them."""

    def __init__(self, tokenizer: Any, template: str | None):
        self.tokenizer, self.chat_template = tokenizer, template

    def apply_chat_template(self, messages: list[dict], add_generation_prompt: bool = False) -> str:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.chat_template, tokenize=False, add_generation_prompt=add_generation_prompt
        )


def bytes_of() -> hf.PreTrainedTokenizerFast:
    """One token per byte."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def words_of() -> hf.PreTrainedTokenizerFast:
    """Words with the space before them, and one put before a text, as Llama's tokenizers do."""
    names = ["<unk>", "\u2581", "\u2581a", "\u2581dog", "\u2581USER:", "\u2581what?", "\u2581ASSISTANT:", "</s>"]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_text_separates_prompt_and_answer(name: str) -> None:
    processor = Processor(bytes_of(), TEMPLATES[name])
    assert processor.tokenizer.decode(reference_answer_ids(processor, ASKED)) == BEHIND[name]


def test_white_space_of_the_answer_itself_is_not_doubled() -> None:
    processor = Processor(bytes_of(), TEMPLATES["chatml"])
    for given in (" a dog", "\na dog"):
        assert processor.tokenizer.decode(reference_answer_ids(processor, Example("k", "what?", (), given))) == "a dog"


def test_without_a_template_the_prompts_end_decides() -> None:
    processor = Processor(bytes_of(), None)
    for text, behind in (("what?", " a dog"), ("what?\n", "a dog"), ("what? ", "a dog"), ("", " a dog")):
        assert processor.tokenizer.decode(reference_answer_ids(processor, Example("k", text, (), "a dog"))) == behind


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_and_answer_are_the_tokens_of_one_text(name: str) -> None:
    processor = Processor(bytes_of(), TEMPLATES[name])
    prompt = prompt_text(processor, ASKED)
    ids = [*processor.tokenizer(prompt)["input_ids"], *reference_answer_ids(processor, ASKED)]
    assert processor.tokenizer.decode(ids) == prompt + BEHIND[name]


def test_a_tokenizer_that_prepends_a_space_adds_no_second_space() -> None:
    processor = Processor(words_of(), TEMPLATES["vicuna"])
    assert processor.tokenizer.convert_ids_to_tokens(reference_answer_ids(processor, ASKED)) == [
        "\u2581a",
        "\u2581dog",
        "</s>",
    ]


def test_texts_that_share_a_token_leave_the_answer_its_own() -> None:
    """A prompt that ends in a space, where words hold the space before them."""
    processor = Processor(words_of(), TEMPLATES["blank"])
    assert processor.tokenizer.convert_ids_to_tokens(reference_answer_ids(processor, ASKED)) == [
        "\u2581a",
        "\u2581dog",
        "</s>",
    ]


def test_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="example 'k': expected an answer, got none"):
        reference_answer_ids(Processor(bytes_of(), None), Example("k", "what?"))
