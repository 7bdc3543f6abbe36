"""Chimera: heads on a layer over the target's states, which also read a code of the last three tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.methods import method
from mmspec.vlm.drafters.base.head_drafter import HeadBlock
from mmspec.vlm.drafters.base.prefix_heads import PrefixConfig, PrefixHeadDrafter, PrefixState, at_paths
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, shift_rows

GRAM = 3  # the tokens of a code


@dataclass(frozen=True, slots=True)
class ChimeraConfig(PrefixConfig):
    """The sizes of Chimera: a prefix layer, and by default the target's own head for all levels."""

    prefix_layer: bool = True
    own_head: bool = False


class TrigramEncoder(nn.Module):
    """An MLP from the embeddings of three tokens, [..., 3 * H], to their code [..., H]; new codes are 0."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Linear(GRAM * width, 2 * width)
        self.outer = nn.Linear(2 * width, width, bias=False)
        nn.init.zeros_(self.outer.weight)

    def forward(self, embeds: Tensor) -> Tensor:
        return self.outer(F.silu(self.inner(embeds)))


@method(
    "chimera",
    domain="vlm",
    kind="drafter",
    title="Chimera",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=12,
    about="heads on a layer over the target's states that read the last three tokens",
    paper="Chimera: A Lossless Decoding Method for Accelerating Large Language Models Inference by Fusing all Tokens",
)
class Chimera(PrefixHeadDrafter):
    """Heads that read the last three tokens as one code, wherever they lie in the draft. Exact in every shape.

    Paper: "Chimera: A Lossless Decoding Method" (arXiv 2402.15758). Head i adds the code of the three tokens before its
    own to the prefix state that the draft starts from, and passes the sum through its residual blocks. In the paper the
    layer also attends to the codes of drafted tokens; here it reads committed states alone, once a draft. Unlike Hydra's,
    a head does not grow with its depth. In pictures, a token's embedding is its visual feature.
    """

    kind: ClassVar[str] = "chimera"
    config_class = ChimeraConfig
    name = "chimera"
    config: ChimeraConfig

    def __init__(self, config: ChimeraConfig):
        super().__init__(config)
        self.encoder = TrigramEncoder(config.hidden_size)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(HeadBlock(config.hidden_size) for _ in range(config.layers))) for _ in range(config.heads)
        )

    def new_state(self, target: object) -> ChimeraState:
        return ChimeraState(self, target)

    def feature(self, index: int, states: Tensor, embeds: Tensor) -> Tensor:
        """Return the output [B, n, H] of head `index`, from 0. Drafts start from prefix states [B, n or 1, H];
        `embeds`, [B, n, 3 * H], are those of the last three tokens, the newest last."""
        return self.blocks[index](states + self.encoder(embeds))

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return each depth's head output [B, R - first, H], from the prefix state `depth` slots earlier. The code of a
        slot is the same at every depth: its last three tokens are the text's."""
        states, start = self.prefix_states(slots, first), max(first - GRAM + 1, 0)
        embeds = view.embeds_of(slots, start)
        gram = torch.cat([shift_rows(embeds, back) for back in range(GRAM - 1, -1, -1)], -1)[:, first - start :]
        code = self.encoder(gram)
        return [self.blocks[d](shift_rows(states, d) + code) for d in range(min(depths, self.config.heads))]

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return a recipe of the paper's losses: cross-entropy with the target's distributions and with the text."""
        from mmspec.vlm.training.recipes import head_recipe

        return {cls.kind: head_recipe("cross_entropy,hard_cross_entropy")}


class ChimeraState(PrefixState):
    """The state of a request. `before`, [B, 2, H], are the embeddings of the two tokens before the root, None before
    the prompt is read. `known`, [B, 3 + drafted, H], are these, the root's, and those of the drafted nodes expanded so
    far."""

    known: Tensor

    def serve(self, target: object) -> None:
        super().serve(target)
        self.before: Tensor | None = None

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        super().observe(target, draft, evidence, verdict)
        if self.before is None:  # the root of this round is the prompt's last token
            self.before = self._end_of_prompt()
            return
        path = draft.value.gather(1, verdict.path)
        text = torch.cat([self.before, target.parts.embed(path)], 1)
        place = verdict.depth[:, None] + torch.arange(1, GRAM, device=path.device)
        self.before = text.gather(1, place[..., None].expand(-1, -1, text.shape[-1]))

    def _end_of_prompt(self) -> Tensor:
        """Return the embeddings of the prompt's last two tokens, with visual features; zeros before its first token."""
        target = self.target
        end, count = target.prompt_embeds[:, 1 - GRAM :], GRAM - 1
        if end.shape[1] < count:  # a turn of one token
            earlier = target.parts.embed(target.prompt[:, -count : -end.shape[1]])
            end = torch.cat([earlier, end], 1)
        return F.pad(end, (0, 0, count - end.shape[1], 0))

    def begin(self) -> Tensor:
        self.known = torch.cat([self.before, self.target.parts.embed(self.target.pending[:, None])], 1)
        return self.drafter.feature(0, self.source, self.known.flatten(1)[:, None])

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        self.passes += 1
        self.known = torch.cat([self.known[:, : back + GRAM], self.target.parts.embed(token)], 1)
        if ancestor is None:
            return self.drafter.feature(depth, self.source, self.known[:, -GRAM:].flatten(1)[:, None])
        gram = at_paths(self.known, ancestor, depth)[:, :, -GRAM:].flatten(2)
        return self.drafter.feature(depth, self.source, gram)
