"""The caption encoder in a pipeline's folder, as transformers lays it out: text_encoder/ and tokenizer/."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from mmspec.core.checkpoints import weight_files
from mmspec.core.files import write_json_atomic, write_text_atomic, writing
from mmspec.core.readers import naming, open_tensors, read_json, read_text
from mmspec.imagegen.llamagen.load import t5_from_state_dict
from mmspec.imagegen.llamagen.store import CONFIG
from mmspec.imagegen.llamagen.t5 import T5Encoder
from mmspec.imagegen.llamagen.text import CaptionEncoder

_WORDS, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_DECODER = ("decoder.", "lm_head.")


def read_captions(folder: Path, length: int, *, cleaned: bool) -> CaptionEncoder:
    """The encoder and tokenizer in a pipeline's folder. length, cleaned: see `CaptionEncoder`.

    Raises ValueError, one sentence that names the file, for what is missing, damaged or no T5.
    """
    encoder, tokenizer = read_encoder(folder / "text_encoder"), FileTokenizer(folder / "tokenizer")
    return CaptionEncoder(encoder, tokenizer, length, cleaned=cleaned)


def write_captions(captions: object, folder: Path) -> dict[str, Any]:
    """Writes encoder and tokenizer into a pipeline's folder; returns what its index says of them.

    Raises ValueError when captions come from something else than a `CaptionEncoder`.
    """
    if not isinstance(captions, CaptionEncoder):
        raise ValueError(f"captions: expected a CaptionEncoder to save, got {type(captions).__name__}; wrap its encoder and "
                         "tokenizer in one")  # fmt: skip
    for part, name in ((captions.encoder, "text_encoder"), (captions.tokenizer, "tokenizer")):
        with writing(folder / name):
            part.save_pretrained(folder / name)
    # the encoder's files are those that both transformers' class and `T5Encoder` write
    return {"text_encoder": ["transformers", "T5EncoderModel"], "tokenizer": ["transformers", "AutoTokenizer"],
            "clean_captions": captions.cleaned}  # fmt: skip


def read_encoder(folder: Path) -> T5Encoder:
    """The encoder in a folder; of a whole T5 the rest is not read."""
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
    """What a tokenizer of transformers makes of captions, from its own files and without transformers.

    Raises ValueError for a folder without tokenizer.json, where that is damaged, and where code of its own belongs to it.
    """

    def __init__(self, folder: Path):
        if not (folder / _WORDS).is_file():
            raise ValueError(f"{folder}: expected {_WORDS}, got none; load an older tokenizer with AutoTokenizer of "
                             "transformers and save it there")  # fmt: skip
        self._text, settings = read_text(folder / _WORDS), folder / _SETTINGS
        self._settings = read_json(settings) if settings.is_file() else {}
        if "auto_map" in self._settings:
            raise ValueError(f"{folder}: expected a tokenizer that transformers has the code of, got one that brings its own, "
                             "which is never run; use a converted checkpoint")  # fmt: skip
        try:
            self._words = Tokenizer.from_str(self._text)
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"{folder / _WORDS}: expected a tokenizer, got {error}; fetch it again") from error

    def __call__(
        self, texts: list[str], *, max_length: int, padding: Literal["max_length"], truncation: Literal[True],
        return_tensors: Literal["pt"], padding_side: Literal["right"] = "right",
    ) -> dict[str, Tensor]:  # fmt: skip
        """input_ids, attention_mask: int64 [B, max_length]. The keywords are transformers'."""
        self._words.enable_truncation(max_length)
        self._words.enable_padding(length=max_length, direction=padding_side)  # with id 0, which the mask hides
        rows = self._words.encode_batch(texts)
        return {"input_ids": torch.tensor([row.ids for row in rows]),
                "attention_mask": torch.tensor([row.attention_mask for row in rows])}  # fmt: skip

    @property
    def all_special_ids(self) -> list[int]:
        """Ids that stand for no word: padding, the end, what is unknown, and what else the files call special."""
        named = [value for name, value in self._settings.items() if name.endswith("_token")]
        ids = [self._words.token_to_id(one.get("content", "") if isinstance(one, dict) else f"{one}") for one in named]
        added = [one for one, token in self._words.get_added_tokens_decoder().items() if token.special]
        return sorted({*added, *(one for one in ids if one is not None)})

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self._words.id_to_token(one) or "" for one in ids]

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the files this was read from."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomic(folder / _WORDS, self._text)
        write_json_atomic(folder / _SETTINGS, self._settings)
