"""Every drafter the command line and the benches know for the zoo's vision-language model, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec import drafters, zoo
from mmspec.core.readers import read_json
from mmspec.evaluate.vlm.variants import untrained, weakened

if TYPE_CHECKING:
    from mmspec.evaluate.vlm.resources import VlmResources


HYBRID = "vlm/hybrid"


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter as the command line offers it.

    title: in tables.   drafts: what its drafts look like.   training: what it needs.   part: its name in the zoo.
    public: offered to users; the others serve the benches.   target: the zoo's model it is for, "" for any.
    """

    title: str
    make: Callable[[VlmResources], Any]
    drafts: str
    training: str = "none"
    part: str | None = None
    public: bool = True
    target: str = ""


def target_of(part: str) -> str:
    """The zoo's model that a part of it was trained for."""
    return HYBRID if part.startswith(f"{HYBRID}/") else "vlm"


def _trained(name: str, title: str, drafts: str, target: str = "vlm") -> Choice:
    part = f"{target}/{name}"
    made = "per target; shipped for the zoo's"
    return Choice(title, lambda resources: resources.zoo_part(part), drafts, made, part, target=target)


def _automatic(resources: VlmResources) -> Any:
    """A controller that has seen nothing yet, so that what it learns is timed."""
    from mmspec.core.goodput import Goodput
    from mmspec.vlm.auto import at_hand

    return Goodput(at_hand(resources.model))


DRAFTERS: dict[str, Choice] = {
    "eagle": _trained("eagle", "EAGLE", "tree or chain from the target's hidden states, pictures fused like text"),
    "eagle_text": _trained("eagle_text", "EAGLE without vision", "as eagle, pictures left out (EAGLE-2)"),
    "msd": _trained("msd", "MSD", "as eagle, pictures as raw vision embeddings"),
    "vispec": _trained("vispec", "ViSpec", "as eagle, one compressed row and one global vector a picture"),
    "flash": _trained("flash", "FLASH", "several tokens a pass over compressed pictures"),
    "specvlm": _trained("specvlm", "SpecVLM", "as eagle, pictures compressed by a learned choice of ways"),
    "eagle3": _trained("eagle3", "EAGLE-3", "tree or chain from three levels of the target's states"),
    "dflash": _trained("dflash", "DFlash", "a block of tokens in one pass, or a tree of its likeliest prefixes"),
    "dflash_vision": _trained("dflash_vision", "DFlash with vision", "as dflash, pictures pooled into a few rows"),
    "dspark": _trained("dspark", "DSpark with vision", "as dflash_vision, every token drawn behind those before it"),
    "hybrid-dflash": _trained("dflash", "DFlash", "as dflash, for vlm/hybrid", HYBRID),
    "hybrid-mtp": _trained("mtp", "MTP layer", "tree or chain from a layer of the target's own class", HYBRID),
    "hydra": _trained("hydra", "Hydra", "tree or chain from heads on the target's last state"),
    "medusa": _trained("medusa", "Medusa", "tree or chain from independent heads on the target's last state"),
    "small": Choice(
        "small model chain",
        lambda resources: drafters.SmallModel(resources.zoo_part("vlm/small")[0]),
        "chain from a smaller model",
        "none of its own",
        target="vlm",
    ),
    "lookup": Choice(
        "prompt lookup", lambda resources: drafters.PromptLookup(), "n-grams of the prompt and the text so far"
    ),
    "recycling": Choice(
        "Token Recycling", lambda resources: drafters.TokenRecycling(), "tree from the target's earlier candidates"
    ),
    "none": Choice("plain", lambda resources: None, "nothing: plain decoding in the same loop"),
    "auto": Choice("auto", _automatic, "what is at hand for the model, as far as it pays by measured time"),
    "weak": Choice("EAGLE with noise", lambda resources: resources.variant("weak", weakened), "as eagle", public=False),
    "random": Choice(
        "untrained EAGLE", lambda resources: resources.variant("random", untrained), "as eagle, at random", public=False
    ),
}


def short_name(name: str) -> str:
    """The name in DRAFTERS of what the zoo calls `name`: "msd" of "vlm/msd"; any other name as it is."""
    short = name.removeprefix("vlm/").replace("/", "-")
    return short if short in DRAFTERS and name in zoo.names() else name


def drafter_names(model: str = "vlm") -> list[str]:
    """The names users choose from for a model of the zoo: what needs no training, and what the zoo has for it."""
    known = zoo.names()
    return [
        name
        for name, choice in DRAFTERS.items()
        if choice.public and choice.target in ("", model) and (choice.part is None or choice.part in known)
    ]


def unknown_drafter(name: str) -> str:
    """The sentence for a name that is no drafter."""
    names = ", ".join(drafter_names())
    return f"--drafter: expected one of {names} or a folder with a saved drafter, got {name!r}, pick one of these"


def title_of(name: str) -> str:
    """What tables call a drafter."""
    return DRAFTERS[name].title if name in DRAFTERS else name


def card_of(name: str) -> dict:
    """What is known about the training of a drafter: the card of a zoo model or beside a saved one, {} without one."""
    from mmspec.zoo.files.registry import folder_of

    choice = DRAFTERS.get(name)
    if choice is not None and choice.part not in zoo.names():
        return {}
    file = (Path(name) if choice is None else folder_of(choice.part)) / "card.json"
    return read_json(file) if file.is_file() else {}
