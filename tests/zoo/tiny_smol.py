"""Tiny parts of `vlm/smol`: a random tower of 144 patches, a random Llama and a tokenizer with SmolLM2's special tokens."""

from __future__ import annotations

from functools import cache

import torch
from transformers import CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.zoo.architectures.llava import world_texts
from mmspec.zoo.architectures.smol import PICTURE, SYSTEM, ProjectorSize, WindowProjector
from mmspec.zoo.world.language import word_byte_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", PICTURE, "<file_sep>")
SIZE = ProjectorSize(vision=32, text=64, inner=6)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    prompts, answers = world_texts(40)
    texts = [*prompts, *answers, *(f" {text}" for text in answers), SYSTEM, "user", "assistant", "system"]
    return PreTrainedTokenizerFast(
        tokenizer_object=word_byte_tokenizer(SPECIAL, texts),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=[PICTURE],
        clean_up_tokenization_spaces=False,
    )


def tower() -> CLIPVisionModel:
    torch.manual_seed(1)
    config = CLIPVisionConfig(
        hidden_size=SIZE.vision,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=96,
        patch_size=8,
    )
    return CLIPVisionModel(config).eval()


def language() -> LlamaForCausalLM:
    """Random weights that let what is generated vary with the context."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=SIZE.text,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0, 1.0 if "embed" in name else 2.0 / weight.shape[1] ** 0.5)
    return model


def projector() -> WindowProjector:
    torch.manual_seed(3)
    return WindowProjector(SIZE)
