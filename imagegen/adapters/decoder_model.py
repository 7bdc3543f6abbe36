"""The base of the adapters: a transformers decoder over a slot cache, and the token ids of the image's values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.core.cache import SlotCache
from mmspec.core.layer_plan import narrowest_window
from mmspec.core.rope import first_switch, length_dependent
from mmspec.imagegen.adapters.prompts import TokenPrompts, left_padded, prompt_texts, token_rows
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.model import ImageModelOutput


class ImageVocabulary:
    """ids: int64 [V], the token id of every value: codes 0..K-1, then the forced specials.

    Of a plain head only the rows that belong to codes are multiplied: the others are masked in an image span anyway, and an
    image vocabulary is a small part of the whole.
    """

    def __init__(self, codes: Sequence[int], specials: Sequence[int], device: torch.device):
        self.ids = torch.tensor([*codes, *specials], device=device)
        self.codes, self.size = len(codes), len(codes) + len(specials)
        self._low, self._high = min(codes), max(codes) + 1
        contiguous = list(codes) == list(range(self._low, self._high))
        self._place = None if contiguous else self.ids[: self.codes] - self._low

    def to(self, device: torch.device) -> None:
        """Moves the tables."""
        self.ids = self.ids.to(device)
        self._place = None if self._place is None else self._place.to(device)

    def logits(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """float32 [..., V] of hidden [..., H]; 0 for specials, which the geometry forces."""
        plain = type(head) is nn.Linear and head.bias is None  # else it does more than its weight says
        logits = (
            F.linear(hidden, head.weight[self._low : self._high])
            if plain
            else head(hidden)[..., self._low : self._high]
        )
        logits = logits.float()
        if self._place is not None:
            logits = logits[..., self._place]
        return F.pad(logits, (0, self.size - self.codes))


def codes_in_order(ids: Mapping[int, int], count: int) -> list[int]:
    """Token ids by code, from a map of codes to ids. Raises ValueError unless the codes are 0..count-1."""
    if sorted(ids) != list(range(count)):
        raise ValueError(f"vocabulary_map: expected an image token for each of the {count} codes of the tokenizer, got "
                         f"{len(ids)}; load the checkpoint's own config")  # fmt: skip
    return [ids[code] for code in range(count)]


class DecoderModel(ABC):
    """A `FeatureModel` over a transformers decoder; a subclass says what its tokens mean.

    Both branches of all rows run as one batch, left padded to the longest prompt, with positions that count a row's own
    tokens: a padded row computes what it would compute alone.

    no_pixels: one sentence why the model cannot decode its codes, None where it can.
    Raises ValueError for an attention implementation that takes no mask of a tree, and for layers that keep no slots.
    """

    name: str
    cache = SlotCache
    no_pixels: str | None = None
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
        """Moves the transformers model and the tables."""
        self.model.to(device=device, dtype=dtype)
        if self.vocabulary is not None:
            self.vocabulary.to(self.device)

    @abstractmethod
    def embed(self, value: Tensor) -> Tensor:
        """Input embeddings [..., H] of values int64 [...]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [..., V] of the decoder's states [..., H]."""

    @abstractmethod
    def tokenize(self, text: str) -> Tensor:
        """int64 [P], the prompt of one image as the model's processor makes it."""

    @abstractmethod
    def prompts(self, rows: tuple[Tensor, ...], given: Mapping, *, texts: bool) -> TokenPrompts:
        """The condition of rows of token ids. given: what came with them;   texts: the user gave texts."""

    def positions(self, start: Tensor, index: Tensor) -> Tensor:
        """Position ids of values int64 [R, N] whose rows' first value stands at start [R]."""
        return start[:, None] + index

    def prepare(self, prompts: object) -> TokenPrompts:
        """prompts: texts (with a processor), token ids per image, or what the model's processor returned.

        Raises ValueError for anything else, and for texts without a processor.
        """
        if isinstance(prompts, TokenPrompts):
            return prompts
        texts = prompt_texts(prompts)
        if texts is not None:
            if self.processor is None:
                raise ValueError("prompts: expected token ids, got text and no processor; give pipeline_for the processor "
                                 "of the checkpoint")  # fmt: skip
            return self.prompts(token_rows([self.tokenize(text) for text in texts]), {}, texts=True)
        given = prompts if isinstance(prompts, Mapping) else {"input_ids": prompts}
        if given.get("pixel_values") is not None:
            raise ValueError(f"prompts: expected text alone for {self.name}, got pictures; leave pixel_values out")
        return self.prompts(token_rows(given.get("input_ids"), given.get("attention_mask")), given, texts=False)

    def rows(self, condition: TokenPrompts) -> int:
        return len(condition.cond)

    def prefill(self, condition: TokenPrompts, cache: SlotCache, paired: bool) -> tuple[ImageModelOutput, int]:
        rows = condition.cond
        if paired:
            if condition.uncond is None:
                raise ValueError(f"guidance_scale: expected 1 or less, got more for {self.name}, which was trained without "
                                 "an unconditional branch")  # fmt: skip
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
        """Refuses prompts behind which a picture leaves a window, or crosses a change of the rotary frequencies."""
        total = prompt + self.geometry.total
        if self.window is not None and not self.window.hides_nothing(prompt, self.geometry.total):
            raise ValueError(f"prompts: expected prompt and picture to fit the {self.window.name} of {self.window.tokens} "
                             f"tokens of {self.name}, got {total}; draw smaller or shorten the prompt")  # fmt: skip
        if self.rotary and total > (switch := first_switch(self.rotary)):
            raise ValueError(f"prompts: expected prompt and picture within {switch} tokens, where the rotary frequencies of "
                             f"{self.name} change, got {total}; draw smaller or shorten the prompt")  # fmt: skip

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotCache) -> ImageModelOutput:
        states = self._run(self.embed(value), self.positions(cache.start, index), bias, cache)
        return ImageModelOutput(self.logits(states), states)

    def _run(self, embeds: Tensor, position: Tensor, mask: Tensor | None, cache: SlotCache) -> Tensor:
        return self.decoder(
            inputs_embeds=embeds, position_ids=position, attention_mask=mask, past_key_values=cache, use_cache=True
        ).last_hidden_state

    def decode(self, codes: Tensor) -> Tensor:
        raise ValueError(self.no_pixels)

    @abstractmethod
    def codebook(self) -> Tensor:
        """float32 [K, d], the geometry in which codes are neighbours."""


def unit_range(pixels: Tensor) -> Tensor:
    """float32 pixels in 0..1 of pixels in -1..1, which is what the tokenizers of Janus and Emu3 give."""
    return ((pixels.float() + 1) / 2).clamp(0, 1)


def latent_side(pixels: int, factor: int, name: str) -> int:
    """Codes along a side. Raises ValueError for pixels that are no multiple of `factor`."""
    if pixels < factor or pixels % factor:
        raise ValueError(f"size: expected a {name} that is a multiple of {factor} pixels, got {pixels}")
    return pixels // factor


def check_grid(given: object, expected: tuple[int, ...], what: str) -> None:
    """Raises ValueError unless every row of `given` [..., n] is the grid the adapter was opened for."""
    rows = torch.as_tensor(given).cpu()
    if rows.numel() % len(expected) or not bool((rows.reshape(-1, len(expected)) == torch.tensor(expected)).all()):
        raise ValueError(f"{what}: expected {expected} for every image, got {rows.tolist()}; open the pipeline with the "
                         "size the prompts were made for")  # fmt: skip
