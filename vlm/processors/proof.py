"""The proof at the start of a request that logits processors support drafts; only copies of them are called.

A scripted continuation is first run as in `transformers.generate`. Each row is then run like a draft, with wrong tokens
beside the right tokens and other tokens in the other rows. Equal scores show that the processors' state can be copied
and that rows do not depend on each other. A processor whose copies would be slow is called directly if it proves to be
a function of the prefix. It is called twice with the same prefix, with prefixes out of order, and with rows alone and
together, and its state before and after is compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.code_state import started_gpus
from mmspec.core.round.snapshot import MOST, snapshot
from mmspec.vlm.processors.branches import Branch
from mmspec.vlm.processors.copies import ForkedProcessors, ModelAttributes, Processor, copy_of, tokens_within

_STEPS, _FROM_STATE = 6, 12  # scripted tokens, and the limit of further tokens for ids in the processors' state
_MOST_NUMBERS = 2**26  # limit of numbers in the script's logits
_CLOSE = dict(rtol=1e-4, atol=1e-4, equal_nan=True)


@dataclass(frozen=True)
class ReferenceRun:
    """A continuation that the processors allow, and their scores on it."""

    prompt: Tensor  # int64 [B, P]
    tokens: Tensor  # int64 [B, T]
    logits: Tensor  # float32 [T, B, V], before the processors
    scores: Tensor  # float32 [T, B, V], after the processors

    def ids(self, step: int) -> Tensor:
        """Return the rows before a step's call, int64 [B, P + step]."""
        return torch.cat([self.prompt, self.tokens[:, :step]], 1)


def prove_processors(
    processors: Sequence[Processor], known: Sequence[Processor], prompt: Tensor, vocab: int
) -> ForkedProcessors:
    """Return copies of `processors` before their first call that support drafts; none of `processors` is called. Those
    in `known` need no proof. `prompt` is int64 [B, P]."""
    own = [processor for processor in processors if not any(processor is other for other in known)]
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
    """Return copies that serve the request, or None with whether copies would serve its first row alone."""
    shared = {id(processor): processor for processor in known}
    fresh = copy_of(list(processors), dict(shared))
    own = [processor for processor in fresh if id(processor) not in shared]
    large = [processor for processor in own if len(snapshot(processor)) >= MOST]
    run = _plain(fresh, [*known, *large], own, prompt, vocab)
    if not all(is_function(processor, run) for processor in large):
        fresh, large = copy_of(list(processors), dict(shared)), []
        own = [processor for processor in fresh if id(processor) not in shared]
        run = _plain(fresh, known, own, prompt, vocab)
    fork = _served(fresh, [*known, *large], run)
    if fork is None:
        # a processor that cannot be copied may not need a copy
        pure = [processor for processor in own if is_function(copy_of(processor), run)]
        fork = _served(fresh, [*known, *large, *pure], run) if pure else None
    return fork, fork is None and prompt.shape[0] > 1 and _serves_alone(fresh, known, own, prompt[:1], vocab)


def is_function(processor: Processor, run: ReferenceRun) -> bool:
    """Return whether a copy, which is called, is a function of a row's index, prefix and logits in the test."""
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
    except Exception:  # a processor may fail on a prefix out of order
        return False
    return same and snapshot(processor) == before


def _plain(
    fresh: list[Processor], shared: Sequence[Processor], own: list[Processor], prompt: Tensor, vocab: int
) -> ReferenceRun:
    """Run the script as transformers does. Allowed tokens whose ids are in the processors' state are preferred."""
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
            break  # the processors do not support a longer script
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
    except Exception:  # a processor for a fixed number of rows may refuse other numbers
        return False


def _served(fresh: list[Processor], shared: Sequence[Processor], run: ReferenceRun) -> ForkedProcessors | None:
    """Return copies that give the run's scores along drafts, by the first suitable way of copying; None without any."""
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
    batch = run.prompt.shape[0]
    return sorted({0, 1, batch // 2, batch - 1} & set(range(batch)))


def _another(scores: Tensor | None, token: Tensor) -> Tensor | None:
    """Return the most likely token other than `token`; None if the processors allow no other."""
    if scores is None:
        return None
    others = scores.index_fill(0, token, -torch.inf)
    return others.argmax() if others.isfinite().any() else None


def _close(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, **_CLOSE)


def _refuse(own: Sequence[Processor], alone: bool) -> None:
    names = ", ".join(type(processor).__name__ for processor in own)
    if alone:
        raise ValueError(
            f"logits_processor: expected rows that do not depend on one another, got {names}, whose scores of a row "
            "change with the other rows; send the rows one by one or decode with transformers.generate"
        )
    raise ValueError(
        f"logits_processor: expected a function of the prefix, or state that can be copied, got {names}, which keeps "
        "state that a rejected draft would corrupt; decode with transformers.generate"
    )


@contextmanager
def _same_chance() -> Iterator[None]:
    state: Callable = random.getstate()
    try:
        with torch.random.fork_rng(started_gpus()):
            yield
    finally:
        random.setstate(state)
