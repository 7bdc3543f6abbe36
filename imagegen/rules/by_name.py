"""Rules from one line of text, as the command line takes them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mmspec.core.rules import Rule
from mmspec.core.rules.by_name import rule_names as exact_names
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.rules.cool import CoolSD
from mmspec.imagegen.rules.gsd import GSD
from mmspec.imagegen.rules.lantern import Lantern, LanternPlus, codebook_table, nearest_codes
from mmspec.imagegen.rules.run_joint import RunJoint
from mmspec.io.validation import number_in_text


def _neighbours(codebook: Tensor, k: int) -> Tensor:
    # the published residuals look at one neighbour more
    return nearest_codes(codebook, min(k + 1, len(codebook) - 1), normalise=False)


def _lantern(model: ImageModel, k: int = 1000, **settings: object) -> Rule:
    return Lantern(codebook_table(model, _neighbours, k), k, **settings)


def _lantern_plus(model: ImageModel, k: int = 10, **settings: object) -> Rule:
    return LanternPlus(codebook_table(model, _neighbours, k), k, **settings)


def _gsd(model: ImageModel, distance: float | None = None, **settings: object) -> Rule:
    return GSD(distance=distance, table=None if distance is None else model.codebook(), **settings)


# name -> (maker, what its settings are read as)
_RULES: dict[str, tuple[Callable[..., Rule], dict[str, type]]] = {
    "lantern": (_lantern, {"k": int, "delta": float, "residual": str}),
    "lantern++": (_lantern_plus, {"k": int, "factor": float, "residual": str}),
    "gsd": (_gsd, {"group": int, "delta_p": float, "distance": float, "cold": str}),
    "coolsd": (
        lambda model, **settings: CoolSD(**settings),
        {"delta": float, "decay": float, "mu": float, "block": int, "floor": float},
    ),
    "runjoint": (lambda model, **settings: RunJoint(**settings), {"alpha": float, "longest": int}),
}


def relaxed_names() -> tuple[str, ...]:
    """The names of relaxed rules that `rule_from_name` takes, beside those of `core.rules.resolve`."""
    return tuple(_RULES)


def rule_from_name(text: str, model: ImageModel) -> str | Rule:
    """The rule of "name" or "name:setting=value,...", such as "lantern:delta=0.2,k=100"; an exact rule's name is returned
    as it is. `gsd`'s distance is measured between rows of the model's codebook.

    Raises ValueError for unknown names and settings, and for values that the rule refuses.
    """
    name, _, rest = text.partition(":")
    if name in exact_names() and not rest:
        return name
    if name not in _RULES:
        raise ValueError(f"rule: expected one of {', '.join((*exact_names(), *_RULES))} (settings behind ':' for relaxed "
                         f"ones), got {text!r}")  # fmt: skip
    make, kinds = _RULES[name]
    settings = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in kinds or not equals:
            raise ValueError(f"rule {name!r}: expected settings of {', '.join(kinds)} as setting=value, got {part!r}")
        settings[key] = number_in_text(f"rule {name!r}: {key}", value, kinds[key])
    return make(model, **settings)
