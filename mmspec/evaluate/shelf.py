"""A model, its processor, and everything that can draft for it, each loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmspec import drafters, zoo
from mmspec.core.length import FixedLength
from mmspec.vlm import load_drafter
from mmspec.vlm.drafters.shapes import Chain, DynamicTree, StaticTree


@dataclass(slots=True)
class Shelf:
    """name: what tables call the model.   is_zoo: the drafters trained for the zoo's model fit."""

    model: Any
    processor: Any
    name: str
    is_zoo: bool = True
    _kept: dict[str, Any] = field(default_factory=dict)

    def zoo_part(self, name: str) -> Any:
        """A model of the zoo that belongs to its VLM.   Raises ValueError where the model is another one."""
        if not self.is_zoo:
            raise ValueError(
                f"expected the zoo's model, which {name!r} was trained for, got {self.name}, "
                "use --drafter lookup or recycling"
            )
        if name not in self._kept:
            self._kept[name] = zoo.load(name)
        return self._kept[name]

    def drafter(self, name: str) -> Any:
        """The drafter called `name` in DRAFTERS, or the one saved in the folder `name`; None for "none"."""
        if name in DRAFTERS:
            return DRAFTERS[name].make(self)
        if Path(name).is_dir():
            return load_drafter(name, target=self.model)
        raise ValueError(unknown_drafter(name))


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter as the command line offers it.   drafts: what its drafts look like.   training: what it needs."""

    make: Callable[[Shelf], Any]
    drafts: str
    training: str
    public: bool = True


def _eagle(*shape: object) -> Callable[[Shelf], Any]:
    def make(shelf: Shelf) -> Any:
        eagle = shelf.zoo_part("vlm/eagle")
        return eagle if not shape else eagle.with_shape(*shape)

    return make


DRAFTERS: dict[str, Choice] = {
    "eagle": Choice(
        _eagle(), "tree or chain from the target's hidden states (EAGLE-2)", "per target; shipped for the zoo's"
    ),
    "small": Choice(
        lambda shelf: drafters.SmallModel(shelf.zoo_part("vlm/small")[0]),
        "chain from a smaller model",
        "none of its own",
    ),
    "lookup": Choice(lambda shelf: drafters.PromptLookup(), "n-grams of the prompt and the text so far", "none"),
    "recycling": Choice(lambda shelf: drafters.TokenRecycling(), "tree from the target's earlier candidates", "none"),
    "none": Choice(lambda shelf: None, "nothing: plain decoding in the same loop", "none"),
    "eagle-dynamic": Choice(_eagle(DynamicTree()), "dynamic tree", "as eagle", public=False),
    "eagle-static": Choice(_eagle(StaticTree()), "static tree", "as eagle", public=False),
    "eagle-chain": Choice(_eagle(Chain(FixedLength(7))), "chain", "as eagle", public=False),
}


def drafter_names() -> list[str]:
    """The names users choose from."""
    return [name for name, choice in DRAFTERS.items() if choice.public]


def unknown_drafter(name: str) -> str:
    """The sentence for a name that is no drafter."""
    names = ", ".join(drafter_names())
    return f"--drafter: expected one of {names} or a folder with a saved drafter, got {name!r}, pick one of these"


def zoo_shelf() -> Shelf:
    """The zoo's VLM."""
    model, processor = zoo.load("vlm")
    size = sum(p.numel() for p in model.parameters())
    return Shelf(model, processor, f"zoo vlm, {size:,} parameters")
