"""The proof at the start of a request that logits processors can be served along drafts, run on copies of them alone.

A scripted continuation is run the way `transformers.generate` runs it: all rows together, a call a step. Then each row is
served as a draft is, with wrong tokens beside the right ones and other tokens in the other rows. Equal scores mean that the
processors' state can be copied and that rows do not depend on one another.

A processor with so much state that a copy at every node would be slow is called in place instead, where it shows itself to be
a function of the prefix: the same prefix twice, prefixes out of order, rows alone and together, its state before and after.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.vlm.processors.branches import Branch
from mmspec.vlm.processors.copies import (
    MOST,
    ForkedProcessors,
    ModelAttributes,
    Processor,
    copy_of,
    snapshot,
    tokens_within,
)

_STEPS, _FROM_STATE = 6, 12  # scripted tokens, and as many again as ids are found in the processors' state
_MOST_NUMBERS = 2**26  # of the script's logits
_CLOSE = dict(rtol=1e-4, atol=1e-4, equal_nan=True)


@dataclass(frozen=True)
class ReferenceRun:
    """A continuation that the processors allow, and their scores on it.

    prompt: int64 [B, P].   tokens: int64 [B, T].   logits, scores: float32 [T, B, V], before and after the processors.
    """

    prompt: Tensor
    tokens: Tensor
    logits: Tensor
    scores: Tensor

    def ids(self, step: int) -> Tensor:
        """int64 [B, P + step], the rows before a step's call."""
        return torch.cat([self.prompt, self.tokens[:, :step]], 1)


def prove_processors(
    processors: Sequence[Processor], known: Sequence[Processor], prompt: Tensor, vocab: int
) -> ForkedProcessors:
    """Return copies of `processors` before their first call, in a form that serves the request.

    Args:
        processors: the request's logits processors in their order; none of them is called.
        known: the ones among them that need no proof.
        prompt: int64 [B, P].
        vocab: V, the width of the logits.

    Raises:
        ValueError: the processors cannot be served along drafts.
    """
    own = [one for one in processors if not any(one is other for other in known)]
    models = ModelAttributes(own)
    try:
        with _same_chance():
            fork, alone = _proven(processors, known, prompt, vocab)
    finally:
        changed = models.restore()
    if fork is None or changed:
        _refuse(own, alone and not changed)
    return fork


def _proven(
    processors: Sequence[Processor], known: Sequence[Processor], prompt: Tensor, vocab: int
) -> tuple[ForkedProcessors | None, bool]:
    """Copies that serve the request, None where none do; in that case, whether they would serve its first row alone."""
    shared = {id(one): one for one in known}
    fresh = copy_of(list(processors), dict(shared))
    own = [one for one in fresh if id(one) not in shared]
    large = [one for one in own if len(snapshot(one)) >= MOST]
    run = _plain(fresh, [*known, *large], own, prompt, vocab)
    if not all(is_function(one, run) for one in large):
        fresh, large = copy_of(list(processors), dict(shared)), []
        own = [one for one in fresh if id(one) not in shared]
        run = _plain(fresh, known, own, prompt, vocab)
    fork = _served(fresh, [*known, *large], run)
    if fork is None:
        # one that cannot be copied may have no need to be
        pure = [one for one in own if is_function(copy_of(one), run)]
        fork = _served(fresh, [*known, *large, *pure], run) if pure else None
    return fork, fork is None and prompt.shape[0] > 1 and _serves_alone(fresh, known, own, prompt[:1], vocab)


def is_function(processor: Processor, run: ReferenceRun) -> bool:
    """Whether a processor shows itself to be a function of a row's place in the batch, its prefix and its logits.

    Args:
        processor: a copy, which is called.
        run: prefixes and logits.
    """
    steps = range(len(run.logits))

    def together(order: Sequence[int]) -> dict[int, Tensor]:
        return {step: processor(run.ids(step), run.logits[step].clone()) for step in order}

    def alone(step: int, row: int) -> Tensor:
        ids, logits = run.ids(step)[row], run.logits[step, row]
        batch = run.prompt.shape[0]
        return processor(ids.repeat(batch, 1), logits.repeat(batch, 1))[row]

    try:
        first = together(steps)
        before = snapshot(processor)
        again = [together([*reversed(steps), *reversed(steps)]), together([*steps[1::2], *steps[::2]])]
        rows = {(step, row): alone(step, row) for step in reversed(steps) for row in _some_rows(run)}
        same = all(_close(first[step], other[step]) for other in again for step in steps)
        same = same and all(_close(first[step][row], scores) for (step, row), scores in rows.items())
        together(steps)
    except Exception:  # a prefix out of order is more than it was made for
        return False
    return same and snapshot(processor) == before


def _plain(
    fresh: list[Processor], shared: Sequence[Processor], own: list[Processor], prompt: Tensor, vocab: int
) -> ReferenceRun:
    """The run as transformers makes it. Tokens that the processors' state holds are scripted, where they are allowed."""
    batch, fork = prompt.shape[0], ForkedProcessors(fresh, shared)
    sought = tokens_within(snapshot(own), vocab, _FROM_STATE)
    chance = torch.Generator().manual_seed(11)
    ids, tokens, logits, scores = prompt, [], [], []
    for step in range(min(_STEPS + len(sought), max(_MOST_NUMBERS // (batch * vocab), _STEPS))):
        raw = torch.randn(batch, vocab, generator=chance)
        for row in range(batch):
            if sought and (step + row) % 4:
                raw[row, sought[(step + 2 * row) % len(sought)]] += 12.0
        raw = raw.to(prompt.device)
        try:
            new = fork(ids, raw)
        except Exception:
            if not step:
                raise
            break  # the script has come to an end that the processors do not foresee
        logits.append(raw)
        scores.append(new.clone())
        tokens.append(new.argmax(-1))
        ids = torch.cat([ids, tokens[-1][:, None]], 1)
    return ReferenceRun(prompt, torch.stack(tokens, 1), torch.stack(logits), torch.stack(scores))


def _serves_alone(
    fresh: list[Processor], known: Sequence[Processor], own: list[Processor], prompt: Tensor, vocab: int
) -> bool:
    try:
        return _served(fresh, known, _plain(fresh, known, own, prompt, vocab)) is not None
    except Exception:  # a processor made for so many rows may refuse another number of them
        return False


def _served(fresh: list[Processor], shared: Sequence[Processor], run: ReferenceRun) -> ForkedProcessors | None:
    """Copies that give the run's scores along drafts, by the first way of copying that does; None where none does."""
    for replay in (False, True):
        if all(_serves(ForkedProcessors(fresh, shared, replay=replay), row, run) for row in _some_rows(run)):
            return ForkedProcessors(fresh, shared, replay=replay)
    return None


def _serves(fork: ForkedProcessors, row: int, run: ReferenceRun) -> bool:
    branch = Branch.start(row, fork.fork(), run.prompt)
    token = run.prompt[row, -1]
    for step, (logits, scores) in enumerate(zip(run.logits[:, row], run.scores[:, row], strict=True)):
        wrong = _another(branch.scores, token)
        beside = None if wrong is None else branch.child(wrong, logits.flip(0))
        new = branch.child(token, logits)
        if beside is not None and beside.error is None:
            beside.child(beside.scores.argmax(), logits.roll(1))
        if new.error is not None or not _close(new.scores, scores):
            return False
        branch, token = new, run.tokens[row, step]
    return True


def _some_rows(run: ReferenceRun) -> list[int]:
    """The first two rows, one in the middle and the last."""
    batch = run.prompt.shape[0]
    return sorted({0, 1, batch // 2, batch - 1} & set(range(batch)))


def _another(scores: Tensor | None, token: Tensor) -> Tensor | None:
    """The likeliest token beside one; None where the processors allow no other."""
    if scores is None:
        return None
    others = scores.index_fill(0, token, -torch.inf)
    return others.argmax() if others.isfinite().any() else None


def _close(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, **_CLOSE)


def _refuse(own: Sequence[Processor], alone: bool) -> None:
    names = ", ".join(type(one).__name__ for one in own)
    if alone:
        raise ValueError(
            f"logits_processor: expected rows that do not depend on one another, got {names}, whose scores of a row "
            "change with the others; send the rows one by one or decode with transformers.generate"
        )
    raise ValueError(
        f"logits_processor: expected a function of the prefix, or state that can be copied, got {names}, which keeps "
        "state that a rejected draft would corrupt; decode with transformers.generate"
    )


@contextmanager
def _same_chance() -> Iterator[None]:
    """Leaves the random number generators that processors may draw from as they were."""
    state: Callable = random.getstate()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(state)
