"""A step by its name, MODULE:CALLABLE."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter

from mmspec.certify.step import StepFailed


def step_named(spec: str) -> Callable:
    """What MODULE:CALLABLE names. Importing a module runs its code.

    Raises StepFailed where there is no such module or nothing of that name in it, and where its code raises.
    """
    module, colon, name = spec.partition(":")
    if not colon or not module or not name:
        raise StepFailed(f"step: expected MODULE:CALLABLE, got {spec!r}; write for example my_engine.accept:step")
    try:
        found = import_module(module)
    except (Exception, SystemExit) as error:
        raise StepFailed(f"step: expected a module that can be imported, got {module!r} ({type(error).__name__}: {error}); "
                         "start where it lies, or install it") from error  # fmt: skip
    try:
        step = attrgetter(name)(found)
    except (Exception, SystemExit) as error:
        raise StepFailed(f"step: expected a name in {module}, got {name!r} ({type(error).__name__}: {error}); correct "
                         "it") from error  # fmt: skip
    if not callable(step) and not hasattr(step, "certificate"):
        raise StepFailed(f"step: expected a callable, got {name!r}, which is {type(step).__name__}; name a function")
    return step
