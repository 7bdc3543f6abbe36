"""`enable`, `disable` and `summary`."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any, Literal

from mmspec.attach.handle import Handle, handle_on, register_plain_copies
from mmspec.attach.summary import Summary
from mmspec.core.rules.base import Rule
from mmspec.core.rules.by_name import resolve

AUTO = "auto"


def enable(
    obj: Any,
    drafter: Any = None,
    *,
    mode: Literal["exact", "relaxed"] = "exact",
    rule: str | Rule | None = None,
    otherwise: Literal["refuse", "plain"] = "refuse",
) -> Handle:
    """From now on `obj` drafts and verifies: `model.generate(...)` and `pipe(...)` are called as before.

    obj: a model of transformers that generates, adapters around it or not, or a pipeline of this package (images, videos). It
        stays the same object of the same class; what is added stands in its `__dict__` alone and `disable` takes it out.
    drafter: of a model a drafter, its text ("lookup:longest=3", "eagle@FOLDER"), the folder or hub id of
        one, or "auto": what is at hand for it, as much as pays (see
        `mmspec.vlm.auto`). Of a pipeline a decoding, such as `SJD(window=16)`, its text ("sjd:window=64",
        "sdvg:threshold=0.5@FOLDER"), or "auto": what the pipeline takes that for. None decodes plainly through the same loop.
    mode: "exact" keeps the law: a decoding or rule that does not is refused, here or, where a call names another, then.
        "relaxed" has to be asked for by name.   rule: a Rule or its text, None for the exact one or the decoding's own.
    otherwise: of a model, what becomes of a request that drafting cannot serve (beams, contrastive search...). "refuse" raises
        ValueError and counts it in the summary. "plain" decodes it through the `generate` of the model's own class, with a
        warning and a count in the summary; a call that names settings of this package, such as `seed`, is still refused.
    Returns the handle: a context manager with `summary()` and `close()`.

    The handle acts for `obj` alone. Pickled, saved and shallow copies of `obj` are plain; a deep copy has a handle of its own,
    which shares the drafter.
    Raises ValueError for an object that is enabled already or cannot be, and for a drafter that is none or does not fit.
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

        rule = rule or "exact"
        _check(resolve(rule, greedy=False), exact)
        drafter = _drafter(obj, drafter)
        register_plain_copies(type(obj))
        return ModelHandle(obj, name, drafter, rule, exact, otherwise)
    from mmspec.attach.handle import PipelineHandle

    if otherwise == "plain":
        raise ValueError(f"otherwise: expected it left out for {type(obj).__name__}, got 'plain'; it is for models of "
                         "transformers")  # fmt: skip
    if rule is not None and "rule" not in signature(obj.start).parameters:
        raise ValueError(
            f"rule: expected it left out for {type(obj).__name__}, got {rule!r}; its decoding brings its own"
        )
    _check(_rule_of(obj, drafter, rule), exact)
    register_plain_copies(type(obj))
    return PipelineHandle(obj, name, drafter, rule, exact)


def disable(obj: Any) -> Summary:
    """Takes off what `enable` put on an object, which then is as it was. obj: the object, or its handle.

    Returns the summary.   Raises ValueError for an object that is not enabled.
    """
    handle = _handle_of(obj)
    handle.close()
    return handle.summary()


def summary(obj: Any) -> Summary:
    """What an enabled object did: calls, passes, accept length, seconds, and whether all of it was exact.

    obj: the object, or its handle, which still tells after `disable`.   Raises ValueError for an object that is not enabled.
    """
    return _handle_of(obj).summary()


def _handle_of(obj: Any) -> Handle:
    found = obj if isinstance(obj, Handle) else handle_on(obj)
    if found is None:
        raise ValueError(
            f"obj: expected one that is enabled, got {type(obj).__name__} that is not; enable it, or use the handle"
        )
    return found


def _method_of(obj: Any) -> str:
    """The method that a handle stands in front of.   Raises ValueError where there is none."""
    if hasattr(obj, "__dict__") and not isinstance(obj, type):
        if callable(start := getattr(obj, "start", None)) and "decoding" in signature(start).parameters:
            return "start"
        if callable(getattr(obj, "generate", None)) and hasattr(obj, "named_modules"):
            return "generate"
    inner = getattr(obj, "model", None)
    told = "enable its model" if callable(getattr(inner, "generate", None)) else "see mmspec.supported()"
    raise ValueError(f"obj: expected a model of transformers that generates or a pipeline of mmspec, got "
                     f"{type(obj).__name__}; {told}")  # fmt: skip


def _drafter(model: Any, drafter: Any) -> Any:
    """The drafter of a model; "auto" stays that, and is at hand now.   Raises ValueError as the loaders do."""
    if drafter == AUTO:
        from mmspec.vlm.auto import automatic

        automatic(model)
        return AUTO
    if isinstance(drafter, str | Path):
        from mmspec.vlm.drafters.from_text import drafter_from_text

        return drafter_from_text(str(drafter), model)
    if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "open")):
        raise ValueError(f"drafter: expected None, 'auto', a folder or a drafter, got {drafter!r}; make one, such as "
                         "PromptLookup()")  # fmt: skip
    return drafter


def _rule_of(pipe: Any, drafter: Any, rule: str | Rule | None) -> Rule | None:
    """The rule that a pipeline's calls will fall under, where that is known before the first."""
    drafter = None if drafter == AUTO else pipe.decoding(drafter)  # "auto" brings no rule of its own
    drafts = hasattr(drafter, "open") or hasattr(drafter, "prepare") or hasattr(drafter, "draw")
    if drafter is not None and (isinstance(drafter, type) or not drafts):
        raise ValueError(f"drafter: expected None, 'auto', a decoding or its text, got {drafter!r}; make one, such as "
                         "SJD(window=16)")  # fmt: skip
    if isinstance(rule, Rule):
        return rule
    own = getattr(drafter, "rule", None)
    if callable(own):
        return own(pipe.model)
    return None if rule is None else resolve(rule, greedy=False, domain=pipe.Request.domain, model=pipe.model)


def _check(rule: Rule | None, exact: bool) -> None:
    if exact and rule is not None and not rule.exact:
        raise ValueError(f"mode: expected a rule that keeps the law for 'exact', got {rule.name!r}; say mode='relaxed' if its "
                         "output may differ")  # fmt: skip
