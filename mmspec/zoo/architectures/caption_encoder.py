"""A small T5 encoder for prompts, trained to store all facts of a prompt in the state of every token.

LlamaGen's image tokens attend evenly to all caption tokens, whose rotary rows are zero. A small model that has to match
colors to shapes itself confuses them for thousands of training steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.imagegen.conditioning import CaptionProjection
from mmspec.zoo.world.image import CLASSES, PLACES
from mmspec.zoo.world.scene import BACKDROPS, COLORS, SHAPES, TONES

WIDTH = 128


def new_encoder(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> T5EncoderModel:
    """Return a newly initialised encoder: three layers of 128."""
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        d_kv=32,
        num_heads=4,
        d_ff=256,
        num_layers=3,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=64,
        is_encoder_decoder=False,
    )
    encoder = T5EncoderModel(config)
    # adjacent words belong together: three heads initially attend one and two tokens back, and one ahead
    with torch.no_grad():
        bias = encoder.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        for head, bucket in enumerate((1, 2, config.relative_attention_num_buckets // 2 + 1)):
            bias[bucket, head] = 4.0
    return encoder


# facts of a picture: its classes, then facts by place, with the last index for an empty place
HEADS = {"pairs": CLASSES, "color": 9 * (len(COLORS) + 1), "shape": 9 * (len(SHAPES) + 1), "size": 9 * 3,
         "tone": len(TONES), "backdrop": len(BACKDROPS)}  # fmt: skip
OWN_HEADS = {
    "color": len(COLORS),
    "place": len(PLACES),
    "size": 2,
}  # facts of the object that a shape's word names


class FactReader(nn.Module):
    """The encoder with heads that read a picture's facts from single tokens, and an object's facts from its shape's
    token. `projection`, float [..., 128] -> [..., dim], can initialise a transformer of width `dim`."""

    def __init__(
        self, encoder: T5EncoderModel, dim: int, heads: Mapping[str, int] = HEADS, own: Mapping[str, int] = OWN_HEADS
    ):
        super().__init__()
        self.encoder, self.projection = encoder, CaptionProjection(WIDTH, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU())
        self.own = nn.ModuleDict({name: nn.Linear(WIDTH, size) for name, size in own.items()})
        self.heads = nn.ModuleDict({name: nn.Linear(2 * dim, size) for name, size in heads.items()})

    def forward(self, ids: Tensor, mask: Tensor, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return logits of the picture by head, [B, size], and of each token, [B, S, size], from ids and mask int64 [B,
        S]. `seed` selects the token of each row from which the facts of the picture are read."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        place = torch.multinomial(mask.float(), 1, generator=torch.Generator().manual_seed(seed))[:, 0]
        seen = self.projection(states[torch.arange(len(ids)), place])
        hidden = self.mix(F.rms_norm(seen, seen.shape[-1:]))
        return {name: head(hidden) for name, head in self.heads.items()}, {k: h(states) for k, h in self.own.items()}
