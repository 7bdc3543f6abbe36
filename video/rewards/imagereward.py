"""ImageReward on the BLIP parts of transformers; the published package cannot be imported with current versions.

"ImageReward: Learning and Evaluating Human Preferences for Text-to-Image Generation", arXiv 2304.05977.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.io.loading import count_modules
from mmspec.io.readers import read_text
from mmspec.io.validation import check_types, from_fields
from mmspec.video.rewards.scores import Views, normalised, to_bytes

if TYPE_CHECKING:
    from transformers import BertTokenizer


VISION, TEXT, MLP = "blip.visual_encoder.", "blip.text_encoder.", "mlp.layers."
_HEADS = {("vision", 1024): 16, ("text", 768): 12}  # of the published widths
_SHORT = {"width": "embed_dim", "heads": "num_heads", "patch": "patch_size", "image": "img_size"}
_VISION_LEFT_OUT = ("drop_path_rate", "in_chans", "num_classes", "qkv_bias", "drop_rate", "attn_drop_rate")
# fields of training, fields with the same value in every such model, and the width of the vision tower
_TEXT_LEFT_OUT = (
    "architectures", "model_type", "transformers_version", "attention_probs_dropout_prob", "hidden_dropout_prob",
    "initializer_range", "pad_token_id", "type_vocab_size", "add_type_embeddings", "add_cross_attention", "encoder_width",
    "fusion_layer", "gradient_checkpointing", "position_embedding_type", "use_cache", "torch_dtype",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VisionTowerSizes:
    img_size: int = 224
    patch_size: int = 16
    embed_dim: int = 1024
    depth: int = 24
    num_heads: int = 16
    mlp_ratio: float = 4
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class TextTowerSizes:
    """The text tower, a BERT whose layers also attend to the image."""

    vocab_size: int = 30524
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"


@dataclass(frozen=True, slots=True)
class ImageRewardConfig:
    """The sizes of both towers, and the widths of the layers after them, the last of which is 1."""

    vision: VisionTowerSizes = field(default_factory=VisionTowerSizes)
    text: TextTowerSizes = field(default_factory=TextTowerSizes)
    mlp: tuple[int, ...] = (768, 1024, 128, 64, 16, 1)

    def __post_init__(self) -> None:
        for part, width, heads in (
            ("vision", self.vision.embed_dim, self.vision.num_heads),
            ("text", self.text.hidden_size, self.text.num_attention_heads),
        ):
            if min(width, heads) < 1 or width % heads:
                raise ValueError(
                    f"{part}: expected a width that is a multiple of its heads, got {width} and {heads}; correct it"
                )
        if self.vision.patch_size < 1 or self.vision.img_size % self.vision.patch_size:
            raise ValueError(
                f"vision: expected pictures of whole patches, got {self.vision.img_size} pixels and patches of "
                f"{self.vision.patch_size}; correct it"
            )

    @classmethod
    def of(cls, config: Mapping[str, Any] | None, weights: Mapping[str, Tensor]) -> ImageRewardConfig:
        """Return the config from weights under published names, and the fields of med_config.json or of both towers."""
        declared = dict(config or {})
        parts = declared if {"vision", "text", "mlp"} & declared.keys() else {"text": declared}
        if unknown := sorted(parts.keys() - {"vision", "text", "mlp"}):
            raise ValueError(f"config: expected vision, text and mlp, got {unknown} too; put them under one of these")
        if strange := [name for name in ("vision", "text") if not isinstance(parts.get(name, {}), Mapping)]:
            raise ValueError(f"config: expected fields under {strange[0]}, got {parts[strange[0]]!r:.60}; correct it")
        check_types(cls, {name: value for name, value in parts.items() if name == "mlp"})
        vision = {_SHORT.get(name, name): value for name, value in parts.get("vision", {}).items()}
        vision, text = _without(vision, _VISION_LEFT_OUT), _without(parts.get("text", {}), _TEXT_LEFT_OUT)
        vision, text = _vision(weights) | vision, _text(weights) | text
        if "num_heads" not in vision:
            vision["num_heads"] = _heads("vision", vision.get("embed_dim"))
        if "num_attention_heads" not in text:
            text["num_attention_heads"] = _heads("text", text.get("hidden_size"))
        widths = parts.get("mlp") or _mlp(weights)
        return cls(
            from_fields(VisionTowerSizes, vision, owner="the vision tower of ImageReward"),
            from_fields(TextTowerSizes, text, owner="the text tower of ImageReward"),
            tuple(widths) or cls().mlp,
        )


def _without(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def mlp_layers(weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the linear layers after the towers, in order; dropouts lie between some of them."""
    numbers = {name.removeprefix(MLP).partition(".")[0] for name in weights if name.startswith(MLP)}
    return [f"{MLP}{number}" for number in sorted(map(int, filter(str.isdecimal, numbers)))]


def _vision(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    width, patch = _size(weights, VISION + "cls_token", 2), _size(weights, VISION + "patch_embed.proj.weight", 2)
    cells, hidden = _size(weights, VISION + "pos_embed", 1) - 1, _size(weights, VISION + "blocks.0.mlp.fc1.weight", 0)
    sizes = {
        "embed_dim": width,
        "patch_size": patch,
        "depth": count_modules(weights, re.escape(VISION) + r"blocks\.(\d+)\."),
    }
    sizes |= {"img_size": isqrt(max(cells, 0)) * patch, "mlp_ratio": hidden / width if width else 0}
    return {name: size for name, size in sizes.items() if size}


def _text(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    sizes = {
        "vocab_size": _size(weights, TEXT + "embeddings.word_embeddings.weight", 0),
        "hidden_size": _size(weights, TEXT + "embeddings.word_embeddings.weight", 1),
        "max_position_embeddings": _size(weights, TEXT + "embeddings.position_embeddings.weight", 0),
        "num_hidden_layers": count_modules(weights, re.escape(TEXT) + r"encoder\.layer\.(\d+)\."),
        "intermediate_size": _size(weights, TEXT + "encoder.layer.0.intermediate.dense.weight", 0),
    }
    return {name: size for name, size in sizes.items() if size}


def _mlp(weights: Mapping[str, Tensor]) -> tuple[int, ...]:
    names = [f"{layer}.weight" for layer in mlp_layers(weights)]
    return (*(_size(weights, name, 1) for name in names[:1]), *(_size(weights, name, 0) for name in names))


def _heads(part: str, width: int | None) -> int:
    if (part, width) in _HEADS:
        return _HEADS[part, width]
    name = "num_heads" if part == "vision" else "num_attention_heads"
    raise ValueError(
        f"{name}: expected it in the config under {part}, since a width of {width} is not the published one, got "
        "none; give it"
    )


def _size(weights: Mapping[str, Tensor], key: str, axis: int) -> int:
    return weights[key].shape[axis] if key in weights and weights[key].dim() > axis else 0


MEAN, SPREAD = 0.16717362830052426, 1.0333394966054072  # of the raw scores on the training data
LONGEST = 35  # tokens


class ImageReward(nn.Module):
    """Both towers and a linear head; the published head has several layers with only dropout between them."""

    def __init__(self, config: ImageRewardConfig):
        super().__init__()
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        vision, text = config.vision, config.text
        self.config = config
        self.vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=vision.embed_dim,
                num_hidden_layers=vision.depth,
                num_attention_heads=vision.num_heads,
                intermediate_size=int(vision.embed_dim * vision.mlp_ratio),
                image_size=vision.img_size,
                patch_size=vision.patch_size,
                layer_norm_eps=float(vision.norm_eps),
            )
        )
        self.text = BlipTextModel(
            BlipTextConfig(
                vocab_size=text.vocab_size,
                hidden_size=text.hidden_size,
                num_hidden_layers=text.num_hidden_layers,
                num_attention_heads=text.num_attention_heads,
                intermediate_size=text.intermediate_size,
                max_position_embeddings=text.max_position_embeddings,
                layer_norm_eps=float(text.layer_norm_eps),
                hidden_act=text.hidden_act,
                encoder_hidden_size=vision.embed_dim,
                bos_token_id=None,
                eos_token_id=None,
                sep_token_id=None,  # nothing is generated
                is_decoder=True,  # its layers have cross attention; the call below keeps them bidirectional
            ),
            add_pooling_layer=False,
        )
        self.head = nn.Linear(text.hidden_size, 1)

    def image_embeds(self, pixel_values: Tensor) -> Tensor:
        """Return image states [N, 1 + cells, width] of pixels [N, 3, S, S], normalised as for CLIP."""
        return self.vision(pixel_values).last_hidden_state

    def text_hidden(self, image_embeds: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return states [N, T, hidden] of token ids [N, T], the first of which is CLS, given images [N, K, width]."""
        return self.text(
            input_ids, attention_mask=attention_mask, encoder_hidden_states=image_embeds, is_decoder=False
        ).last_hidden_state

    @torch.no_grad()
    def forward(self, pixel_values: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return scores float32 [N], with mean 0 and deviation 1 over the training data. Pixels are as in
        `image_embeds`, token ids as in `text_hidden`. The mask [N, T] is 1 for tokens, 0 for padding; None without
        padding."""
        first = self.text_hidden(self.image_embeds(pixel_values), input_ids, attention_mask)[:, 0]
        raw = self.head(first.to(self.head.weight.dtype)).flatten().float()
        return (raw - MEAN) / SPREAD


@dataclass(frozen=True)
class ImageRewardScorer:
    """ImageReward as a `Reward`.

    Args:
        tokenizer: A transformers tokenizer of uncased BERT, or its vocabulary file (vocab.txt). Prompts are cut to 35
            tokens.
        views: The squares of a frame; None for the published centre crop. Use `Views(crops="cover")` for wide videos.
        batch: Squares per pass.

    Raises:
        ValueError: The squares have another size than the model's images.
    """

    model: ImageReward
    tokenizer: Callable[..., Mapping[str, Tensor]] | str | Path
    views: Views | None = None
    batch: int = 16
    name = "ImageReward"

    def __post_init__(self) -> None:
        if isinstance(self.tokenizer, str | Path):
            object.__setattr__(self, "tokenizer", uncased_tokenizer(self.tokenizer))
        size = self.model.config.vision.img_size
        if self.views is None:
            object.__setattr__(self, "views", Views(size))
        if self.views.size != size:
            raise ValueError(f"views: expected squares of {size} pixels, got {self.views.size}; use Views(size={size})")

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """Return a score per frame, float32 [F]."""
        weight = self.model.head.weight
        squares = rearrange(self.views(to_bytes(frames).to(weight.device)), "f v c h w -> (f v) c h w")
        ids, mask = (tensor.to(weight.device) for tensor in self.tokens(prompt))
        scores = [
            self.model(normalised(part, weight.dtype), ids.expand(len(part), -1), mask.expand(len(part), -1))
            for part in squares.split(self.batch)
        ]
        return self.views.joined(torch.cat(scores), len(frames))

    def tokens(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Return (ids, mask), int64 [1, 35] each, padded."""
        settings: Any = {"padding": "max_length", "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
        rows, words = self.tokenizer([prompt], **settings), self.model.config.text.vocab_size
        if (most := int(rows["input_ids"].max())) >= words:
            raise ValueError(f"tokenizer: expected ids below {words}, got {most}; use the vocabulary of uncased BERT")
        return rows["input_ids"], rows["attention_mask"]


def uncased_tokenizer(vocabulary: str | Path) -> BertTokenizer:
    """Return the tokenizer of uncased BERT from its vocabulary file, a token per line."""
    from transformers import BertTokenizer

    words = {word: number for number, word in enumerate(read_text(vocabulary).split("\n")) if word}
    if missing := [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if word not in words]:
        raise ValueError(
            f"{vocabulary}: expected the vocabulary of uncased BERT, got no {', '.join(missing)}; use its vocab.txt"
        )
    return BertTokenizer(vocab=words, do_lower_case=True)
