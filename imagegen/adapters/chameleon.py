"""Chameleon and Anole: image tokens of the language model's vocabulary, which transformers masks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mmspec.imagegen.adapters.decoder_model import DecoderModel, ImageVocabulary, codes_in_order
from mmspec.imagegen.adapters.prompts import TokenPrompts
from mmspec.imagegen.geometry import Geometry

_BEGIN = "<racm3:break>"


class Chameleon(DecoderModel):
    """The adapter of `ChameleonForConditionalGeneration` with image weights ("ANOLE"; "Chameleon" withholds them), for
    a square grid. The decoder runs alone, because the model's forward pass overwrites the logits of image tokens. A
    prompt is [beginning of sentence, words, separator, begin of image]. The unconditional branch has its first and last
    tokens, as the config's default `bos_token_id` 1 is the padding of the published vocabulary."""

    name = "Chameleon"
    no_pixels = (
        "images: expected pixels=False, got a request for pixels from Chameleon, whose image tokenizer in transformers has no "
        "decoder; take the codes in `tokens`"
    )

    def __init__(self, model: nn.Module, processor: object = None):
        config, vq, names = model.config, model.config.vq_config, model.config.vocabulary_map or {}
        if _BEGIN not in names:
            raise ValueError(
                f"vocabulary_map: expected a begin-of-image token {_BEGIN}, got none; load the checkpoint's own config"
            )
        side = vq.resolution // 2 ** (len(vq.channel_multiplier) - 1)
        super().__init__(model, model.model, Geometry.square(side), vq.num_embeddings, processor)
        self.begin = config.vocabulary_map[_BEGIN]
        self.vocabulary = ImageVocabulary(
            codes_in_order(model.model.vocabulary_mapping.img2bpe, vq.num_embeddings), (), self.device
        )

    def tokenize(self, text: str) -> Tensor:
        return self.processor(text=[text], return_tensors="pt")["input_ids"][0]

    def prompts(self, rows: tuple[Tensor, ...], inputs: Mapping, *, texts: bool) -> TokenPrompts:
        begin = torch.tensor([self.begin])
        rows = tuple(row if int(row[-1]) == self.begin else torch.cat([row, begin.to(row.device)]) for row in rows)
        return TokenPrompts(rows, tuple(row[[0, -1]] for row in rows))

    def embed(self, value: Tensor) -> Tensor:
        return self.embed_tokens(self.vocabulary.ids[value])

    def logits(self, hidden: Tensor) -> Tensor:
        return self.vocabulary.logits(self.model.lm_head, hidden)

    def codebook(self) -> Tensor:
        return self.model.model.vqmodel.quantize.embedding.weight.float()
