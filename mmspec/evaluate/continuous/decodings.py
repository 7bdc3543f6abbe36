"""A decoding of continuous tokens as text asks for it: arguments of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspec.evaluate.continuous.methods import PipelineArguments
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.model_kinds import MASKED
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps
from mmspec.methods import MethodCall, methods, parse
from mmspec.methods.text import split

RULES = ("reflection", "gaussian_block")


def decoding_names(kind: str = "") -> tuple[str, ...]:
    """The decodings of a kind of models, "masked" or "causal"; "" for all."""
    return tuple(one.name for one in methods("continuous", "decoding") if not kind or kind in one.facts["models"])


def decoding_call(text: str, kind: str, options: Mapping[str, Any], model: str = "") -> tuple[MethodCall, str | None]:
    """The decoding that a text and options ask for, and the rule of its drafts, None for its own.

    Args:
        text: A decoding with its settings.
        kind: Of the model, "masked" or "causal".
        options: Settings from options of the command line by name, and "rule"; None is one that was left out.
        model: The model in words, for errors.

    Raises:
        ValueError: A name, a setting or a value is unknown, or the decoding has no such setting.
    """
    given = {name: value for name, value in options.items() if value is not None}
    name, written, _ = split(text, "--decoding")
    check_choice("--decoding", name, decoding_names(kind), f" for {model or 'it'}, a {kind} model of vectors")
    found = next(one for one in methods("continuous", "decoding") if one.name == name)
    rule = given.pop("rule", written.pop("rule", None)) if "rule" in found.facts else None
    takes = [*(one.name for one in found.settings), *(("rule",) if "rule" in found.facts else ())]
    for option, value in given.items():
        if option not in takes:
            allowed = ", ".join(f"--{one}" for one in takes) or "none of its own"
            raise ValueError(f"--{option}: expected options that --decoding {name} takes ({allowed}), got {value!r}, leave it "
                             "out")  # fmt: skip
    if rule is not None:
        check_choice("--rule", rule, RULES)
    settings = ",".join(f"{key}={value}" for key, value in {**written, **given}.items())
    return parse(name + (f":{settings}" if settings else ""), "continuous", "decoding"), rule or found.facts.get("rule")


def decoding_of(
    text: str, resources: ContinuousResources, options: Mapping[str, Any] | None = None
) -> PipelineArguments:
    """Arguments of the pipeline for a decoding.

    Args:
        text: The decoding with its settings.
        resources: The model and its drafter.
        options: As of `decoding_call`.

    Raises:
        ValueError: As `decoding_call`, and where a setting is refused or there is no drafter.
    """
    call, rule = decoding_call(text, resources.kind, options or {}, resources.name)
    made = call.make(resources)
    if isinstance(made, HeadSampling) and resources.kind == MASKED:
        made = ScheduledSteps(head_sampling=made)
    return {name: value for name, value in (("decoding", made), ("rule", rule)) if value is not None}
