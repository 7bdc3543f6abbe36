"""`drafter="auto"`: the drafters offered for a target, under the goodput controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn

from mmspec.core.fingerprint import layout_of, made_once
from mmspec.core.loop import Drafter
from mmspec.core.portfolio import GoodputPortfolio
from mmspec.methods import MethodParts, method
from mmspec.vlm.drafters.hub_cache import cached_drafter, loaded_name
from mmspec.vlm.drafters.prompt_lookup import PromptLookup
from mmspec.vlm.drafters.published import published_for
from mmspec.vlm.hf_model import unwrapped

AUTO = "auto"
LONGEST = 15  # tokens that lookup copies at most: a pass over 16 nodes, of which the controller takes what pays
Offer = Callable[[], Drafter | Sequence[Drafter]]
_offered: WeakKeyDictionary[nn.Module, Offer] = WeakKeyDictionary()
# of each model: its layout and the controller
_controls: WeakKeyDictionary[nn.Module, tuple[tuple, GoodputPortfolio]] = WeakKeyDictionary()
_lock = Lock()


def offer(model: nn.Module, make: Offer) -> None:
    """Set the drafters that `drafter="auto"` chooses among for `model` from now on.

    Args:
        model: The target, wrapped or not.
        make: Returns the drafter, or several; called at the first request that asks for it. A drafter must not keep the model
            alive that it is offered for, so `make` must not hold the model either.
    """
    with _lock:
        _offered[unwrapped(model)] = cache(make)
        _controls.pop(unwrapped(model), None)


def copy_offer(model: nn.Module, copied: nn.Module) -> None:
    """Offer for a copy of a model the drafters that are offered for the model.

    Args:
        model: The transformers model, without wrappers.
        copied: Its copy, which may not have its attributes yet.
    """
    with _lock:
        if (make := _offered.get(model)) is not None:
            _offered[copied] = make


def offered_drafters(model: nn.Module) -> tuple[Drafter, ...]:
    """The drafters offered for `model`, as the zoo does for its own.

    Without an offer: prompt lookup, which needs no training, and a published drafter where one that fits is in the user's
    Hugging Face cache, see `cached_drafter`. Nothing is fetched.
    """
    inner = unwrapped(model)
    with _lock:
        make = _offered.get(inner)
    if make is None:
        lookup = PromptLookup(longest=LONGEST)
        if not published_for(loaded_name(inner)):  # the cache is looked at for models that others trained drafters for
            return (lookup,)
        trained = made_once(inner, ("drafter", "published"), lambda: cached_drafter(inner), inner)
        return (lookup,) if trained is None else (lookup, trained)
    made = make()
    return tuple(made) if isinstance(made, Sequence) else (made,)


def controller_for(model: nn.Module) -> GoodputPortfolio:
    """A new controller over the offered drafters, which knows nothing yet."""
    return GoodputPortfolio(offered_drafters(model))


def automatic(model: nn.Module) -> GoodputPortfolio:
    """The controller over the offered drafters: one a model, which goes on learning from request to request.

    Exact whenever the drafters are, see `GoodputPortfolio`; plain decoding where nothing pays. A model with another adapter,
    precision, device or attention implementation gets a new controller: its acceptance and its times are others. The
    controller stays when only the values of weights change, as in training, since it forgets old rounds by itself.
    """
    inner = unwrapped(model)
    layout = layout_of(inner)
    with _lock:
        known = _controls.get(inner)
    if known is None or known[0] != layout:
        made = layout, controller_for(inner)
        with _lock:
            if _controls.get(inner) is known:
                _controls[inner] = made
            known = _controls[inner]
    return known[1]


@method(
    AUTO, domain="vlm", kind="drafter", title="auto", exact=True, order=0,
    about="what is at hand for the model, as long as measured times say that it is faster",
)  # fmt: skip
def auto(parts: MethodParts) -> GoodputPortfolio:
    """The controller of a model.

    Args:
        parts: The model.
    """
    return automatic(parts.model)


@method(
    "none", domain="vlm", kind="drafter", title="plain", exact=True, order=30, about="plain decoding", aliases=("ar",)
)
def none() -> None:
    """No drafts."""
