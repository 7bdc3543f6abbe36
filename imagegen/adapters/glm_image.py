"""The autoregressive part of GLM-Image: a small grid, then the large grid, at positions with three axes."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.imagegen.adapters.decoder_model import DecoderModel, ImageVocabulary, check_grid, latent_side
from mmspec.imagegen.adapters.prompts import TokenPrompts
from mmspec.imagegen.geometry import Geometry

FACTOR = 32  # pixels per code of the finished image


class GlmImage(DecoderModel):
    """The adapter of `GlmImageForConditionalGeneration`, without an unconditional branch. `size` (height, width) is in
    pixels, `preview` in codes, None for the processor's choice. Code c is token c. Only codes are allowed:
    transformers' loop also allows the end-of-image token inside a grid, which no decoder can read. The codes condition
    a diffusion model in diffusers, so no pixels are decoded."""

    name = "GLM-Image"
    no_pixels = (
        "images: expected pixels=False, got a request for pixels from GLM-Image, whose codes condition a diffusion model; "
        "give `tokens` to diffusers' GlmImagePipeline"
    )

    def __init__(
        self,
        model: nn.Module,
        processor: object = None,
        size: tuple[int, int] = (1152, 768),
        preview: tuple[int, int] | None = None,
    ):
        large = tuple(latent_side(n, FACTOR, name) for n, name in zip(size, ("height", "width"), strict=True))
        geometry = Geometry((preview or preview_grid(*large), large))
        codes = model.config.vq_config.num_embeddings
        super().__init__(model, model.model.language_model, geometry, codes, processor)
        self.vocabulary = ImageVocabulary(range(codes), (), self.device)
        self._place = axis_positions(geometry).to(self.device)

    def tokenize(self, text: str) -> Tensor:
        message = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        rows, cols = self.geometry.rows, self.geometry.cols
        sizes = {"target_h": rows * FACTOR, "target_w": cols * FACTOR, "return_tensors": "pt"}
        return self.processor.apply_chat_template([message], tokenize=True, return_dict=True, processor_kwargs=sizes)[
            "input_ids"
        ][0]

    def prompts(self, rows: tuple[Tensor, ...], inputs: Mapping, *, texts: bool) -> TokenPrompts:
        if inputs.get("image_grid_thw") is not None:
            small, large = self.geometry.grids
            check_grid(inputs["image_grid_thw"], (1, *large, 1, *small), "image_grid_thw")
        return TokenPrompts(rows)

    def positions(self, start: Tensor, index: Tensor) -> Tensor:
        return start[:, None] + self._place.to(index.device)[:, index]

    def embed(self, value: Tensor) -> Tensor:
        return self.embed_tokens(value)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.vocabulary.logits(self.model.lm_head, hidden)

    def codebook(self) -> Tensor:
        return F.normalize(self.model.model.vqmodel.quantize.embedding.weight.float(), dim=-1)


def preview_grid(rows: int, cols: int) -> tuple[int, int]:
    """Return the rows and columns of the small grid: about 16 x 16 codes in the large grid's proportions."""
    ratio = rows / cols
    return int(sqrt(ratio) * (FACTOR // 2)), int(sqrt(1 / ratio) * (FACTOR // 2))


def axis_positions(geometry: Geometry) -> Tensor:
    """Return int64 [3, total], time, row and column of every value behind the prompt's end. A grid has a single time,
    from which its rows and columns count. The next grid begins at the end of the longer side."""
    starts, time = [], 0
    for rows, cols in geometry.grids:
        starts.append(time)
        time += max(rows, cols)
    return torch.tensor([(starts[g], starts[g] + r, starts[g] + c) for g, _, r, c in geometry.cells]).T.contiguous()
