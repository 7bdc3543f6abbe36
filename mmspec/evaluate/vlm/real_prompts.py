"""Real prompts for text models: nine kinds of request, written by hand and in none of the training sets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.vlm.requests import VlmPrompt, VlmTask
from mmspec.io.readers import read_json
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS, InstructionKind

NEW_TOKENS, PROMPTS = 128, 8  # prompts of every kind
KINDS = INSTRUCTION_KINDS
_FILE = Path(__file__).with_name("real_prompts.json")


@cache
def prompts_by_kind() -> dict[InstructionKind, tuple[VlmPrompt, ...]]:
    """All prompts of the suite, by kind."""
    records = read_json(_FILE)
    return {kind: tuple(_prompt(record) for record in records[kind]) for kind in KINDS}


def _prompt(record: dict) -> VlmPrompt:
    history = tuple((role, text) for role, text in record.get("history", ()))
    return VlmPrompt(record["text"], history=history)


def real_prompts(count: int, seed: int = 0, *, kind: InstructionKind) -> Sequence[VlmPrompt]:
    """The first prompts of a kind.

    Args:
        count: How many.
        seed: Ignored, since the prompts are fixed: it decides the draws of sampled rows alone.
        kind: The kind of request.

    Returns:
        `count` prompts.

    Raises:
        ValueError: for more prompts than the suite has.
    """
    known = prompts_by_kind()[kind]
    if not 1 <= count <= len(known):
        raise ValueError(f"--prompts: expected 1 to {len(known)} of a kind, got {count}, change it")
    return known[:count]


def evaluation_prompts(count: int, seed: int = 0) -> list[EvaluationPrompt]:
    """The prompts of a sweep, in turns over the kinds, so that the first few show many kinds.

    The answers to earlier turns are the model's own in sweeps, so that only the user's turns are kept.

    Args:
        count: How many; there are no more than all.
        seed: Where to begin.

    Returns:
        The prompts, whose category is their kind.
    """
    by_kind = prompts_by_kind()
    mixed = [(kind, number, by_kind[kind][number]) for number in range(PROMPTS) for kind in KINDS]
    first = seed * count % len(mixed)
    return [
        EvaluationPrompt(f"{kind}-{number}", (*_users_turns(prompt), prompt.text), category=kind)
        for kind, number, prompt in (mixed[first:] + mixed[:first])[:count]
    ]


def _users_turns(prompt: VlmPrompt) -> tuple[str, ...]:
    return tuple(text for role, text in prompt.history if role == "user")


TASKS = tuple(VlmTask(kind, partial(real_prompts, kind=kind), NEW_TOKENS, pictures=0, most=PROMPTS) for kind in KINDS)
