"""A target that judges windows of drafted tokens, given the verified tokens alone or the drafts before each as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.verdict import Verdict
from mmspec.imagegen.continuous.target import MaskedTarget
from mmspec.imagegen.continuous.window import WindowDraft

Context = Literal["prefix", "drafts"]


class WindowTarget(MaskedTarget):
    """context: what a node's law is conditioned on. "prefix": the verified tokens alone, one canvas for the whole window, as
    in CSpD's public code. "drafts": the drafts of all earlier steps of the window too, one canvas a step in one pass, as in
    its paper; only then is a token judged by the law that plain decoding would draw it from.

    A verdict's correction is NaN where nothing is settled; where it is not, it also takes the place of a kept draft. What is
    not finite given drafts that do not stand stops no row.
    """

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
