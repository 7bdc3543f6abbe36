"""A random text model in a folder, with a byte-level tokenizer whose chat template takes contents as strings."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as hf

from tests.evaluate.tiny_zoo import byte_processor
from tests.vlm.tiny import liven

# as the templates of many text models: a list of parts cannot be added to a string
TEMPLATE = (
    "{% for message in messages %}{{ '[' + message['role'] + ']' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def text_model() -> hf.LlamaForCausalLM:
    """A random Llama of two layers over bytes."""
    config = hf.LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(5)
    model = hf.LlamaForCausalLM(config).eval().requires_grad_(False)
    liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return model


def text_tokenizer() -> hf.PreTrainedTokenizerFast:
    """A token per byte."""
    tokenizer = byte_processor().tokenizer
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_text_model(folder: Path) -> Path:
    """The model and its tokenizer, as users have them."""
    text_model().save_pretrained(folder)
    text_tokenizer().save_pretrained(folder)
    return folder
