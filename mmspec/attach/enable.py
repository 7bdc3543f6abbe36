"""`enable`, `disable` and `summary`."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any, Literal

from mmspec.attach.handle import Handle, handle_on, register_plain_copies
from mmspec.attach.summary import Summary
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.rules.by_name import resolve

AUTO = "auto"


def enable(
    obj: Any,
    drafter: Any = None,
    *,
    mode: Literal["exact", "relaxed"] = "exact",
    rule: str | Rule | None = None,
    otherwise: Literal["refuse", "plain"] = "refuse",
) -> Handle:
    """Make `obj` draft and verify; `model.generate(...)` and `pipe(...)` are called as before.

    `obj` remains the same object of the same class: the handle is stored in its `__dict__`, and `disable` removes it.
    The handle acts for `obj` alone. Pickled, saved and shallow copies of `obj` are plain. A deep copy has its own
    handle, which shares the drafter.

    Args:
        obj: A transformers model that generates, with or without adapters, or a pipeline of this package (images, videos).
        drafter: For a model, a drafter, its text ("lookup:longest=3", "eagle@FOLDER"), a folder or a hub id; "auto" uses
            the available drafters where they are faster (see `mmspec.vlm.auto`). For a pipeline, a decoding such as
            `SJD(window=16)`, its text ("sjd:window=64", "sdvg:threshold=0.5@FOLDER"), or the pipeline's "auto". None
            decodes plainly through the same loop.
        mode: "exact" preserves the target's distribution and refuses a decoding or rule that does not, here or in a call
            that names another. "relaxed" allows all rules.
        rule: A Rule or its text; None for the exact rule or the decoding's own.
        otherwise: How a model serves a request that drafting does not support (beams, contrastive search...). "refuse"
            raises ValueError and counts it in the summary. "plain" decodes the request through the `generate` of the
            model's class, with a warning and a count in the summary; a call with settings of this package, such as
            `seed`, is still refused.

    Returns:
        The handle, a context manager with `summary()` and `close()`.

    Raises:
        ValueError: `obj` is already enabled or is not supported, or `drafter` is invalid or does not fit the model.
    """
    if mode not in ("exact", "relaxed"):
        raise ValueError(f"mode: expected exact or relaxed, got {mode!r}; use one of them")
    if otherwise not in ("refuse", "plain"):
        raise ValueError(f"otherwise: expected refuse or plain, got {otherwise!r}; use one of them")
    if handle_on(obj) is not None:
        raise ValueError(
            f"enable: expected an object that is not enabled, got {type(obj).__name__} that is; disable it first"
        )
    name = _method_of(obj)
    exact = mode == "exact"
    if name == "generate":
        from mmspec.attach.model_handle import ModelHandle
        from mmspec.vlm.drafters.from_text import rule_for
        from mmspec.vlm.hf_model import unwrapped

        rule = rule or "exact"
        _check(rule_for(rule, unwrapped(obj)), exact)
        drafter = _drafter(obj, drafter)
        register_plain_copies(type(obj))
        return ModelHandle(obj, name, drafter, rule, exact, otherwise)
    from mmspec.attach.handle import PipelineHandle

    if otherwise == "plain":
        raise ValueError(
            f"otherwise: expected it left out for {type(obj).__name__}, got 'plain'; it is for models of transformers"
        )
    if rule is not None and "rule" not in signature(obj.start).parameters:
        raise ValueError(
            f"rule: expected it left out for {type(obj).__name__}, got {rule!r}; its decoding brings its own"
        )
    _check(_rule_of(obj, drafter, rule), exact)
    register_plain_copies(type(obj))
    return PipelineHandle(obj, name, drafter, rule, exact)


def disable(obj: Any) -> Summary:
    """Undo `enable`: restore the object to its state before.

    Args:
        obj: The enabled object, or its handle.

    Returns:
        The summary of its calls.

    Raises:
        ValueError: The object is not enabled.
    """
    handle = _handle_of(obj)
    handle.close()
    return handle.summary()


def summary(obj: Any) -> Summary:
    """Return the statistics of an enabled object: calls, passes, accept length, seconds, and whether all calls were exact.

    Args:
        obj: The enabled object, or its handle, which keeps the statistics after `disable`.

    Raises:
        ValueError: The object is not enabled.
    """
    return _handle_of(obj).summary()


def _handle_of(obj: Any) -> Handle:
    handle = obj if isinstance(obj, Handle) else handle_on(obj)
    if handle is None:
        raise ValueError(
            f"obj: expected an enabled object, got {type(obj).__name__} that is not; enable it, or use the handle"
        )
    return handle


def _method_of(obj: Any) -> str:
    if hasattr(obj, "__dict__") and not isinstance(obj, type):
        if callable(start := getattr(obj, "start", None)) and "decoding" in signature(start).parameters:
            return "start"
        if callable(getattr(obj, "generate", None)) and hasattr(obj, "named_modules"):
            return "generate"
    inner = getattr(obj, "model", None)
    advice = "enable its model" if callable(getattr(inner, "generate", None)) else "see mmspec.supported()"
    raise ValueError(
        f"obj: expected a model of transformers that generates or a pipeline of mmspec, got "
        f"{type(obj).__name__}; {advice}"
    )


def _drafter(model: Any, drafter: Any) -> Any:
    """Return the drafter; "auto" is returned as it is, after its controller has been created."""
    if drafter == AUTO:
        from mmspec.vlm.auto import automatic

        automatic(model)
        return AUTO
    if isinstance(drafter, str | Path):
        from mmspec.vlm.drafters.from_text import drafter_from_text

        return drafter_from_text(str(drafter), model)
    if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "open")):
        raise ValueError(
            f"drafter: expected None, 'auto', a folder or a drafter, got {drafter!r}; pass a drafter, such as "
            "PromptLookup()"
        )
    return drafter


def _rule_of(pipe: Any, drafter: Any, rule: str | Rule | None) -> Rule | None:
    """Return the rule of a pipeline's calls; None where only the call itself decides it."""
    drafter = None if drafter == AUTO else pipe.decoding(drafter)  # "auto" brings no rule of its own
    drafts = hasattr(drafter, "open") or hasattr(drafter, "prepare") or hasattr(drafter, "draw")
    if drafter is not None and (isinstance(drafter, type) or not drafts):
        raise ValueError(
            f"drafter: expected None, 'auto', a decoding or its text, got {drafter!r}; pass a decoding, such as "
            "SJD(window=16)"
        )
    if isinstance(rule, Rule):
        return rule
    own = getattr(drafter, "rule", None)
    if callable(own):
        return own(pipe.model)
    return None if rule is None else resolve(rule, greedy=False, domain=pipe.Request.domain, model=pipe.model)


def _check(rule: Rule | None, exact: bool) -> None:
    if exact and rule is not None and not rule.exact:
        raise ValueError(
            f"mode: expected an exact rule for mode='exact', got {rule.name!r}; pass mode='relaxed' if its "
            "output may differ"
        )
