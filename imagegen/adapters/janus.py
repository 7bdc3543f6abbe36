"""Janus and Janus-Pro: a language model with embeddings and a head of its own for image codes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.imagegen.adapters.decoder_model import DecoderModel, unit_range
from mmspec.imagegen.adapters.prompts import TokenPrompts
from mmspec.imagegen.geometry import Geometry


class Janus(DecoderModel):
    """The adapter of `JanusForConditionalGeneration` ("Janus", "Janus-Pro"): a square grid. The unconditional branch is
    the prompt with visible padding tokens for all but beginning of sentence and begin of image. Rows are all
    conditional, then all unconditional; DeepSeek's own code interleaves them. transformers counts positions over
    padding, this adapter a row's own tokens; the rotary embedding depends on differences alone."""

    name = "Janus"

    def __init__(self, model: nn.Module, processor: object = None):
        from transformers import LlamaModel

        decoder, side = model.model.language_model, model.config.vq_config.num_patches
        if not isinstance(decoder, LlamaModel):  # masks and positions are those of a Llama
            raise ValueError(
                f"text_config: expected a Llama, as in every Janus, got {type(decoder).__name__}; use a Janus "
                "checkpoint"
            )
        super().__init__(model, decoder, Geometry.square(side), model.config.vq_config.num_embeddings, processor)
        settings, text = model.generation_config, model.config.text_config
        self.bos = _first_id(settings.bos_token_id, text.bos_token_id)
        self.pad = _first_id(settings.pad_token_id, text.pad_token_id)
        named = getattr(settings, "generation_kwargs", None) or {}
        tokenizer = getattr(processor, "tokenizer", None)
        self.begin = _first_id(
            named.get("boi_token_id"), getattr(settings, "boi_token_id", None), getattr(tokenizer, "boi_token_id", None)
        )
        if None in (self.bos, self.pad, self.begin):
            raise ValueError(
                f"generation_config: expected bos, pad and boi token ids, got {self.bos}, {self.pad} and "
                f"{self.begin}; load the checkpoint's own or give its processor"
            )

    def tokenize(self, text: str) -> Tensor:
        message = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        prompt = self.processor.apply_chat_template([message], add_generation_prompt=True)
        return self.processor(text=prompt, generation_mode="image", return_tensors="pt")["input_ids"][0]

    def prompts(self, rows: tuple[Tensor, ...], inputs: Mapping, *, texts: bool) -> TokenPrompts:
        if any(int(row[-1]) != self.begin for row in rows):
            raise ValueError(
                f"prompts: expected ids that end with the begin-of-image token {self.begin}, got another; call "
                "the processor with generation_mode='image'"
            )
        return TokenPrompts(
            rows, tuple(row.where((row == self.bos) | (row == self.begin), torch.tensor(self.pad)) for row in rows)
        )

    def embed(self, value: Tensor) -> Tensor:
        return self.model.prepare_embeddings_for_image_generation(value)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.model.generation_head(hidden).float()

    def decode(self, codes: Tensor) -> Tensor:
        return unit_range(self.model.model.vqmodel.decode(codes))

    def codebook(self) -> Tensor:
        # the decoder sees unit vectors
        return F.normalize(self.model.model.vqmodel.quantize.embedding.weight.float(), dim=-1)


def _first_id(*ids: int | list[int] | None) -> int | None:
    first = next((number for number in ids if number is not None), None)
    return first[0] if isinstance(first, (list, tuple)) else first
