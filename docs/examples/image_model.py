"""An image model: a language model of transformers that writes the codes of a square picture behind a prompt."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mmspec.imagegen import Geometry
from mmspec.imagegen.adapters.decoder_model import DecoderModel, ImageVocabulary
from mmspec.imagegen.adapters.prompts import TokenPrompts


class Painter(DecoderModel):
    """The adapter. A prompt is its words and a token that begins the picture; the unconditional prompt is that token alone.

    Args:
        model: A causal language model, such as a `LlamaForCausalLM`.
        palette: float [K, 3], the colour from 0 to 1 that each code stands for.
        first: The token id of code 0. The ids of the codes follow one another.
        begin: The token id that begins a picture.
        side: The rows and the columns of a picture.
        processor: A tokenizer, for prompts that are texts; None for prompts of token ids.
    """

    name = "Painter"

    def __init__(
        self, model: nn.Module, palette: Tensor, *, first: int, begin: int, side: int, processor: object = None
    ):
        super().__init__(model, model.model, Geometry.square(side), len(palette), processor)
        self.vocabulary = ImageVocabulary(range(first, first + len(palette)), (), self.device)
        self.palette, self.begin = palette, torch.tensor([begin])

    def tokenize(self, text: str) -> Tensor:
        return torch.tensor(self.processor(text)["input_ids"])

    def prompts(self, rows: tuple[Tensor, ...], given: Mapping, *, texts: bool) -> TokenPrompts:
        conditional = tuple(torch.cat([row, self.begin]) for row in rows)
        return TokenPrompts(conditional, (self.begin,) * len(rows))  # the second is what guidance compares with

    def embed(self, value: Tensor) -> Tensor:
        return self.embed_tokens(self.vocabulary.ids[value])  # [..., H] of codes [...]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.vocabulary.logits(self.model.lm_head, hidden)  # [..., K]

    def decode(self, codes: Tensor) -> Tensor:
        grid = codes.view(-1, self.geometry.rows, self.geometry.cols)
        return self.palette.to(codes.device)[grid].permute(0, 3, 1, 2)  # [B, 3, rows, cols]

    def codebook(self) -> Tensor:
        return self.palette  # distances between colours say which codes are neighbours
