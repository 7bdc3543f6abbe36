"""Captions the way LlamaGen was trained on them: cleaned twice, encoded by T5, real tokens last."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.core.arguments import check_words
from mmspec.imagegen.llamagen.cleaning import clean


class CaptionEncoder:
    """Texts -> features over a `T5Encoder`, or a `T5EncoderModel` of transformers (flan-t5-xl for the published models), and
    its tokenizer.

    length: tokens every caption is padded or cut to, the transformer's cls_token_num.
    cleaned: whether texts go through `clean` twice first, as the public sampler does.
    """

    def __init__(self, encoder: nn.Module, tokenizer: object, length: int = 120, *, cleaned: bool = True):
        if length < 1:
            raise ValueError(f"length: expected at least 1, got {length}; use the transformer's cls_token_num")
        self.encoder, self.tokenizer = encoder.eval().requires_grad_(False), tokenizer
        self.length, self.cleaned = length, cleaned

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Features float [B, length, width], zero at padding, and mask bool [B, length], True at real tokens (the last).

        Raises ValueError as `check` does.
        """
        ids, mask = self._read(texts)
        device = next(self.encoder.parameters()).device
        ids, mask = ids.to(device), mask.to(device)
        features = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return to_the_right(features, mask.bool())

    def check(self, texts: list[str]) -> None:
        """Raises ValueError for a text of which the tokenizer knows no word: its picture would show anything. An empty text
        says nothing on purpose and passes."""
        self._read(texts)

    def _read(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 [B, length], real tokens first."""
        words = [clean(clean(text)) for text in texts] if self.cleaned else texts
        rows = self.tokenizer(words, max_length=self.length, padding="max_length", padding_side="right", truncation=True,
                              return_tensors="pt")  # fmt: skip
        ids, mask = rows["input_ids"], rows["attention_mask"]
        check_words(texts, ids, mask, self.tokenizer)
        return ids, mask


def to_the_right(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Right padding into left padding: features float [B, P, C] with every row turned until its real tokens are last and
    zero at padding, and the mask bool [B, P] turned with them."""
    length = mask.shape[1]
    place = (torch.arange(length, device=mask.device) + mask.sum(-1, keepdim=True)) % length
    mask = mask.gather(1, place)
    features = features.gather(1, place[..., None].expand_as(features))
    return features * mask[..., None], mask
