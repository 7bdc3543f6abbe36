"""A decoding of continuous tokens as text asks for it: arguments of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.decoding_options import decoding_call, refuse_options
from mmspec.evaluate.engine.config import check_choice
from mmspec.methods import methods, names
from mmspec.methods.text import joined, split

PipelineArguments = dict[str, Any]


def decoding_names(kind: str | None = None) -> tuple[str, ...]:
    """The decodings of a kind of models, "masked" or "causal"; None for all."""
    return names("continuous", "decoding", models=kind)


def rule_names() -> tuple[str, ...]:
    """The rules of drafted vectors that can be named in the place of a decoding's own."""
    return tuple(name for name in names("continuous", "rule") if name != "exact")


def split_rule(text: str, rule: str | None) -> tuple[str, str | None]:
    """A decoding without its setting "rule", and the rule of its drafts, None for its own.

    Args:
        text: A decoding with its settings.
        rule: The rule from an option; None where it was left out.

    Raises:
        ValueError: The rule is unknown, or the decoding takes none.
    """
    name, written, weights = split(text, "--decoding")
    found = next((one for one in methods("continuous", "decoding") if one.name == name), None)
    if found is None or "rule" not in found.facts:
        if found is not None and rule is not None:
            refuse_options(name, {"rule": rule}, [one.name for one in found.settings])
        return text, None
    rule = rule or written.pop("rule", None)
    if rule is not None:
        check_choice("--rule", rule, rule_names())
    return joined(name, written, weights), rule or found.facts["rule"]


def decoding_of(
    text: str, resources: ContinuousResources, options: Mapping[str, Any] | None = None
) -> PipelineArguments:
    """Arguments of the pipeline for a decoding.

    Args:
        text: The decoding with its settings.
        resources: The model and its drafter.
        options: Settings from options of the command line by name, and "rule"; None is one that was left out.

    Raises:
        ValueError: A name, a setting or a value is unknown or refused, or there is no drafter.
    """
    given = dict(options or {})
    text, rule = split_rule(text, given.pop("rule", None))
    purpose = f" for {resources.name}, a {resources.kind} model of vectors"
    made = decoding_call(text, "continuous", resources.kind, given, purpose).make(resources)
    return {name: value for name, value in (("decoding", made), ("rule", rule)) if value is not None}
