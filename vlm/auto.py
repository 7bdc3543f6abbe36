"""`drafter="auto"`: what is at hand for a target, under the goodput controller."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn

from mmspec.core.fingerprint import layout_of
from mmspec.core.goodput import Goodput
from mmspec.core.loop import Drafter
from mmspec.vlm.drafters.prompt_lookup import PromptLookup
from mmspec.vlm.hf_model import unwrapped

AUTO = "auto"
_offered: WeakKeyDictionary[nn.Module, Callable[[], Drafter]] = WeakKeyDictionary()
# of each model: its layout and the controller
_controls: WeakKeyDictionary[nn.Module, tuple[tuple, Goodput]] = WeakKeyDictionary()
_lock = Lock()


def offer(model: nn.Module, make: Callable[[], Drafter]) -> None:
    """Says what `drafter="auto"` drafts with for `model` from now on.

    make: returns the drafter; called at the first request that asks for it. As the drafter must not keep the model alive
    that it is offered for, `make` must not hold the model either.
    """
    with _lock:
        _offered[unwrapped(model)] = cache(make)
        _controls.pop(unwrapped(model), None)


def copy_offer(model: nn.Module, copied: nn.Module) -> None:
    """Offer for a copy of a model the drafter that is offered for the model.

    Args:
        model: The transformers model, without wrappers.
        copied: Its copy, which may not have its attributes yet.
    """
    with _lock:
        if (make := _offered.get(model)) is not None:
            _offered[copied] = make


def offered_drafter(model: nn.Module) -> Drafter:
    """What was offered for `model`, as the zoo does for its own, else prompt lookup, which needs no training."""
    with _lock:
        make = _offered.get(unwrapped(model))
    return PromptLookup(longest=8) if make is None else make()


def automatic(model: nn.Module) -> Goodput:
    """The controller over what is at hand: one a model, which goes on learning from request to request.

    Exact whenever the drafter is, see `Goodput`; plain decoding where nothing pays. A model with another adapter, precision,
    device or attention implementation gets a new controller: its acceptance and its times are others. The controller stays
    when only the values of weights change, as in training, since it forgets old rounds by itself.
    """
    inner = unwrapped(model)
    layout = layout_of(inner)
    with _lock:
        known = _controls.get(inner)
    if known is None or known[0] != layout:
        made = layout, Goodput(offered_drafter(inner))
        with _lock:
            if _controls.get(inner) is known:
                _controls[inner] = made
            known = _controls[inner]
    return known[1]
