from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.conditioning import class_labels, describe_value, prefix_bias
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.llamagen.load import check_pair
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.imagegen.model import ImageModelOutput

Encode = Callable[[list[str]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Caption:
    features: Tensor  # float [B, P, caption_dim], real tokens last
    mask: Tensor | None = None  # bool [B, P], True at the real tokens; None where all are real


_NO_PIXELS = (
    "vq: expected a tokenizer for pixels and codebooks, got none; give the pipeline a tokenizer, or pixels=False"
)


class LlamaGenModel:
    """A `FeatureModel` over LlamaGen's transformer, tokenizer and `CaptionEncoder`, each None where it is not needed.
    The unconditional branch is the null class, or the stored null features under the SAME mask as the prompt's: only
    the last are seen. Columns that are padding in every row are removed, since no token attends to them."""

    name, cache = "LlamaGen", SlotPool

    def __init__(self, transformer: Transformer, vq: VQModel | None = None, captions: Encode | None = None):
        config = transformer.config
        if vq is not None:
            check_pair(config, vq.config)
        self.transformer, self.vq, self.captions = transformer, vq, captions
        self.geometry = Geometry(((config.grid, config.grid),), frames=config.frames)
        self.size = self.codes = config.vocab_size
        self.layers, self.width, self.prefix = config.n_layer, config.dim, config.cls_token_num

    @property
    def device(self) -> torch.device:
        return self.transformer.output.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.transformer.output.weight.dtype

    def prepare(self, prompts: object) -> Tensor | Caption:
        """Convert labels 0..num_classes (the last for none, if the table has its row), texts, or a `Caption`."""
        return self._labels(prompts) if self.transformer.config.model_type == "c2i" else self._caption(prompts)

    def _labels(self, prompts: object) -> Tensor:
        return class_labels(prompts, self.transformer.config.num_classes, self.transformer.cls_embedding.null).to(
            self.device
        )

    def _caption(self, prompts: object) -> Caption:
        texts = [prompts] if isinstance(prompts, str) else prompts
        if isinstance(texts, Sequence) and texts and all(isinstance(text, str) for text in texts):
            if self.captions is None:
                raise ValueError(
                    "prompts: expected a Caption, since this model has no caption encoder, got texts; give one "
                    "to the pipeline"
                )
            prompts = Caption(*self.captions(list(texts)))
        if not isinstance(prompts, Caption):
            raise ValueError(
                f"prompts: expected texts or a Caption for a caption-conditional model, "
                f"got {describe_value(prompts)}; give texts"
            )
        features, mask, config = prompts.features, prompts.mask, self.transformer.config
        wanted = (config.cls_token_num, config.caption_dim)
        if features.dim() != 3 or tuple(features.shape[1:]) != wanted or not len(features):
            raise ValueError(
                f"prompts: expected features [B, {wanted[0]}, {wanted[1]}], got {tuple(features.shape)}; use the "
                "caption encoder the model was trained with"
            )
        if mask is None:
            mask = torch.ones(features.shape[:2])
        mask = mask.to(torch.bool)
        if mask.shape != features.shape[:2] or bool((mask[:, :-1] & ~mask[:, 1:]).any()):
            raise ValueError(
                f"prompts: expected a mask {tuple(features.shape[:2])} with the real tokens last, got "
                f"{tuple(mask.shape)}; turn the captions with `to_the_right`"
            )
        return Caption(features.to(self.device, self.dtype), mask.to(self.device))

    def rows(self, condition: Tensor | Caption) -> int:
        return len(condition) if isinstance(condition, Tensor) else len(condition.features)

    def prefill(self, condition: Tensor | Caption, cache: SlotPool, paired: bool) -> tuple[ImageModelOutput, int]:
        count, copies = self.rows(condition), 2 if paired else 1
        drop = torch.arange(copies * count, device=self.device) >= count if paired else None
        if isinstance(condition, Tensor):
            embeds = self.transformer.condition(condition.repeat(copies), drop)
            return self._prompt(embeds, None, cache)
        embeds = self.transformer.condition(condition.features.repeat(copies, 1, 1), drop)
        longest = max(int(condition.mask.sum(1).max()), 1)
        mask = condition.mask[:, -longest:].repeat(copies, 1)
        return self._prompt(embeds[:, -longest:], mask, cache)

    def _prompt(self, embeds: Tensor, mask: Tensor | None, cache: SlotPool) -> tuple[ImageModelOutput, int]:
        slots, bias = embeds.shape[1], None
        if mask is not None and not bool(mask.all()):
            bias, cache.hidden = prefix_bias(mask, slots, embeds.dtype), ~mask
        position = torch.arange(self.prefix - slots, self.prefix, device=self.device)
        states = self.transformer(embeds, position, bias, cache, causal=bias is None)
        last = states[:, -1:]
        return ImageModelOutput(self.logits(last), last, states), slots

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        states = self.transformer(self.embed(value), self.prefix + index, bias, cache)
        return ImageModelOutput(self.logits(states), states)

    def embed(self, value: Tensor) -> Tensor:
        return self.transformer.embed(value)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.transformer.logits(hidden)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return the pixels of every frame; each frame is decoded on its own."""
        vq, grid = self._tokenizer(), self.geometry
        pixels = vq.decode_code(codes.reshape(-1, grid.rows * grid.cols), grid.rows, grid.cols)
        return ((pixels.float() + 1) / 2).clamp(0, 1)

    @torch.no_grad()
    def codebook(self) -> Tensor:
        """Return the tokenizer's codebook, with normalised rows where the tokenizer compares them so."""
        return self._tokenizer().codebook().float()

    def _tokenizer(self) -> VQModel:
        if self.vq is None:
            raise ValueError(_NO_PIXELS)
        return self.vq

    @property
    def no_pixels(self) -> str | None:
        return None if self.vq is not None else _NO_PIXELS
