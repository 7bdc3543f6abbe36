"""Captions as in LlamaGen's training (cleaned twice, encoded by T5, real tokens last), and the files of the encoder."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import torch
from torch import Tensor, nn

from mmspec.core.pipeline_folder import Component, write_encoder
from mmspec.io.checkpoints import load_model, load_part, without_bars
from mmspec.io.validation import check_words

_DASHES = "‐‑‒–—―−⸺⸻﹘﹣－"
_DOUBLE, _SINGLE = "“”„‟«»″`´", "‘’‚‛"
_SAME = str.maketrans({**dict.fromkeys(_DASHES, "-"), **dict.fromkeys(_DOUBLE, '"'), **dict.fromkeys(_SINGLE, "'")})

# (pattern, replacement), applied in this order
_CUTS = [
    (re.compile(pattern), into)
    for pattern, into in (
        (r"<(?!person>)[^<>]*>", " "),
        (r"<person>", "person"),
        (r"(?:https?://|www\.)\S+", ""),
        (r"\b[\w-]+\.(?:com|co|ru|net|org|edu|gov|it)\b(?:/\S*)?", ""),
        (r"@[\w\d]+\b", ""),
        (r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+", ""),  # Japanese and Chinese, which the encoder does not know
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", " "),
        (r"\b\d{3,4}\s*[x×]\s*\d{3,4}\b", ""),
        (r"#\d+\b|\b\d{6,}\b", ""),
        (r"\S+\.(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4|gif)\b", ""),
        (r"\b(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4)\b", ""),
        (r"\b(?:worldwide\s+)?free\s+(?:shipping|download)\b|\bclick\b\s(?:for|on)\s\w+", " "),
        (r"\bpage\s+\d+\b", " "),
        (r"\b(?=[a-z]*\d)(?=\d*[a-z])[a-z\d]{9,}\b", ""),  # ids of letters and digits
        (r"[\"']{2,}", '"'),
        (r"\.{2,}", " "),
        (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
        (r"\s+\.\s+", " "),
    )
]
_TIDY = [
    (re.compile(pattern), into)
    for pattern, into in (
        (r"\s+([,.:;!?])", r"\1"),
        (r"([,;!?])(?=[^\s\d\"'])", r"\1 "),
        (r":(?=[^\s\d])", ": "),
        (r"\s+", " "),
        (r"^[\s'_,:;-]+|[\s'_,:;-]+$", ""),
        (r"^[\"'](.+)[\"']$", r"\1"),
        (r"^\.\S+$", ""),
    )
]


def clean_caption(text: str) -> str:
    """Return `text` in lower case without addresses, markup, file names and ids: our version of DeepFloyd IF's and
    PixArt's cleaner, which LlamaGen applies twice. Unusual remains of web pages may differ."""
    text = unquote_plus(str(text)) if re.search(r"%[0-9a-fA-F]{2}", text) else str(text)
    text = html.unescape(html.unescape(text)).strip().lower().translate(_SAME)
    for pattern, into in _CUTS:
        text = pattern.sub(into, text)
    if len(re.findall(r"[-_]", text)) > 3:
        text = re.sub(r"[-_]", " ", text)
    for pattern, into in _TIDY:
        text = pattern.sub(into, text)
    return text.strip()


class CaptionEncoder:
    """A text encoder of transformers, such as `T5EncoderModel` (flan-t5-xl for the published models), and its tokenizer.
    Captions are padded or cut to `length` tokens; `cleaned` applies `clean_caption` twice, as in the public sampler."""

    def __init__(self, encoder: nn.Module, tokenizer: object, length: int = 120, *, cleaned: bool = True):
        if length < 1:
            raise ValueError(f"length: expected at least 1, got {length}; use the transformer's cls_token_num")
        self.encoder, self.tokenizer = encoder.eval().requires_grad_(False), tokenizer
        self.length, self.cleaned = length, cleaned

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return features float [B, length, width], 0 at padding, and mask bool [B, length]; real tokens are last."""
        ids, mask = self._read(texts)
        device = next(self.encoder.parameters()).device
        ids, mask = ids.to(device), mask.to(device)
        features = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return to_the_right(features, mask.bool())

    def check(self, texts: list[str]) -> None:
        """Refuse a text without a known word, which would not determine the image; an empty text is meant so."""
        self._read(texts)

    def _read(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return ids and mask int64 [B, length], real tokens first."""
        words = [clean_caption(clean_caption(text)) for text in texts] if self.cleaned else texts
        rows = self.tokenizer(
            words,
            max_length=self.length,
            padding="max_length",
            padding_side="right",
            truncation=True,
            return_tensors="pt",
        )
        ids, mask = rows["input_ids"], rows["attention_mask"]
        check_words(texts, ids, mask, self.tokenizer)
        return ids, mask


def to_the_right(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate features float [B, P, C] and mask bool [B, P] until real tokens are last; zero at padding."""
    length = mask.shape[1]
    place = (torch.arange(length, device=mask.device) + mask.sum(-1, keepdim=True)) % length
    mask = mask.gather(1, place)
    features = features.gather(1, place[..., None].expand_as(features))
    return features * mask[..., None], mask


def read_captions(folder: Path, length: int, *, cleaned: bool) -> CaptionEncoder:
    """Load the encoder of a folder, and the tokenizer beside it."""
    encoder, tokenizer = read_encoder(folder), read_tokenizer(folder.with_name("tokenizer"))
    return CaptionEncoder(encoder, tokenizer, length, cleaned=cleaned)


def write_captions(captions: object, folder: Path) -> dict[str, Any]:
    """Write the encoder, and the tokenizer beside it. Return their entries for a pipeline's index."""
    if not isinstance(captions, CaptionEncoder):
        raise ValueError(
            f"captions: expected a CaptionEncoder to save, got {type(captions).__name__}; wrap its encoder and "
            "tokenizer in one"
        )
    entries = write_encoder(captions.encoder, captions.tokenizer, folder)
    return {**entries, "tokenizer": ["transformers", "AutoTokenizer"], "clean_captions": captions.cleaned}


def captions_component(length: str, *, needs_index: bool = False) -> Component:
    """Return the component of a caption encoder; `length` is the field of the transformer's config with its tokens."""

    def read(folder: Path, index: Mapping[str, Any], parts: Mapping[str, Any]) -> CaptionEncoder:
        tokens = getattr(parts["transformer"].config, length)
        return read_captions(folder, tokens, cleaned=index.get("clean_captions", True))

    how = dict(optional=True, needs_index=needs_index, module="encoder")
    return Component("text_encoder", "model.captions", read, write_captions, **how)


def read_encoder(folder: Path) -> nn.Module:
    """Load the encoder of a folder; the decoder of a whole T5 is left out."""
    from transformers import AutoModelForTextEncoding  # takes seconds, and pipelines of classes need no text

    with without_bars():
        return load_model(AutoModelForTextEncoding, folder)


def read_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = load_part(AutoTokenizer, folder)
    if tokenizer.pad_token is None:  # which token pads is of no effect behind a mask
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    return tokenizer
