"""The base of the adapters: a transformers decoder over a slot cache, and the token ids of the image's values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import narrowest_window
from mmspec.core.layers.rope import first_switch, length_dependent
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.user_code import listed, user_code
from mmspec.imagegen.adapters.prompts import TokenPrompts, left_padded, prompt_texts, token_rows
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.model import ImageModelOutput
from mmspec.kernels.small_linear import small_linear


class ImageVocabulary:
    """The token ids `ids` int64 [V] of an image's values: codes 0..K-1, then the forced special tokens. A plain head
    multiplies only the rows of codes: the others are masked inside an image, and they are most of the vocabulary."""

    def __init__(self, codes: Sequence[int], specials: Sequence[int], device: torch.device):
        self.ids = torch.tensor([*codes, *specials], device=device)
        self.codes, self.size = len(codes), len(codes) + len(specials)
        self._low, self._high = min(codes), max(codes) + 1
        contiguous = list(codes) == list(range(self._low, self._high))
        self._place = None if contiguous else self.ids[: self.codes] - self._low

    def to(self, device: torch.device) -> None:
        self.ids = self.ids.to(device)
        self._place = None if self._place is None else self._place.to(device)

    def logits(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """Return float32 [..., V] of hidden states [..., H]; 0 for special tokens, which the geometry forces."""
        plain = type(head) is nn.Linear and head.bias is None  # otherwise the weight alone does not define the head
        logits = (
            small_linear(hidden, head.weight[self._low : self._high])
            if plain
            else head(hidden)[..., self._low : self._high]
        )
        logits = logits.float()
        if self._place is not None:
            logits = logits[..., self._place]
        return F.pad(logits, (0, self.size - self.codes))


def codes_in_order(ids: Mapping[int, int], count: int) -> list[int]:
    """Return the token ids by code 0..count-1, from a map of codes to ids."""
    if sorted(ids) != list(range(count)):
        raise ValueError(
            f"vocabulary_map: expected an image token for each of the {count} codes of the tokenizer, got "
            f"{len(ids)}; load the checkpoint's own config"
        )
    return [ids[code] for code in range(count)]


class DecoderModel(ABC):
    """A `FeatureModel` over a transformers decoder. Both branches of all rows run as a single batch, left-padded to the
    longest prompt. Positions count a row's own tokens, so padding changes no result."""

    name: str
    cache = SlotCache
    no_pixels: str | None = None  # why codes cannot be decoded; None where they can
    vocabulary: ImageVocabulary | None = None

    def __init__(self, model: nn.Module, decoder: nn.Module, geometry: Geometry, codes: int, processor: object = None):
        attention = decoder.config._attn_implementation
        if attention not in ("sdpa", "eager"):
            raise ValueError(
                f"attn_implementation: expected 'sdpa' or 'eager', got {attention!r}; load the model with 'sdpa'"
            )
        self.window, self.rotary = narrowest_window(decoder.config), length_dependent(decoder)
        self.model, self.decoder, self.processor = model, decoder, processor
        self.geometry, self.codes, self.size = geometry, codes, codes
        self.layers = decoder.config.num_hidden_layers
        self.embed_tokens = decoder.get_input_embeddings()
        self.width = self.embed_tokens.weight.shape[1]

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        self.model.to(device=device, dtype=dtype)
        if self.vocabulary is not None:
            self.vocabulary.to(self.device)

    @abstractmethod
    def embed(self, value: Tensor) -> Tensor:
        """Return the input embeddings [..., H] of values int64 [...]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [..., V] of the decoder's states [..., H]."""

    @abstractmethod
    def tokenize(self, text: str) -> Tensor:
        """Return int64 [P], the prompt of an image as the model's processor encodes it."""

    @abstractmethod
    def prompts(self, rows: tuple[Tensor, ...], inputs: Mapping, *, texts: bool) -> TokenPrompts:
        """Return the condition of rows int64 [P]; `inputs` are the other outputs of the processor."""

    def positions(self, start: Tensor, index: Tensor) -> Tensor:
        """Return the position ids of indices int64 [R, N], with `start` int64 [R] at each row's first value."""
        return start[:, None] + index

    def prepare(self, prompts: object) -> TokenPrompts:
        """Convert texts (with a processor), token ids per image, or the processor's output to a condition."""
        self._check_code()
        if isinstance(prompts, TokenPrompts):
            return prompts
        texts = prompt_texts(prompts)
        if texts is not None:
            if self.processor is None:
                raise ValueError(
                    "prompts: expected token ids, got text and no processor; give pipeline_for the processor "
                    "of the checkpoint"
                )
            return self.prompts(token_rows([self.tokenize(text) for text in texts]), {}, texts=True)
        inputs = prompts if isinstance(prompts, Mapping) else {"input_ids": prompts}
        if inputs.get("pixel_values") is not None:
            raise ValueError(f"prompts: expected text alone for {self.name}, got images; leave pixel_values out")
        return self.prompts(token_rows(inputs.get("input_ids"), inputs.get("attention_mask")), inputs, texts=False)

    def _check_code(self) -> None:
        """Refuse users' code on modules that images pass by: those around the decoder, and a head whose rows are read."""
        head = None if self.vocabulary is None else self.model.lm_head
        named = list(self.model.named_modules())
        inner = next((name for name, module in named if module is self.decoder), "")
        around = {name for name, _ in named if name != inner and (not name or inner.startswith(f"{name}."))}
        passed = around | {name for name, module in named if module is head}
        code = [piece for piece in user_code(self.model) if piece.place in passed]
        if code:
            raise ValueError(
                f"model: expected code of yours on the decoder of {self.name} alone, got {listed(code)}, which "
                "images do not run; remove it, or move it to the decoder's layers"
            )

    def rows(self, condition: TokenPrompts) -> int:
        return len(condition.cond)

    def prefill(self, condition: TokenPrompts, cache: SlotCache, paired: bool) -> tuple[ImageModelOutput, int]:
        rows = condition.cond
        if paired:
            if condition.uncond is None:
                raise ValueError(
                    f"guidance_scale: expected at most 1 for {self.name}, which was trained without an "
                    "unconditional branch, got more; use guidance_scale 1"
                )
            rows = (*rows, *condition.uncond)
        ids, real, padded = left_padded(rows, self.device)
        self._check_length(ids.shape[1])
        position = (real.long().cumsum(-1) - 1).clamp_min(0)
        states = self._run(self.embed_tokens(ids), position, real if padded else None, cache)
        cache.start = real.sum(-1)
        if padded:
            cache.hidden = ~real
        last = states[:, -1:]
        return ImageModelOutput(self.logits(last), last, states), ids.shape[1]

    def _check_length(self, prompt: int) -> None:
        """Refuse prompts where the image would leave an attention window or cross a change of the rotary frequencies."""
        total = prompt + self.geometry.total
        if self.window is not None and not self.window.hides_nothing(prompt, self.geometry.total):
            raise ValueError(
                f"prompts: expected prompt and image to fit the {self.window.name} of {self.window.tokens} "
                f"tokens of {self.name}, got {total}; use a smaller size or a shorter prompt"
            )
        if self.rotary and total > (switch := first_switch(self.rotary)):
            raise ValueError(
                f"prompts: expected prompt and image within {switch} tokens, where the rotary frequencies of "
                f"{self.name} change, got {total}; use a smaller size or a shorter prompt"
            )

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotCache) -> ImageModelOutput:
        states = self._run(self.embed(value), self.positions(cache.start, index), bias, cache)
        return ImageModelOutput(self.logits(states), states)

    def _run(self, embeds: Tensor, position: Tensor, mask: Tensor | None, cache: SlotCache) -> Tensor:
        inputs = dict(inputs_embeds=embeds, position_ids=position, attention_mask=mask, use_cache=True)
        return self.decoder(**inputs, **{CACHE: cache}).last_hidden_state

    def decode(self, codes: Tensor) -> Tensor:
        raise ValueError(self.no_pixels)

    @abstractmethod
    def codebook(self) -> Tensor:
        """Return float32 [K, d], the vectors whose distances make codes neighbours."""


def unit_range(pixels: Tensor) -> Tensor:
    """Convert pixels in -1..1, the output of Janus's and Emu3's tokenizers, to float32 pixels in 0..1."""
    return ((pixels.float() + 1) / 2).clamp(0, 1)


def latent_side(pixels: int, factor: int, name: str) -> int:
    if pixels < factor or pixels % factor:
        raise ValueError(f"size: expected a {name} that is a multiple of {factor} pixels, got {pixels}")
    return pixels // factor


def check_grid(inputs: object, expected: tuple[int, ...], what: str) -> None:
    """Check that every row of `inputs` [..., n] is the grid that the adapter was opened for."""
    rows = torch.as_tensor(inputs).cpu()
    if rows.numel() % len(expected) or not bool((rows.reshape(-1, len(expected)) == torch.tensor(expected)).all()):
        raise ValueError(
            f"{what}: expected {expected} for every image, got {rows.tolist()}; open the pipeline with the "
            "size the prompts were made for"
        )
