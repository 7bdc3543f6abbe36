"""`drafter="auto"`: the goodput controller over the drafters that are offered for a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn

from mmspec.core.layers.fingerprint import layout_of, made_once
from mmspec.core.length.portfolio import GoodputPortfolio
from mmspec.core.round.loop import Drafter
from mmspec.methods import MethodParts, method
from mmspec.vlm.drafters.hub_cache import cached_drafter, loaded_name
from mmspec.vlm.drafters.prompt_lookup import PromptLookup
from mmspec.vlm.drafters.published import published_for
from mmspec.vlm.hf_model import unwrapped

AUTO = "auto"
LONGEST = 15  # most tokens that lookup copies: a pass over 16 nodes, of which the controller may use fewer
Offer = Callable[[], Drafter | Sequence[Drafter]]
_offered: WeakKeyDictionary[nn.Module, Offer] = WeakKeyDictionary()
# per model: its layout and its controller
_controls: WeakKeyDictionary[nn.Module, tuple[tuple, GoodputPortfolio]] = WeakKeyDictionary()
_lock = Lock()


def offer(model: nn.Module, make: Offer) -> None:
    """Set the drafters that `drafter="auto"` chooses among for `model` from now on.

    Args:
        model: The target, with or without wrappers.
        make: A function that returns a drafter or several; called at the first request that needs it. Neither `make` nor
            a drafter may hold a reference that keeps the model alive.
    """
    with _lock:
        _offered[unwrapped(model)] = cache(make)
        _controls.pop(unwrapped(model), None)


def copy_offer(model: nn.Module, copied: nn.Module) -> None:
    """Offer the drafters of a model for its copy too, which may not have its attributes yet."""
    with _lock:
        if (make := _offered.get(model)) is not None:
            _offered[copied] = make


def offered_drafters(model: nn.Module) -> tuple[Drafter, ...]:
    """Return the drafters offered for `model`, such as those of the zoo. Without an offer, they are prompt lookup and a
    published drafter from the user's Hugging Face cache, see `cached_drafter`; nothing is downloaded."""
    inner = unwrapped(model)
    with _lock:
        make = _offered.get(inner)
    if make is None:
        lookup = PromptLookup(longest=LONGEST)
        if not published_for(loaded_name(inner)):  # the cache is read only for models with a published drafter
            return (lookup,)
        trained = made_once(inner, ("drafter", "published"), lambda: cached_drafter(inner), inner)
        return (lookup,) if trained is None else (lookup, trained)
    drafters = make()
    return tuple(drafters) if isinstance(drafters, Sequence) else (drafters,)


def controller_for(model: nn.Module) -> GoodputPortfolio:
    return GoodputPortfolio(offered_drafters(model))


def automatic(model: nn.Module) -> GoodputPortfolio:
    """Return the model's controller over the offered drafters, which learns across requests.

    It is exact if the drafters are, see `GoodputPortfolio`, and decodes plainly where no draft is faster. A model with
    another adapter, precision, device or attention implementation gets a new controller, because its acceptance rate and
    times differ. The controller remains when only weight values change, as in training, since it discounts old rounds.
    """
    inner = unwrapped(model)
    layout = layout_of(inner)
    with _lock:
        known = _controls.get(inner)
    if known is None or known[0] != layout:
        new = layout, controller_for(inner)
        with _lock:
            if _controls.get(inner) is known:
                _controls[inner] = new
            known = _controls[inner]
    return known[1]


@method(
    AUTO,
    domain="vlm",
    kind="drafter",
    title="auto",
    exact=True,
    order=0,
    about="the drafters available for the model, as long as measured times say that drafting is faster",
)
def auto(parts: MethodParts) -> GoodputPortfolio:
    """Return the controller of a model.

    Args:
        parts: The model.
    """
    return automatic(parts.model)


@method(
    "none", domain="vlm", kind="drafter", title="plain", exact=True, order=30, about="plain decoding", aliases=("ar",)
)
def none() -> None:
    """Decode without drafts."""
