"""ImageReward on the BLIP parts of transformers: the published package itself does not import with current ones.

"ImageReward: Learning and Evaluating Human Preferences for Text-to-Image Generation", arXiv 2304.05977.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmspec.core.readers import read_text
from mmspec.video.rewards.imagereward_config import ImageRewardConfig
from mmspec.video.rewards.views import Views, normalised, to_bytes

if TYPE_CHECKING:
    from transformers import BertTokenizer

MEAN, SPREAD = 0.16717362830052426, 1.0333394966054072  # of the raw scores of its training data
LONGEST = 35  # tokens


class ImageReward(nn.Module):
    """Both towers and the head, which is linear: the published layers have nothing between them but dropout."""

    def __init__(self, config: ImageRewardConfig):
        super().__init__()
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        vision, text = config.vision, config.text
        self.config = config
        self.vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=vision.embed_dim, num_hidden_layers=vision.depth, num_attention_heads=vision.num_heads,
                intermediate_size=int(vision.embed_dim * vision.mlp_ratio), image_size=vision.img_size,
                patch_size=vision.patch_size, layer_norm_eps=float(vision.norm_eps),
            )
        )  # fmt: skip
        self.text = BlipTextModel(
            BlipTextConfig(
                vocab_size=text.vocab_size, hidden_size=text.hidden_size, num_hidden_layers=text.num_hidden_layers,
                num_attention_heads=text.num_attention_heads, intermediate_size=text.intermediate_size,
                max_position_embeddings=text.max_position_embeddings, layer_norm_eps=float(text.layer_norm_eps),
                hidden_act=text.hidden_act, encoder_hidden_size=vision.embed_dim,
                bos_token_id=None, eos_token_id=None, sep_token_id=None,  # nothing is generated
                is_decoder=True,  # its layers have cross attention; the call below keeps them bidirectional
            ),
            add_pooling_layer=False,
        )  # fmt: skip
        self.head = nn.Linear(text.hidden_size, 1)

    def image_embeds(self, pixel_values: Tensor) -> Tensor:
        """[N, 3, S, S], normalised as CLIP's -> [N, 1 + cells, width]."""
        return self.vision(pixel_values).last_hidden_state

    def text_hidden(self, image_embeds: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Token ids [N, T], the first of which is CLS, read with the images [N, K, width] -> [N, T, hidden]."""
        return self.text(
            input_ids, attention_mask=attention_mask, encoder_hidden_states=image_embeds, is_decoder=False
        ).last_hidden_state

    @torch.no_grad()
    def forward(self, pixel_values: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Scores, float32 [N], of mean 0 and spread 1 over the training data.

        pixel_values: float [N, 3, S, S], normalised as CLIP's.   input_ids: int64 [N, T], the first CLS.
        attention_mask: [N, T], 1 for tokens that are no padding; None where there is none.
        """
        first = self.text_hidden(self.image_embeds(pixel_values), input_ids, attention_mask)[:, 0]
        raw = self.head(first.to(self.head.weight.dtype)).flatten().float()
        return (raw - MEAN) / SPREAD


@dataclass(frozen=True)
class ImageRewardScorer:
    """ImageReward as a `Reward`.

    tokenizer: of transformers, for uncased BERT, or its vocabulary file (vocab.txt). Prompts are cut at 35 tokens.
    views: the centre crop as published; `Views(crops="cover")` for wide videos.   batch: squares a pass.
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
        """float32 [F], as `Reward`."""
        weight = self.model.head.weight
        squares = self.views(to_bytes(frames).to(weight.device)).flatten(0, 1)
        ids, mask = (one.to(weight.device) for one in self.tokens(prompt))
        scores = [
            self.model(normalised(part, weight.dtype), ids.expand(len(part), -1), mask.expand(len(part), -1))
            for part in squares.split(self.batch)
        ]
        return self.views.joined(torch.cat(scores), len(frames))

    def tokens(self, prompt: str) -> tuple[Tensor, Tensor]:
        """(ids, mask), int64 [1, 35] each, padded.   Raises ValueError for a tokenizer of a larger vocabulary."""
        read: Any = self.tokenizer(
            [prompt], padding="max_length", truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        if (most := int(read["input_ids"].max())) >= self.model.config.text.vocab_size:
            raise ValueError(f"tokenizer: expected ids below {self.model.config.text.vocab_size}, got {most}; use the "
                             "vocabulary of uncased BERT")  # fmt: skip
        return read["input_ids"], read["attention_mask"]


def uncased_tokenizer(vocabulary: str | Path) -> BertTokenizer:
    """The tokenizer of uncased BERT from its vocabulary file, one token a line.   Raises ValueError for another file."""
    from transformers import BertTokenizer

    words = {word: number for number, word in enumerate(read_text(vocabulary).split("\n")) if word}
    if missing := [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if word not in words]:
        raise ValueError(
            f"{vocabulary}: expected the vocabulary of uncased BERT, got no {', '.join(missing)}; use its vocab.txt"
        )
    return BertTokenizer(vocab=words, do_lower_case=True)
