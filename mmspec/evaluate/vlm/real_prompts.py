"""Real prompts for text models: nine kinds of request, written by hand and in none of the training sets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.vlm.requests import VlmPrompt, VlmTask
from mmspec.io.readers import read_json
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS, InstructionKind

NEW_TOKENS = 128
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


def evaluation_prompts(count: int) -> list[EvaluationPrompt]:
    """The prompts in turns over the kinds, so that the first few show many kinds; at most as many as there are.

    The answers to earlier turns are the model's own in sweeps, so that only the user's turns are kept.
    """
    rounds = zip(*(prompts_by_kind()[kind] for kind in KINDS), strict=True)
    mixed = [
        (kind, number, prompt) for number, row in enumerate(rounds) for kind, prompt in zip(KINDS, row, strict=True)
    ]
    return [
        EvaluationPrompt(f"{kind}-{number}", (*_users_turns(prompt), prompt.text), category=kind)
        for kind, number, prompt in mixed[:count]
    ]


def _users_turns(prompt: VlmPrompt) -> tuple[str, ...]:
    return tuple(text for role, text in prompt.history if role == "user")


PROMPTS = 8  # of every kind
TASKS = tuple(VlmTask(kind, partial(real_prompts, kind=kind), NEW_TOKENS, pictures=0, most=PROMPTS) for kind in KINDS)
