"""Routers from one line of text, as the command line takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmspec.core.arguments import number_in_text

if TYPE_CHECKING:
    from mmspec.video.routing.router import Router


def _threshold(least: float) -> Router:
    from mmspec.video.routing.thresholds import Threshold

    return Threshold(least)


def _relative(margin: float) -> Router:
    from mmspec.video.routing.thresholds import Relative

    return Relative(margin)


def _strided(budget: int) -> Router:
    from mmspec.video.routing.budgets import Strided

    return Strided(budget)


def _random(budget: int) -> Router:
    from mmspec.video.routing.budgets import Random

    return Random(budget)


def _hybrid(run: int, least: float) -> Router:
    from mmspec.video.routing.mixed import Hybrid

    return Hybrid(run, _threshold(least))


def _explore(rate: float) -> Router:
    from mmspec.video.routing.mixed import Explore

    return Explore(rate)


def _learned(model: str, gain: float = 0.0) -> Router:
    from mmspec.video.routing.learned import Advantage, Learned

    return Learned(Advantage.from_pretrained(model), gain)


# name -> (maker, what its settings are read as, those that must be named)
ROUTERS: dict[str, tuple[Callable[..., Router], dict[str, type], int]] = {
    "threshold": (_threshold, {"least": float}, 1),
    "relative": (_relative, {"margin": float}, 1),
    "strided": (_strided, {"budget": int}, 1),
    "random": (_random, {"budget": int}, 1),
    "hybrid": (_hybrid, {"run": int, "least": float}, 2),
    "explore": (_explore, {"rate": float}, 1),
    "learned": (_learned, {"model": str, "gain": float}, 1),
}


def router_of(text: str) -> Router:
    """The router of "name:setting=value,...", such as "strided:budget=3" or "hybrid:run=3,least=0.2".

    Raises ValueError for unknown names and settings, missing ones, and values that the router refuses.
    """
    name, _, rest = text.partition(":")
    if name not in ROUTERS:
        raise ValueError(f"--router: expected one of {', '.join(ROUTERS)}, got {name!r}, pick one of these")
    make, types, needed = ROUTERS[name]
    given = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    if not set(given) <= set(types) or not set(list(types)[:needed]) <= set(given):
        shown = ",".join(f"{one}=..." for one in types)
        raise ValueError(f"--router: expected {name}:{shown}, got {text!r}, write it so")
    try:
        return make(**{one: number_in_text(one, value, types[one]) for one, value in given.items()})
    except ValueError as error:
        raise ValueError(
            f"--router: expected settings of {name} that fit, got {text!r} ({error}), correct them"
        ) from error
