"""EAGLE-3's drafter: a wide decoder layer over three levels of the target, and a head over part of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, rms_norm
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.round.cache import SlotCache
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureDrafter
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView
from mmspec.vlm.drafters.base.published_files import embedding_rows, for_vocabulary, plain_names
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction, ShapedDrafter
from mmspec.vlm.drafters.eagle3.eagle3_config import Eagle3Config, levels_of
from mmspec.vlm.drafters.eagle3.published import (
    eagle3_fields,
    filled,
    has_own_embedding,
    published_levels,
)
from mmspec.vlm.drafters.eagle3.state import Biases, Eagle3State
from mmspec.vlm.drafters.reduced_vocabulary import ReducedHead, reduced_vocabulary
from mmspec.vlm.hf_model import unwrapped
from mmspec.vlm.prefill import rotary_positions

MOST_DRAFT_TOKENS = 32000  # the public drafters' reduced vocabulary


@method(
    "eagle3",
    domain="vlm",
    kind="drafter",
    title="EAGLE-3",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=6,
    about="a layer over three levels of the target's states",
    paper="EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
)
class Eagle3(FeatureDrafter):
    """Drafts from low, middle and high states of the target. Exact in every shape.

    Paper: "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test". A linear layer
    joins the states to the target's width; the drafter's own outputs skip it. Attention reads [normed embedding ;
    normed state], and the residual is the state. The drafter's head scores a reduced vocabulary; other tokens are never
    drafted. `Eagle3Config` lists the options of other trainings, docs/concepts/drafters.md the differences.
    """

    kind: ClassVar[str] = "eagle3"
    config_class = Eagle3Config
    name, steps = "eagle3", ("levels", 1, 3)
    published_as = (
        "Eagle3Speculator",
        "Eagle3DraftModel",
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "CosyVoice3Eagle3LlamaForCausalLM",
        "LlamaEagle3DraftModel",
        "Qwen3Eagle3Model",
        "speculators:eagle3",
    )
    predicts_states: ClassVar[bool] = False
    writers: ClassVar[Mapping[str, str]] = {
        "vllm": "mmspec.vlm.export.eagle:eagle3_speculators",
        "sglang": "mmspec.vlm.export.eagle:eagle3_sglang",
    }
    config: Eagle3Config

    def __init__(self, config: Eagle3Config):
        ShapedDrafter.__init__(self, config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.levels = config.levels
        self.fc = nn.Linear(len(config.levels) * config.tapped, width, bias=False)
        self.embed_norm = nn.RMSNorm(width, eps=eps)
        self.state_norm = nn.RMSNorm(width, eps=eps)
        self.layer, *rest = map(DraftLayer, config.layers())
        self.rest = nn.ModuleList(rest)
        self.norm = nn.RMSNorm(width, eps=eps)
        self.head = ReducedHead(width, config.vocab_size, config.drafted, config.tied_head)
        self.levels_norm = nn.RMSNorm(self.fc.in_features, eps=eps) if config.norm_before_fc else None
        each = len(config.levels) if config.fc_norm else 0
        self.level_norms = nn.ModuleList(nn.RMSNorm(config.tapped, eps=eps) for _ in range(each))
        self.embed_tokens = nn.Embedding(config.vocab_size, width) if config.own_embedding else None
        self._start: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def start_from(self, parts: Parts) -> Self:
        """Copy the target's head, its final norm and, for an own embedding, its embedding. A vocabulary that is chosen
        later starts from the target's rows too."""
        rows = parts.head.weight
        if self.head.tied:
            self.head.tie(rows)
        else:
            self.head.weight.copy_(self.head.rows_of(rows))
        self._start = (rows,)  # in a tuple: not a weight of the drafter
        norm = getattr(getattr(parts.decoder, "norm", None), "weight", None)
        if norm is not None:
            self.norm.weight.copy_(norm)
        if self.embed_tokens is not None:
            self.embed_tokens.weight.copy_(embedding_rows(parts))
        return self

    @torch.no_grad()
    def with_vocabulary(self, ids: Sequence[int]) -> Self:
        """Return a drafter with these weights for these rising token ids only. A row of the head comes from this
        drafter, else from the target's rows (`start_from`); else it is new."""
        size = 0 if len(ids) == self.config.vocab_size else len(ids)
        other = type(self)(replace(self.config, draft_vocab_size=size))
        other.to(device=self.fc.weight.device, dtype=self.fc.weight.dtype).train(self.training)
        other.shapes = self.shapes
        if other.head.reduced:
            other.head.choose(ids)
        own = {name: value for name, value in self.state_dict().items() if not name.startswith("head.")}
        other.load_state_dict(own, strict=False)
        other._start = self._start
        if other.head.tied:
            for rows in self._start:
                other.head.tie(rows)
        else:
            self._copy_rows(other.head)
        return other.requires_grad_(self.fc.weight.requires_grad)

    def _copy_rows(self, head: ReducedHead) -> None:
        """Fill a head with this drafter's rows, or with the target's rows where this drafter has none."""
        tokens, known = head.tokens, self.head.tokens
        for rows in self._start:
            head.weight.copy_(head.rows_of(rows))
        row = torch.full((self.config.vocab_size,), -1, device=known.device)
        row[known] = torch.arange(len(known), device=known.device)
        row = row[tokens, None]
        own = self.head.weight[row[:, 0].clamp(min=0)]
        head.weight.copy_(torch.where(row >= 0, own, head.weight))

    def with_answers(
        self, answers: Iterable[Sequence[int]], most: int = 0, always: Iterable[int] = (), never: Iterable[int] = ()
    ) -> Self:
        """Return `with_vocabulary` for the answers' `most` frequent tokens, see `reduced_vocabulary`; 0 for the
        config's draft_vocab_size, or 32000 where it has none. `always` are kept and `never` left out, whatever their
        count."""
        vocab = self.config.vocab_size
        most = min(most or self.config.draft_vocab_size or MOST_DRAFT_TOKENS, vocab)
        return self.with_vocabulary(reduced_vocabulary(answers, vocab, most, always, never))

    padded_vocabulary: ClassVar[bool] = False  # loading for a target fills it up, since heads and embeddings have rows

    def check(self, parts: Parts) -> None:
        width = "target_hidden_size" if self.config.target_hidden_size else "hidden_size"
        self.check_sizes(parts, width, "train a drafter for this target")
        if (highest := max(self.levels)) > parts.layers:
            raise ValueError(
                f"levels: expected layers 0 to {parts.layers} of the target, got {highest}; train a drafter for this target"
            )

    def share(self, parts: Parts) -> None:
        if self.head.tied and self.head.weight is None:
            self.head.tie(parts.head.weight)

    def fitted(self, target: nn.Module) -> Self:
        drafter = super().fitted(target)
        drafter.share(take_apart(unwrapped(target)))
        return drafter

    @property
    def layers(self) -> tuple[DraftLayer, ...]:
        return (self.layer, *self.rest)

    def new_state(self, target: object) -> Eagle3State:
        return Eagle3State(self, target)

    def embeddings(self, ids: Tensor, parts: Parts) -> Tensor:
        """Return the embeddings of text, float [B, n, H], of ids int64 [B, n]: the drafter's own, else the target's."""
        return parts.embed(ids) if self.embed_tokens is None else self.embed_tokens(ids)

    def embedded(self, view: PromptView, ids: Tensor) -> PromptView:
        if self.embed_tokens is not None:
            own = self.embed_tokens(ids[:, 1:])
            if own.shape == view.embeds.shape:  # another width has no place for a picture's embeddings
                own = torch.where(view.picture[..., None] > 0, view.embeds, own)
            view.embeds = own
        return view

    def read(self, view: PromptView) -> PromptSlots:
        """Return the slots of a prompt: every pair is a slot. With several axes, positions are the target's, int64 [A,
        B, R]: the state behind a token and the next token's embedding stand at the first token's position."""
        width = self.fc.in_features
        if view.hidden.shape[-1] != width:
            raise ValueError(
                f"hidden: expected the states of levels {self.levels} side by side, width {width}, got width "
                f"{view.hidden.shape[-1]}; ask the target for the drafter's `levels`"
            )
        slots = FeatureDrafter.read(self, view)
        if axes := len(self.config.rope_scaling.get("mrope_section", ())):
            if view.place is None:
                raise ValueError(
                    "mrope_section: expected a prompt with the target's positions, got none; train on a live teacher's batches"
                )
            place = rotary_positions(view.place)
            place = place.expand(axes, *view.picture.shape)
            before = torch.cat([place[..., :1].amin(0, keepdim=True).expand(axes, -1, -1) - 1, place[..., :-1]], -1)
            slots.position = before.clamp(min=0).gather(-1, slots.origin.clamp(min=0).expand(axes, -1, -1))
        return slots

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the input of attention [B, n, 2 H] and the residual [B, n, H], of the next tokens' embeddings [B, n,
        H] and the target's levels, joined [B, n, 3 H], or the drafter's own outputs [B, n, H]."""
        if hidden.shape[-1] != self.config.hidden_size:
            hidden = small_linear(self._normed_levels(hidden), self.fc.weight)
        state = rms_norm(self.state_norm, hidden)
        read = torch.cat([rms_norm(self.embed_norm, embeds), state], -1)
        return read, state if self.config.norm_before_residual else hidden

    def _normed_levels(self, hidden: Tensor) -> Tensor:
        if self.levels_norm is not None:
            return rms_norm(self.levels_norm, hidden)
        if not len(self.level_norms):
            return hidden
        levels = hidden.chunk(len(self.level_norms), -1)
        return torch.cat([rms_norm(norm, level) for norm, level in zip(self.level_norms, levels, strict=True)], -1)

    def forward(
        self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | Biases | None
    ) -> Tensor:
        """Return the outputs [B, n, H] of n new slots, see `DraftLayer.forward`; a list has a bias per layer."""
        biases = bias if isinstance(bias, list) else [bias] * len(self.layers)
        for index, (layer, own) in enumerate(zip(self.layers, biases, strict=True)):
            query, key, value = layer.heads(attend, rotary)
            keys, values = cache.write(index, key, value)
            causal = own is None and attend.shape[1] > 1
            attend = carry = layer.finish(carry, layer.attention(query, keys, values, own, causal))
        return self.finished(carry)

    def finished(self, out: Tensor) -> Tensor:
        return rms_norm(self.norm, out) if self.config.norm_output else out

    def scores(self, out: Tensor) -> Tensor:
        """Return the float32 scores [..., k] of the tokens that it can draft, from outputs [..., H]."""
        return self.head(out if self.config.norm_output else rms_norm(self.norm, out))

    def own_logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        return self.scores(out)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        return self.head.spread(self.scores(out))

    @property
    def vocabulary(self) -> Tensor | None:
        return self.head.ids if self.head.reduced else None

    def prediction(
        self, out: Tensor, depth: int, parts: Parts, teacher: Tensor, token: Tensor, truth: Tensor
    ) -> DraftPrediction:
        """See `ShapedDrafter.prediction`; it covers the reduced vocabulary and no feature."""
        return DraftPrediction(self.scores(out), teacher, token, depth)

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes_for(parts, sizes) | {"levels": levels_of(parts.layers)}

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint; for levels see `published_levels`.

        - A config with `transformer_layer_config` is in the format of `speculators`, any other in the original's.
        - `norm_before_residual` defaults to False, as in the original's code; vLLM defaults to True.
        - `norm_output` of SpecForge's class means the norm in front of the head; elsewhere the drafter reads it back.
        - `mrope_section` in a flat config turns by the target's positions of a picture, on all axes.
        - `rope_theta` is the config's; pass 10000 to draft as the public training code did.
        - `d2t` holds offsets: row i scores token i + d2t[i]. Without it, the whole vocabulary is drafted.
        - Without `lm_head`, the target's head is meant.
        - A stored embedding that differs from the target's is the drafter's own; so is any embedding without a target.
        - A window hides slots W or more tokens before a query; the library's training counts from the start of a draft.
        """
        state, config = for_vocabulary(plain_names(state), config, target)
        fields = eagle3_fields(state, config) | {"own_embedding": has_own_embedding(state, target)}
        return filled(cls(Eagle3Config(**fields, levels=published_levels(state, config, target))), state)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: 40 epochs of 530k conversations, batch 2."""
        from mmspec.vlm.training.recipes import depth_recipe

        return {cls.kind: depth_recipe("cross_entropy", depths=7, depth_decay=0.8, lr=5e-5, warmup=12_000 / 800_000)}
