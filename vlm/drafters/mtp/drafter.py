"""The multi-token-prediction layer of a checkpoint: one more decoder layer of the target's own class."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.mtp.unroll import unrolled
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.shaped import ShapedDrafter
from mmspec.vlm.drafters.slots import Slots, pack


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """hidden_size, vocab_size: the target's.   normed: whether the target's states are read behind its final norm, as vLLM and
    transformers do, or in front of it.   states_first: the states stand before the embeddings in what `fc` reads."""

    hidden_size: int
    vocab_size: int
    normed: bool = True
    states_first: bool = False


class Mtp(ShapedDrafter):
    """Slot j sees the embedding of token j + 1 and the target's state behind token j, each normed, joined by a linear layer,
    and passes them through a decoder of one layer of the target's class and a norm of its own ("DeepSeek-V3 Technical
    Report"); the target's head reads token j + 2 from that. Recursion feeds the normed output back, to any depth and on
    trees. Slot j stands at the position of token j + 1, on all axes the target has.

    Its weights are part of the checkpoint, and it is no drafter without its target; `published.write` gives one that was
    trained here a folder like a checkpoint's.
    """

    name = "mtp"
    trainable = False
    config: MtpConfig

    def __init__(self, config: MtpConfig, parts: Parts):
        super().__init__(config)
        width, norm = config.hidden_size, parts.decoder.norm
        self.levels = None if config.normed else (parts.layers,)
        self.decoder = one_layer(parts.decoder)
        self.embedding_norm, self.hidden_norm = (copy.deepcopy(norm) for _ in range(2))
        self.fc = nn.Linear(2 * width, width, bias=False)

    def open_without_prefill(self, target: object) -> object:
        """State of one request whose prompt is read before the first draft."""
        from mmspec.vlm.drafters.mtp.state import MtpState

        self.check(target.parts)
        return MtpState(self, target)

    def fuse(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """What the layer reads, [B, n, H], of next embeddings and states [B, n, H]."""
        pair = [self.embedding_norm(embeds), self.hidden_norm(hidden)]
        return self.fc(torch.cat(pair[::-1] if self.config.states_first else pair, -1))

    def read(self, view: PromptView) -> Slots:
        """What of a prompt becomes a slot: every pair."""
        read = self.fuse(view.embeds, view.hidden)
        return pack(read, read, view.real, torch.ones_like(view.picture) > 0)

    def unroll(self, slots: Slots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """See `unrolled`; slots stand where the view says the target has them.   Raises ValueError where it does not."""
        if view.place is None:
            raise ValueError("teacher: expected batches with the target's positions, got none; train by a live teacher")
        origin = slots.origin.clamp(min=0)
        position = view.place.gather(-1, origin.expand(*view.place.shape[:-2], -1, -1))
        embeds = view.embeds.gather(1, origin[:, first:, None].expand(-1, -1, view.embeds.shape[-1]))
        return unrolled(self.decoder, slots.attend, position, first, depths, lambda before: self.fuse(embeds, before))

    def forward(self, read: Tensor, position: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Normed outputs [B, n, H] of n new slots, see `fuse`, whose keys and values go to `cache`.

        position: int64 [B, n] or [A, B, n].   bias: additive [B or 1, 1, n, slots]; None where slots see all before them.
        """
        inputs = dict(inputs_embeds=read, position_ids=position, attention_mask=bias, past_key_values=cache)
        return self.decoder(**inputs, use_cache=True).last_hidden_state

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """float32 [..., V] of outputs [..., H]."""
        return head(out).float()

    def save_pretrained(self, folder: str | Path, *, dtype: object = None) -> None:
        """Raises ValueError: its weights are the checkpoint's."""
        raise ValueError("mtp: expected a drafter with files of its own, got layers of the target's checkpoint; load them "
                         "from there again")  # fmt: skip


@torch.no_grad()
def one_layer(decoder: nn.Module) -> nn.Module:
    """A decoder of the same class with one layer, of full attention and with experts where the target has any, and without
    embeddings."""
    config = copy.deepcopy(decoder.config)
    told = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_layer_types": None, "first_k_dense_replace": 0,
            "mlp_only_layers": [], "decoder_sparse_step": 1, "vocab_size": 1, "pad_token_id": None}  # fmt: skip
    for name, value in told.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, [config.mlp_layer_types[-1]] if name == "mlp_layer_types" else value)
    with torch.random.fork_rng():
        made = type(decoder)(config)
    made.embed_tokens = nn.Identity()
    return made
