"""Answers that a drafter continues itself, for distillation on the texts that it drafts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.io.validation import whole
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.training.examples import Example, encode, with_answers
from mmspec.vlm.training.teacher import Teacher, VlmTeacherBatch


@dataclass(frozen=True, slots=True)
class Teaching:
    """The source of the tokens that a drafter is trained on. "DistillSpec: Improving Speculative Decoding via Knowledge
    Distillation" trains on texts of the target, of the drafter (its own continuations of the answers), or of both: a
    number is the share of the drafter's tokens among all trained tokens."""

    source: Literal["target", "drafter"] | float = "target"  # "target" for the answers
    length: int = 8  # tokens of a continuation

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        if isinstance(self.source, bool | str) and self.source not in ("target", "drafter"):
            raise ValueError(f"source: expected target, drafter or a share from 0 to 1, got {self.source!r}; change it")
        if not 0 <= self.share <= 1:
            raise ValueError(f"source: expected target, drafter or a share from 0 to 1, got {self.source}; change it")

    @property
    def share(self) -> float:
        """The share of the drafter's tokens."""
        return {"target": 0.0, "drafter": 1.0}[self.source] if isinstance(self.source, str) else float(self.source)

    def rows(self, tokens: Sequence[int], drafted: int, seed: int) -> list[int]:
        """Return the rows of a batch that the drafter continues. `tokens` are those of each row's answer, all of which
        count where the drafter does not continue it; `drafted` are the trained tokens of a row that it continues."""
        rng = random.Random(seed)
        order = rng.sample(range(len(tokens)), len(tokens))
        left = [sum(tokens[row] for row in order[count:]) for count in range(len(order) + 1)]
        shares = [drafted * count / (drafted * count + rest) for count, rest in enumerate(left)]
        count = max(n for n, share in enumerate(shares) if share <= self.share)
        if count < len(order):  # the share is right on average over steps
            count += rng.random() < (self.share - shares[count]) / (shares[count + 1] - shares[count])
        return sorted(order[:count])


def share_of(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


class OnPolicyTeacher:
    """A function from examples to teacher batches in which the drafter has continued some answers.

    A continued row holds the answer up to a random token, the target's next token, and a chain that the drafter samples
    behind it. The target judges this text, and only the drafter's tokens are trained. The continuations of a step
    depend on the seed, the step and the weights, so a resumed run goes on exactly. Drafters of blocks have anchors of
    their own and are refused."""

    def __init__(self, teacher: Teacher, drafter: ShapedDrafter, teaching: Teaching, seed: int = 0):
        if isinstance(drafter, BlockDrafter):
            raise ValueError(
                f"source: expected target for a drafter of blocks, got {teaching.source} for {drafter.name}; "
                "leave it out"
            )
        self.teacher, self.drafter, self.teaching, self.seed = teacher, drafter, teaching, seed
        self.length = min(teaching.length, drafter.trained_depth or teaching.length)

    def __call__(self, examples: Sequence[Example], step: int) -> VlmTeacherBatch:
        rng = random.Random(self.seed * 1_000_003 + step)
        answers = [list(self.teacher.answer_of(example)) for example in examples]
        rows = self.teaching.rows([len(ids) for ids in answers], self.length, rng.getrandbits(62))
        if not rows:
            return self.teacher.over(examples, answers)
        place = rng.randrange(min(len(answers[row]) for row in rows))
        taught = [[True] * len(ids) for ids in answers]
        begun = [answers[row][:place] for row in rows]
        for row, tail in zip(rows, self._continued([examples[row] for row in rows], begun, rng), strict=True):
            answers[row] = answers[row][:place] + tail
            taught[row] = [False] * (place + 1) + [True] * (len(tail) - 1)
        return self.teacher.over(examples, answers, taught)

    @torch.no_grad()
    def _continued(self, examples: list[Example], begun: list[list[int]], rng: random.Random) -> list[list[int]]:
        """Return the target's next token and the drafter's tokens behind it, for answers of the same length."""
        from mmspec.vlm.api import start

        model, processor = self.teacher.model, self.teacher.processor
        inputs = {name: value.to(model.device) for name, value in encode(processor, examples).items()}
        if begun[0]:
            inputs = with_answers(inputs, begun, 0)[0]
        chain, was_training = Chain(FixedLength(self.length)), self.drafter.training
        drafter = self.drafter.eval().with_shape(chain, chain)
        run = start(
            model,
            drafter=drafter,
            seed=rng.getrandbits(62),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self.length + 2,
            **inputs,
        )
        run.step()
        rows = run.state.propose(run.target, run.keys).value.tolist()
        self.drafter.train(was_training)
        return [self._until_end(row) if alive else row[:1] for row, alive in zip(rows, run.target.live, strict=True)]

    def _until_end(self, ids: list[int]) -> list[int]:
        """Return the tokens up to the first end token, which counts."""
        ends = self.teacher.model.generation_config.eos_token_id
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        return ids[: next((place + 1 for place, token in enumerate(ids) if token in ends), len(ids))]
