"""A draft model: a smaller transformers model with the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.core.drafting.growth import draft_of_chain
from mmspec.core.drafting.guided import drawable, guide_of
from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import attention_masks
from mmspec.core.length.controls import FixedLength, LengthControl, control_for, grow_by, learn_lengths, show_drawn
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.sampling import draw
from mmspec.core.round.tree import chain
from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.pretrained import folder_of, from_zoo
from mmspec.methods import MethodParts, method, value_of
from mmspec.vlm.architectures import Parts, parts_of
from mmspec.vlm.drafters.base.draft_model import attention_parts, check_fits, mask_placeholders, prompt_for
from mmspec.vlm.hf_model import unwrapped
from mmspec.vlm.hidden_states import record_states
from mmspec.vlm.prefill import first_inputs, first_positions, wrapped_logits
from mmspec.vlm.processors.guide import ProcessorGuide
from mmspec.vlm.target import TextTarget


class SmallModel:
    """Chain drafts from a smaller transformers model. Exact.

    Paper: "Fast Inference from Transformers via Speculative Decoding".

    Args:
        model: A model of the target's class, which sees the whole prompt, or a text-only model, which sees the text. It
            has the target's vocabulary or a prefix of it.
        length: A controller such as FixedLength or its text form, "confidence:threshold=0.4". It decides before each
            draw, so sampled drafts keep their distribution.

    Raises:
        ValueError: The model is not supported, or a target has another vocabulary, class or device.
    """

    name = "small_model"
    from_ids = True

    def __init__(self, model: nn.Module, length: LengthControl | str | None = None):
        self.parts = attention_parts(model)
        self.length = FixedLength() if length is None else value_of(length, "vlm", "controller")

    def open(self, target: TextTarget) -> SmallModelState:
        state = self.open_without_prefill(target)
        state.prefill(target)
        return state

    def open_without_prefill(self, target: TextTarget) -> SmallModelState:
        """Return the state of a request whose prompt is read before the first draft."""
        check_fits(self.parts, target)
        return SmallModelState(self, target)


class SmallModelState:
    """The model has read `taken` generated tokens per row, and `ahead` draft tokens beyond these."""

    def __init__(self, drafter: SmallModel, target: TextTarget):
        self.parts, self.length = parts_of(drafter.parts.model), control_for(drafter.length, target)
        room = min(target.stopping.most or 512, 512) + self.length.longest
        self.context = SmallModelContext(self.parts, target.prompt.shape[1] + room)
        self.taken, self.ahead = [0] * target.batch, 0
        self.deepest = self.length.longest

    def prefill(self, target: TextTarget) -> None:
        ids, kwargs = prompt_for(self.parts, target)
        self.context.prefill(ids, kwargs.pop("attention_mask", None), **kwargs)

    @property
    def passes(self) -> int:
        return self.context.passes

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        rooms = target.rooms(self.deepest if longest is None else min(longest, self.deepest))
        if not any(rooms):
            return root_only(target.pending)
        if self.context.next_position is None:
            self.prefill(target)
        room = torch.tensor(rooms, device=target.device)
        logits, growing = self._catch_up(target), room > 0
        tokens, valid, laws = [], [], []
        growth, guide, read = self.length.begin(), guide_of(target), target.pending
        for step in range(max(rooms)):
            if step:
                logits = self._read(tokens[-1][:, None], [1] * target.batch)
                self.ahead += 1
            scores, sound = self._scores(logits, target, guide, read)
            growing = growing & sound & (room > step)
            if growth is not None:
                growing = growing & grow_by(growth, step, scores, self.context.feature)
            if not growing.any():
                break
            read = scores.argmax(-1) if target.greedy else draw(scores, keys.uniform(Purpose.DRAFT, step=step))
            show_drawn(growth, scores, read)
            tokens.append(read)
            valid.append(growing)
            laws.append(scores)
        return (
            draft_of_chain(target, tokens, [] if target.greedy else laws, valid)
            if tokens
            else root_only(target.pending)
        )

    def _catch_up(self, target: TextTarget) -> Tensor:
        """Read the tokens committed since: the correction, and the last draft token if all were accepted."""
        news = [t[n:] if alive else [] for t, n, alive in zip(target.tokens, self.taken, target.live, strict=True)]
        counts = [len(new) for new in news]
        ids = torch.tensor([new + [0] * (max(counts) - len(new)) for new in news], device=target.device)
        self.taken = [n + count for n, count in zip(self.taken, counts, strict=True)]
        return self._read(ids, counts)

    def _read(self, ids: Tensor, counts: list[int]) -> Tensor:
        # ids that only the target has cannot be embedded; any id may replace them, since the target verifies the draft
        return self.context.read(torch.where(ids < self.parts.vocab_size, ids, 0), counts)

    def _scores(
        self, logits: Tensor, target: TextTarget, guide: ProcessorGuide | None, read: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log-weights float32 [B, V], and the rows that can draw, bool [B], behind the ids read, int64 [B]."""
        sound = logits.amax(-1).isfinite()
        logits = torch.where(sound[:, None], logits, 0.0)
        beyond = target.parts.vocab_size - logits.shape[-1]
        logits = torch.nn.functional.pad(logits, (0, beyond), value=float("-inf"))
        logits = mask_placeholders(logits, target)
        if guide is None:
            return target.processors.warp(logits), sound
        first = torch.zeros_like(read)[:, None]
        scores, barren = drawable(guide.scores(logits[:, None], read[:, None], first, None))
        return scores[:, 0], sound & ~barren[:, 0]

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        learn_lengths(self.length, draft, verdict)
        accepted = [
            min(len(tokens) - n - 1, self.ahead) if alive else 0
            for tokens, n, alive in zip(target.tokens, self.taken, target.live, strict=True)
        ]
        if self.ahead:
            self.context.forget([self.ahead - n for n in accepted])
            self.taken = [n + k for n, k in zip(self.taken, accepted, strict=True)]
        self.ahead = 0

    def retract(self, counts: list[int]) -> None:
        if self.context.next_position is None:
            return
        self.context.forget([max(n - count, 0) for n, count in zip(self.taken, counts, strict=True)])
        self.taken = [min(n, count) for n, count in zip(self.taken, counts, strict=True)]


class SmallModelContext:
    """The tokens that a causal model has read; `cache.lengths` counts the slots per row, padding included. `feature`
    [B, H] is the last states, None before any token; `next_position` int64 [B] or [A, B]."""

    def __init__(self, parts: Parts, capacity: int):
        self.parts, self.passes = parts, 0
        self.cache = SlotCache(parts.plan, capacity, device=parts.device, places=parts.places)
        self.next_position: Tensor | None = None
        self.feature: Tensor | None = None

    @torch.no_grad()
    def prefill(self, ids: Tensor, mask: Tensor | None, **kwargs: object) -> None:
        """Read prompts int64 [B, P]. `mask` int [B, P] is 0 at left padding, None without padding. `kwargs` are other
        prompt inputs as `transformers.generate` prepared them: position_ids, pixel_values and others."""
        inputs = first_inputs(self.parts, ids, kwargs | {"attention_mask": mask}, self.cache)
        self.parts.model(**inputs, return_dict=True)
        self.passes += 1
        position = first_positions(inputs, ids, kwargs.get("position_ids"))
        self.next_position = position[..., -1].expand(*position.shape[:-2], ids.shape[0]) + 1
        self.cache.advance(ids.shape[1])
        if mask is not None:
            self.cache.hidden = mask == 0

    @torch.no_grad()
    def read(self, ids: Tensor, counts: Sequence[int]) -> Tensor:
        """Read `counts[b]` ids of each row of int64 [B, n]; return logits float32 [B, V], undefined for a count of 0."""
        tree = chain(ids.shape[1] - 1, ids.device)
        inputs = dict(
            input_ids=ids,
            position_ids=self.next_position[..., None] + tree.depth,
            attention_mask=attention_masks(
                self.parts.plan, self.cache, tree.ancestor, tree.depth, tree.max_depth, self.parts.dtype
            ),
            use_cache=True,
            **{CACHE: self.cache},
        )
        row = torch.arange(ids.shape[0], device=ids.device)
        last = torch.tensor([max(n - 1, 0) for n in counts], device=ids.device)
        if self.parts.direct:
            self.feature = self.parts.decoder(**inputs).last_hidden_state.to(ids.device)[row, last]
            logits = self.parts.head(self.feature)
        else:
            with record_states(self.parts.decoder) as seen:
                logits = wrapped_logits(self.parts, inputs).to(ids.device)[row, last]
            self.feature = seen.hidden.to(ids.device)[row, last]
        self.passes += 1
        self._move(list(counts))
        return logits.float()

    def forget(self, counts: Sequence[int]) -> None:
        self._move([-n for n in counts])

    def _move(self, counts: list[int]) -> None:
        self.cache.advance(counts)
        self.next_position = self.next_position + torch.tensor(counts, device=self.next_position.device)


def load_small_model(source: str | Path, model: nn.Module) -> nn.Module:
    """Load a folder, hub id, or zoo:NAME with a model of the target's class or a causal model of text, in its dtype."""
    if (loaded := from_zoo(source)) is not None:
        return loaded[0].to(model.device, model.dtype)  # beside its processor
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    folder, target = str(folder_of(source)), unwrapped(model)
    config = type(load_part(AutoConfig, folder))
    if config is not type(target.config) and config not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{source}: expected a {type(target).__name__} or a model of text, got a {config.__name__}; use a "
            "model with the target's tokenizer"
        )
    kind = type(target) if config is type(target.config) else AutoModelForCausalLM
    return load_model(kind, folder, local=True, dtype=model.dtype).to(model.device)


@method(
    "small",
    domain="vlm",
    kind="drafter",
    title="small model chain",
    exact=True,
    needs=("model",),
    order=22,
    drafts=("sampled chain",),
    steps=("model", 0, 0),
    about="a chain from a smaller model",
    paper="Fast Inference from Transformers via Speculative Decoding",
)
def small(parts: MethodParts, chain: int = 5, length: str | None = None) -> SmallModel:
    """Return `SmallModel` over an available model.

    Args:
        parts: The target and the smaller model, "model".
        chain: The tokens of a draft.
        length: The controller in the chain's place, such as (confidence:threshold=0.4,longest=8).
    """
    control = value_of(length, "vlm", "controller", parts)
    return SmallModel(parts.part("model"), FixedLength(chain) if control is None else control)
