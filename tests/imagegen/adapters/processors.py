"""Processors of the supported models around one word-level tokenizer."""

from __future__ import annotations

import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.imagegen.adapters.models import BEGIN, BOS, EOS, PAD, WORDS

SPECIAL = {
    "<pad>": PAD, "<s>": BOS, "</s>": EOS, "<boi>": BEGIN, "<image>": 4, "<|extra_200|>": 5, "<|extra_201|>": 6, "<eoi>": 7,
    "<img>": 8, "<sep>": 9, "<grid>": 34, "</grid>": 35, "*": 36, "?": 37,
}  # fmt: skip
TALK = {"a": WORDS[0], "red": WORDS[1], "cube": WORDS[2], "blue": WORDS[3], "ball": WORDS[4]}
NUMBERS = {str(n): 46 + n for n in range(10)}
TEMPLATE = "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endfor %}"


def tokenizer() -> hf.PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({**SPECIAL, **TALK, **NUMBERS}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        sep_token="<sep>",
        unk_token="?",
        extra_special_tokens={
            "image_token": "<image>",
            "boi_token": "<boi>",
            "eoi_token": "<eoi>",
            "eof_token": "<|extra_201|>",
            "image_wrapper_token": "<img>",
            "grid_bos_token": "<grid>",
            "grid_eos_token": "</grid>",
        },
    )


def processor(name: str) -> object:
    """The model's real processor."""
    words = tokenizer()
    if name == "janus":
        return hf.JanusProcessor(hf.JanusImageProcessor(), words, chat_template="<s>" + TEMPLATE)
    if name == "emu3":
        return hf.Emu3Processor(hf.Emu3ImageProcessor(), words)
    if name == "chameleon":
        return hf.ChameleonProcessor(hf.ChameleonImageProcessor(), words)
    return hf.GlmImageProcessor(hf.GlmImageImageProcessor(), words, chat_template=TEMPLATE)
