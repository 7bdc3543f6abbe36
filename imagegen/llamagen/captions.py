"""Captions as in LlamaGen's training (cleaned twice, encoded by T5, real tokens last), and the files of the encoder."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_plus

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from mmspec.imagegen.components import CONFIG
from mmspec.imagegen.llamagen.load import t5_from_state_dict
from mmspec.imagegen.llamagen.t5 import T5Encoder
from mmspec.io.checkpoints import weight_files
from mmspec.io.files import write_json_atomic, write_text_atomic, writing
from mmspec.io.readers import naming, open_tensors, read_json, read_text
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
    """A `T5Encoder`, or a `T5EncoderModel` of transformers (flan-t5-xl for the published models), and its tokenizer.
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


_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_DECODER = ("decoder.", "lm_head.")


def read_captions(folder: Path, length: int, *, cleaned: bool) -> CaptionEncoder:
    encoder, tokenizer = read_encoder(folder / "text_encoder"), FileTokenizer(folder / "tokenizer")
    return CaptionEncoder(encoder, tokenizer, length, cleaned=cleaned)


def write_captions(captions: object, folder: Path) -> dict[str, Any]:
    """Write the encoder and the tokenizer into a pipeline's folder and return their entries for its index."""
    if not isinstance(captions, CaptionEncoder):
        raise ValueError(
            f"captions: expected a CaptionEncoder to save, got {type(captions).__name__}; wrap its encoder and "
            "tokenizer in one"
        )
    for part, name in ((captions.encoder, "text_encoder"), (captions.tokenizer, "tokenizer")):
        with writing(folder / name):
            part.save_pretrained(folder / name)
    # transformers' class and `T5Encoder` write the same files
    return {
        "text_encoder": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "AutoTokenizer"],
        "clean_captions": captions.cleaned,
    }


def read_encoder(folder: Path) -> T5Encoder:
    """Load the encoder of a folder; the decoder of a whole T5 is not read."""
    config, weights = read_json(folder / CONFIG), {}
    files = weight_files(folder)
    if not files:
        raise ValueError(f"{folder}: expected model.safetensors, got none; save the encoder as safetensors")
    for file in files:
        with open_tensors(file) as opened:
            weights |= {name: opened.get_tensor(name) for name in opened.keys() if not name.startswith(_DECODER)}
    with naming(folder):
        return t5_from_state_dict(weights, config)


class FileTokenizer:
    """A tokenizer of transformers, read from its own files without transformers."""

    def __init__(self, folder: Path):
        if not (folder / _TOKENIZER).is_file():
            raise ValueError(
                f"{folder}: expected {_TOKENIZER}, got none; load an older tokenizer with AutoTokenizer of "
                "transformers and save it there"
            )
        self._text, settings = read_text(folder / _TOKENIZER), folder / _SETTINGS
        self._settings = read_json(settings) if settings.is_file() else {}
        if "auto_map" in self._settings:
            raise ValueError(
                f"{folder}: expected a tokenizer whose code is in transformers, got a tokenizer that brings "
                "its own code, which is never run; use a converted checkpoint"
            )
        try:
            self._words = Tokenizer.from_str(self._text)
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"{folder / _TOKENIZER}: expected a tokenizer, got {error}; fetch it again") from error

    def __call__(
        self,
        texts: list[str],
        *,
        max_length: int,
        padding: Literal["max_length"],
        truncation: Literal[True],
        return_tensors: Literal["pt"],
        padding_side: Literal["right"] = "right",
    ) -> dict[str, Tensor]:
        """Return input_ids and attention_mask, int64 [B, max_length]. The keywords are those of transformers."""
        self._words.enable_truncation(max_length)
        self._words.enable_padding(length=max_length, direction=padding_side)  # with id 0, which the mask hides
        rows = self._words.encode_batch(texts)
        return {
            "input_ids": torch.tensor([row.ids for row in rows]),
            "attention_mask": torch.tensor([row.attention_mask for row in rows]),
        }

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that are no words: padding, end, unknown, and the other special tokens of the files."""
        tokens = [value for name, value in self._settings.items() if name.endswith("_token")]
        words = [token.get("content", "") if isinstance(token, dict) else f"{token}" for token in tokens]
        ids = [self._words.token_to_id(word) for word in words]
        added = [number for number, token in self._words.get_added_tokens_decoder().items() if token.special]
        return sorted({*added, *(number for number in ids if number is not None)})

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self._words.id_to_token(number) or "" for number in ids]

    def save_pretrained(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomic(folder / _TOKENIZER, self._text)
        write_json_atomic(folder / _SETTINGS, self._settings)
