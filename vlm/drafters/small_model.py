"""Drafts with a smaller model of the same vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.core.draft import Draft, Law, root_only
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.length import FixedLength, LengthControl
from mmspec.core.sample import draw, law_of
from mmspec.core.tree import chain
from mmspec.core.verdict import Verdict
from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters.context import Context
from mmspec.vlm.drafters.limits import forbid, text_rows, useful
from mmspec.vlm.prompts import prepare
from mmspec.vlm.target import TextTarget
from mmspec.vlm.unwrapping import unwrapped


class SmallModel:
    """Chain drafts from any smaller transformers model ("Fast Inference from Transformers via Speculative Decoding").

    model: of the target's class, then it sees the whole prompt, images included; or text-only, then it sees the text.
        Its vocabulary must be the target's (a shorter one, as padded sizes differ, never proposes the rest).
    length: FixedLength, ConfidenceStop...; decides before each draw, so sampled drafts keep their law.

    Greedy requests draft the argmax (deterministic); sampled ones draw from the model's law after the request's own
    temperature, top-k, top-p..., which goes on record. Exact with every exact rule for chains. Never proposes ids of
    visual placeholders. Raises ValueError for unsupported models, and when a request's target has another vocabulary,
    class or device.
    """

    name = "small_model"

    def __init__(self, model: nn.Module, length: LengthControl | None = None):
        self.parts = take_apart(unwrapped(model))
        self.length = FixedLength() if length is None else length

    def open(self, target: TextTarget) -> SmallModelState:
        state = self.open_unread(target)
        state.prefill(target)
        return state

    def open_unread(self, target: TextTarget) -> SmallModelState:
        """State of one request whose prompt is read before the first draft."""
        small, large = self.parts, target.parts
        device = small.embed.weight.device
        if small.vocab_size > large.vocab_size:
            raise ValueError(f"model: expected the target's vocabulary of {large.vocab_size}, got {small.vocab_size}; "
                             "draft with a model of the same tokenizer")  # fmt: skip
        if device != target.device:
            raise ValueError(f"model: expected it on {target.device} with the target, got {device}; move it there")
        alike = type(small.model) is type(large.model) and small.placeholders == large.placeholders
        if small.placeholders and not alike:
            raise ValueError(f"model: expected a {type(large.model).__name__} with the target's placeholder ids or a "
                             f"text-only model, got a {type(small.model).__name__}; both read one prompt")  # fmt: skip
        return SmallModelState(self, target)


class SmallModelState:
    """One request. taken: per row, generated tokens the model has read; ahead: drafted tokens it has read on top.

    longest: at most so many tokens in the next draft, None for as many as `length` allows.   deepest: what it may ask for.
    """

    def __init__(self, drafter: SmallModel, target: TextTarget):
        self.parts, self.length = drafter.parts, drafter.length
        room = min(target.stopping.most or 512, 512) + self.length.longest
        self.context = Context(self.parts, target.prompt.shape[1] + room)
        self.taken, self.ahead = [0] * target.batch, 0
        self.deepest, self.longest = self.length.longest, None

    def prefill(self, target: TextTarget) -> None:
        """Reads the prompt."""
        _read_prompt(self.context, target)

    @property
    def passes(self) -> int:
        return self.context.passes

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        rooms = useful(target, self.deepest if self.longest is None else min(self.longest, self.deepest))
        if not any(rooms):
            return root_only(target.pending)
        if self.context.next_position is None:
            self.prefill(target)
        room = torch.tensor(rooms, device=target.device)
        logits, growing = self._catch_up(target), room > 0
        tokens, valid, laws = [], [], []
        growth = self.length.begin()
        for step in range(max(rooms)):
            if step:
                logits = self._read(tokens[-1][:, None], [1] * target.batch)
                self.ahead += 1
            scores, sound = self._scores(logits, target)
            growing = growing & sound & (room > step)
            if growth is not None:
                growing = growing & growth.grow(step, law_of(scores).amax(-1), self.context.feature)
            if not growing.any():
                break
            tokens.append(scores.argmax(-1) if target.greedy else draw(scores, keys.uniform(Purpose.DRAFT, step=step)))
            valid.append(growing)
            laws.append(scores)
        return _chain_of(target, tokens, valid, laws)

    def _catch_up(self, target: TextTarget) -> Tensor:
        """Reads what was committed since: the correction, and the last drafted token when all were kept."""
        news = [t[n:] if alive else [] for t, n, alive in zip(target.tokens, self.taken, target.live, strict=True)]
        counts = [len(new) for new in news]
        ids = torch.tensor([new + [0] * (max(counts) - len(new)) for new in news], device=target.device)
        self.taken = [n + count for n, count in zip(self.taken, counts, strict=True)]
        return self._read(ids, counts)

    def _read(self, ids: Tensor, counts: list[int]) -> Tensor:
        # ids only the target has cannot be embedded; any stand-in does, as the target judges what comes of it
        return self.context.read(torch.where(ids < self.parts.vocab_size, ids, 0), counts)

    def _scores(self, logits: Tensor, target: TextTarget) -> tuple[Tensor, Tensor]:
        """float32 [B, V], the log-weights of the next draft, and bool [B], False where the model gave NaN or Inf."""
        sound = logits.amax(-1).isfinite()
        logits = torch.where(sound[:, None], logits, 0.0)
        beyond = target.parts.vocab_size - logits.shape[-1]
        logits = torch.nn.functional.pad(logits, (0, beyond), value=float("-inf"))
        return target.processors.warp(forbid(logits, target)), sound

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Forgets what was read of rejected drafts; a row keeps what it read of the accepted run."""
        kept = [
            min(len(tokens) - n - 1, self.ahead) if alive else 0
            for tokens, n, alive in zip(target.tokens, self.taken, target.live, strict=True)
        ]
        if self.ahead:
            self.context.forget([self.ahead - n for n in kept])
            self.taken = [n + k for n, k in zip(self.taken, kept, strict=True)]
        self.ahead = 0


def _read_prompt(context: Context, target: TextTarget) -> None:
    if context.parts.placeholders:
        if target.inputs is None:
            raise ValueError("model: expected the pictures of the prompt for a vision-language drafter, got none; call "
                             "mmspec.generate or pass mmspec.decode to model.generate itself")  # fmt: skip
        ids, kwargs = prepare(context.parts.model, target.inputs)
        context.prefill(ids, kwargs.pop("attention_mask", None), **kwargs)
        return
    rows = [row or [0] for row in text_rows(target, context.parts.vocab_size)]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=target.device)
    slot = torch.arange(longest, device=target.device)
    start = torch.tensor([longest - len(row) for row in rows], device=target.device)[:, None]
    mask = (slot >= start).long() if min(map(len, rows)) < longest else None
    context.prefill(ids, mask, position_ids=(slot - start).clamp(min=0))


def _chain_of(target: TextTarget, tokens: list[Tensor], valid: list[Tensor], laws: list[Tensor]) -> Draft:
    count = len(tokens)
    if not count:
        return root_only(target.pending)
    law = Law("deterministic")
    if not target.greedy:
        row = torch.arange(count + 1, device=target.device)
        row[-1] = -1
        law = Law("without_replacement", row=row, scores=torch.stack(laws, 1))
    root = torch.ones_like(valid[0])
    value = torch.stack([target.pending, *tokens], 1)
    return Draft(value, chain(count, target.device), law, torch.stack([root, *valid], 1))
