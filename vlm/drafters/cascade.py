"""The cascade of SpecMQuant: a middle model verifies an inner drafter's drafts, and its tokens become the draft."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.core.drafting.growth import draft_of_chain
from mmspec.core.round.draft import Draft, Evidence, Verdict, gather_nodes, root_only, run_of
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.loop import Drafter, NoDraft, check_drafter, verify
from mmspec.core.round.rules.by_name import BestExact
from mmspec.core.round.sampling import draw
from mmspec.io.validation import whole
from mmspec.methods import MethodParts, method, value_of
from mmspec.vlm.architectures import parts_of
from mmspec.vlm.drafters.base.draft_model import attention_parts, check_fits
from mmspec.vlm.drafters.base.middle_target import MiddleTarget
from mmspec.vlm.target import TextTarget


class Cascade:
    """Chain drafts that a middle model decodes with a drafter of its own. Exact.

    Paper: "Speculative Decoding Meets Quantization: Compatibility Evaluation and Hierarchical Framework Design". The
    recorded distribution of a token is that of the middle model, whichever drafter proposed it.

    Args:
        model: The middle model: of the target's class or text-only, with the target's vocabulary or a prefix of it.
        inner: The drafter of the middle model: prompt lookup, Token Recycling or a `SmallModel`; None for no drafts.
        run: The tokens after which a draft ends. The last inner draft may extend it to twice as many.

    Raises:
        ValueError: The model is not supported, or `inner` is no drafter.
    """

    name = "cascade"
    from_ids = True

    def __init__(self, model: nn.Module, inner: Drafter | None = None, run: int = 6):
        check_drafter("inner", inner)
        self.parts, self.inner, self.run = attention_parts(model), inner, whole("run", run, 1)

    def open(self, target: TextTarget) -> CascadeState:
        check_fits(self.parts, target)
        return CascadeState(self, target)


class CascadeState:
    def __init__(self, drafter: Cascade, target: TextTarget):
        self.run, self.rule = drafter.run, BestExact()
        self.plain, self.deepest = drafter.inner is None, drafter.run * (1 if drafter.inner is None else 2)
        self.middle = MiddleTarget(parts_of(drafter.parts.model), target)
        self.prompt: tuple[Draft, Evidence] | None = self.middle.prefill()
        self.inner = (drafter.inner or NoDraft()).open(self.middle)
        if not hasattr(self.inner, "retract") and not self.plain:
            raise ValueError(
                f"inner: expected a drafter that can forget rejected tokens (prompt lookup, Token Recycling or "
                f"SmallModel), got {drafter.inner.name!r}; use one of these"
            )

    @property
    def passes(self) -> int:
        return self.middle.passes + self.inner.passes

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        rooms = target.rooms(self.deepest if longest is None else min(longest, self.deepest))
        if not any(rooms):
            return root_only(target.pending)
        self.middle.begin(rooms, self.run)
        own, rounds = keys.child(0), RunRecord()
        own.round = keys.round * self.run  # a round of the run emits at least a token
        while not self.middle.done:
            draft = self.inner.propose(self.middle, own)
            evidence = self.middle.score(draft)
            verdict = self._verify(draft, evidence, own, keys, len(rounds.counts))
            before = self.middle.emitted
            self.middle.commit(draft, evidence, verdict)
            counts = [after - n for after, n in zip(self.middle.emitted, before, strict=True)]
            rounds.add(draft, evidence, verdict, torch.tensor(counts, device=target.device))
            self.inner.observe(self.middle, draft, evidence, verdict)
            own.round += 1
        return rounds.draft(target)

    def _verify(self, draft: Draft, evidence: Evidence, own: Keys, keys: Keys, step: int) -> Verdict:
        if not self.plain:
            return verify(self.rule, draft, evidence, own)[1]
        scores, node = evidence.scores[:, 0], torch.zeros_like(draft.value[:, 0])
        token = scores.argmax(-1) if evidence.greedy else draw(scores, keys.uniform(Purpose.DRAFT, step=step))
        return Verdict("path", node, node[:, None], node, correction=token)

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Return the middle model and its drafter to the tokens of the request."""
        if self.prompt is None:
            right = self.middle.retract()
            if not self.plain:
                self.inner.retract(right)
            return
        (root, seen), self.prompt = self.prompt, None
        node = torch.zeros_like(target.pending)
        first = Verdict("path", node, node[:, None], node, correction=target.pending)
        self.middle.commit(root, seen, first)
        self.inner.observe(self.middle, root, seen, first)


class RunRecord:
    """The tokens of a run, round by round, int64 [B, n] each, with the middle model's distribution of each, float32 [B,
    n, V], and the number of tokens that count, int64 [B]."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.counts: list[Tensor] = []

    def add(self, draft: Draft, evidence: Evidence, verdict: Verdict, count: Tensor) -> None:
        """Record a verified draft, of which row b emits `count[b]` tokens."""
        self.values.append(run_of(draft, verdict)[0])
        self.scores.append(gather_nodes(evidence.scores, verdict.path))
        self.counts.append(count)

    def draft(self, target: TextTarget) -> Draft:
        value, scores = torch.cat(self.values, 1), torch.cat(self.scores, 1)
        valid = torch.cat(
            [
                torch.arange(v.shape[1], device=v.device) < n[:, None]
                for v, n in zip(self.values, self.counts, strict=True)
            ],
            1,
        )
        longest = int(valid.sum(-1).max())
        order = (~valid).long().argsort(dim=1, stable=True)[:, :longest]
        valid = valid.gather(1, order)
        if not longest:
            return root_only(target.pending)
        laws = [] if target.greedy else list(gather_nodes(scores, order).unbind(1))
        return draft_of_chain(target, list(value.gather(1, order).unbind(1)), laws, list(valid.unbind(1)))


@method(
    "cascade",
    domain="vlm",
    kind="drafter",
    title="cascade over a middle model",
    exact=True,
    needs=("model",),
    order=24,
    drafts=("sampled chain",),
    steps=("model", 0, 0),
    about="a chain that a middle model decodes with its own drafter",
    paper="Speculative Decoding Meets Quantization: Compatibility Evaluation and Hierarchical Framework Design",
)
def cascade(parts: MethodParts, run: int = 6, inner: str | None = "lookup") -> Cascade:
    """Return `Cascade` over an available model.

    Args:
        parts: The target and the middle model, "model".
        run: The tokens after which a draft ends.
        inner: The drafter of the middle model, such as (lookup:longest=3).
    """
    return Cascade(parts.part("model"), value_of(inner, "vlm", "drafter", parts), run)
