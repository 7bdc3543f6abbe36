"""Targets that score windows of drafted tokens: in a single pass, or step by step for bitwise plain output."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict, gather_nodes
from mmspec.imagegen.continuous.cspd.window import WindowDraft
from mmspec.imagegen.continuous.masked_target import MaskedTarget, TokenEvidence

Context = Literal["prefix", "drafts"]


class WindowTarget(MaskedTarget):
    """A target that scores a window of drafted tokens in a single pass. A verdict's correction is NaN where nothing is
    settled; elsewhere it also replaces an accepted draft. Values that are not finite stop no row where they depend on
    rejected drafts. With context "prefix" nodes see the verified tokens alone, as in CSpD's public code. With "drafts"
    also those of earlier steps, a row per step, as in the paper: only so is plain decoding's distribution verified."""

    def __init__(self, *args: object, context: Context, **settings: object):
        super().__init__(*args, **settings)
        self.context = context

    def conditions(self, draft: Draft, place: Tensor) -> Tensor:
        if self.context == "prefix" or not isinstance(draft, WindowDraft):
            return super().conditions(draft, place)
        steps = draft.steps
        index = torch.where(draft.step >= 0, draft.index, self.total)
        value = self._values.scatter(1, index[..., None].expand_as(draft.value), draft.value)[:, :-1]
        decided = torch.full_like(index[:, :1], steps).expand(-1, self.total + 1).clone().scatter_(1, index, draft.step)
        number = torch.arange(steps, device=index.device)[:, None, None]
        known = self.known | (decided[:, :-1] < number)  # [S, B, L]
        labels = torch.cat((self.labels,) * steps)
        z = self.model.condition(value.repeat(steps, 1, 1), ~known.flatten(0, 1), labels, self.scales is not None)
        row = draft.step.clamp_min(0) * self.batch + torch.arange(self.batch, device=index.device)[:, None]
        return z[:, row, place]

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        put = verdict.correction.isfinite().all(-1)
        value = torch.where((put & verdict.keep)[..., None], verdict.correction, draft.value)
        evidence = replace(evidence, bad=evidence.bad & (put | verdict.keep))
        return super().commit(replace(draft, value=value, open=put), evidence, verdict)


class StepwiseTarget(WindowTarget):
    """The target for tolerance 0, bit for bit plain decoding's output: a single pass would round differently. A step is
    verified given earlier drafts while some row's all equal its own draws. Statistics count a single pass per round."""

    @torch.no_grad()
    def score(self, draft: Draft) -> TokenEvidence:
        if not isinstance(draft, WindowDraft):
            return super().score(draft)
        values, known, filled = self._values.clone(), self._known.clone(), self.filled
        try:
            return self._score_steps(draft)
        finally:
            self._values.copy_(values)
            self._known.copy_(known)
            self.filled = filled

    def _score_steps(self, draft: WindowDraft) -> TokenEvidence:
        """Treat drafts as known, step by step; the caller restores the state."""
        own, bad = torch.zeros_like(draft.value), torch.zeros_like(draft.step, dtype=torch.bool)
        nodes = torch.arange(draft.step.shape[1], device=self.device).expand_as(draft.index)
        node_of = torch.zeros_like(self._known, dtype=torch.long).scatter_(1, draft.index, nodes)
        node_of[:, -1] = 0  # pads
        for _ in range(draft.steps):
            position = self.next_positions()
            part = super().score(self.open_draft(position))
            node = node_of.gather(1, position)
            own.scatter_(1, node[..., None].expand_as(part.own), part.own)
            bad.scatter_(1, node, part.bad)
            value = gather_nodes(draft.value, node)
            inside = position < self.total
            equal = ((part.own == value).all(-1) | ~inside).all(1) & inside.any(1)
            if not equal.any():  # no row's drafts are its own draws
                break
            self.put(position, value)
            self.filled = [n + count for n, count in zip(self.filled, inside.sum(1).tolist(), strict=True)]
        return TokenEvidence(mean=own, bad=bad, own=own)
