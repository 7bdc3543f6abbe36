"""Online training of a drafter on the requests that it serves, from the evidence of their verification."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.io.files import write_json_atomic
from mmspec.io.validation import whole
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureDrafter
from mmspec.vlm.drafters.base.head_drafter import HeadDrafter
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.target import TextTarget
from mmspec.vlm.training.rejected_places import Lesson, RequestRecord, lesson_loss, mean_likelihood

_CLIP = 1.0  # the largest norm of the gradients
_GAIN = 1.002  # the factor by which a step has to raise the likelihood of the next answers; steps on noise reach 1.0003


class Online:
    """A drafter that learns between requests where the target rejected its drafts. Paper: "Online Speculative
    Decoding".

    Exact: weights never change during a request, so a draft is drawn from the recorded distribution. An object belongs
    to one user, since its weights remember their requests. It trains a float32 copy of a drafter of the EAGLE family or
    of heads, and only in `step`, after `every` answered requests, each learned once. At most `keep` wrong places wait
    for a step; the oldest requests leave first. `undone` is the number of steps that never served."""

    def __init__(self, drafter: ShapedDrafter, every: int = 8, lr: float = 1e-4, keep: int = 512):
        if not isinstance(drafter, FeatureDrafter | HeadDrafter):
            raise ValueError(
                f"drafter: expected a drafter of the EAGLE family or of heads, got {type(drafter).__name__}; "
                "train others with mmspec train"
            )
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr: expected a number above 0, got {lr}; change it")
        self.every, self.lr, self.keep = whole("every", every, 1), lr, whole("keep", keep, 1)
        self.drafter = copy.deepcopy(drafter).float().eval().requires_grad_(False)
        self.name, self.levels = f"online({drafter.name})", drafter.levels
        self.requests = self.steps = self.undone = 0
        self.lessons: list[Lesson] = []
        self._records: list[RequestRecord] = []
        self._parts: Parts | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._next: dict[str, Tensor] | None = None  # the weights behind the last step, which do not serve yet

    def open(self, target: TextTarget) -> OnlineState:
        """Return the state of a request, after its prefill."""
        state = self.open_without_prefill(target)
        state.inner.prefill()
        return state

    def open_without_prefill(self, target: TextTarget) -> OnlineState:
        if self._parts is not None and self._parts.model is not target.parts.model:
            raise ValueError(
                "drafter: expected the target that its lessons come from, got another model; wrap the drafter in "
                "a new Online"
            )
        self._parts = target.parts
        self.drafter.to(target.device)
        self._collect()
        return OnlineState(self, target)

    def step(self) -> dict[str, float] | None:
        """Take an optimizer step for every `every` answered requests that wait; return the mean `loss` before the
        steps, and the numbers of `requests`, `steps` and `undone` steps so far; None without a step. The weights behind
        a step serve from the next step on, if they make the answers since then likelier; otherwise the step is undone.
        So a drafter that has nothing to learn from its requests stays as it is."""
        if any(record.is_open for record in self._records):
            raise ValueError("step: expected no open request, got one that is still decoded; call it between requests")
        self._collect()
        losses = []
        while len(self.lessons) >= self.every:
            batch, self.lessons = self.lessons[: self.every], self.lessons[self.every :]
            losses.append(self._learn(batch))
        if not losses:
            return None
        counts = {"requests": self.requests, "steps": self.steps, "undone": self.undone}
        return {"loss": sum(losses) / len(losses), **counts}

    def _learn(self, lessons: list[Lesson]) -> float:
        """Adopt the last step if it helps with these lessons, then take a step on them and return its loss."""
        drafter = self.drafter
        served = {name: value.clone() for name, value in drafter.state_dict().items()}
        if self._next is not None:
            before = mean_likelihood(drafter, self._parts, lessons)
            drafter.load_state_dict(self._next)
            if mean_likelihood(drafter, self._parts, lessons) > _GAIN * before:
                served = self._next
            else:
                self.undone += 1
                drafter.load_state_dict(served)
        drafter.requires_grad_(True)
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(drafter.parameters(), lr=self.lr)
        self._optimizer.zero_grad()
        with torch.enable_grad():
            loss = lesson_loss(drafter, self._parts, lessons)
            loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), _CLIP)
        self._optimizer.step()
        drafter.requires_grad_(False)
        self.steps += 1
        self._next = {name: value.clone() for name, value in drafter.state_dict().items()}
        drafter.load_state_dict(served)
        return float(loss.detach())

    def card(self) -> dict[str, Any]:
        return {
            "kind": self.drafter.kind,
            "training": f"trained online on {self.requests} requests",
            "requests": self.requests,
            "steps": self.steps,
            "undone": self.undone,
            "lr": self.lr,
            "every": self.every,
        }

    def save_pretrained(self, folder: str | Path) -> None:
        self.drafter.save_pretrained(folder)
        write_json_atomic(Path(folder) / "card.json", self.card())

    def _collect(self) -> None:
        """Turn ended requests into lessons, and drop the oldest lessons beyond `keep` places."""
        ended = [record for record in self._records if not record.is_open]
        self._records = [record for record in self._records if record.is_open]
        for record in ended:
            rows = record.lessons()
            self.requests += len(rows)
            self.lessons += [lesson for lesson in rows if lesson.wrong]
        count = sum(len(lesson.wrong) for lesson in self.lessons)
        while count > self.keep and len(self.lessons) > 1:
            count -= len(self.lessons.pop(0).wrong)


class OnlineState:
    def __init__(self, control: Online, target: TextTarget):
        self.inner = control.drafter.open_without_prefill(target)
        with torch.no_grad():
            prompt = self.inner.drafter.read(self.inner.view())
        self.record = RequestRecord(target, prompt, control.drafter.vocabulary)
        control._records.append(self.record)

    @property
    def passes(self) -> int:
        return self.inner.passes

    @property
    def deepest(self) -> int:
        return self.inner.deepest

    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        return self.inner.propose(target, keys, longest)

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.inner.observe(target, draft, evidence, verdict)
        self.record.note(target, draft, evidence, verdict)
