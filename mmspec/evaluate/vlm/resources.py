"""A model for text or for pictures and text, its processor, and every drafter for it by name, each loaded on first use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from mmspec import drafters, zoo
from mmspec.evaluate.engine.domain import Resources
from mmspec.evaluate.vlm.variants import untrained, weakened
from mmspec.io.checkpoints import cast_weights, load_model, load_part
from mmspec.io.readers import read_json
from mmspec.vlm import load_drafter

HYBRID, SMOL, SMOLLM2 = "vlm/hybrid", "vlm/smol", "smollm2"
TARGETS = ("vlm", HYBRID, SMOL, SMOLLM2)  # models of the zoo that commands decode with
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class VlmDrafterSpec:
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
    return next((target for target in (HYBRID, SMOL, SMOLLM2) if part.startswith(f"{target}/")), "vlm")


def _trained(name: str, title: str, drafts: str, target: str = "vlm") -> VlmDrafterSpec:
    part = f"{target}/{name}"
    made = "per target; shipped for the zoo's"
    return VlmDrafterSpec(title, lambda resources: resources.zoo_part(part), drafts, made, part, target=target)


def _automatic(resources: VlmResources) -> Any:
    """A controller that has seen nothing yet, so that what it learns is timed."""
    from mmspec.vlm.auto import controller_for

    return controller_for(resources.model)


DRAFTERS: dict[str, VlmDrafterSpec] = {
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
    "smol-msd": _trained("msd", "MSD", "as msd, for vlm/smol", SMOL),
    "smol-vispec": _trained("vispec", "ViSpec", "as vispec, for vlm/smol", SMOL),
    "smol-dspark": _trained("dspark", "DSpark with vision", "as dspark, for vlm/smol", SMOL),
    "smollm2-eagle3": _trained("eagle3", "EAGLE-3", "as eagle3, for smollm2", SMOLLM2),
    "smollm2-dspark": _trained("dspark", "DSpark", "as dspark without pictures, for smollm2", SMOLLM2),
    "hydra": _trained("hydra", "Hydra", "tree or chain from heads on the target's last state"),
    "medusa": _trained("medusa", "Medusa", "tree or chain from independent heads on the target's last state"),
    "small": VlmDrafterSpec(
        "small model chain",
        lambda resources: drafters.SmallModel(resources.zoo_part("vlm/small")[0]),
        "chain from a smaller model",
        "none of its own",
        target="vlm",
    ),
    "lookup": VlmDrafterSpec(
        "prompt lookup", lambda resources: drafters.PromptLookup(), "n-grams of the prompt and the text so far"
    ),
    "recycling": VlmDrafterSpec(
        "Token Recycling", lambda resources: drafters.TokenRecycling(), "tree from the target's earlier candidates"
    ),
    "both": VlmDrafterSpec(
        "prompt lookup + EAGLE-3",
        lambda resources: drafters.Merged(resources.zoo_part("vlm/eagle3")),
        "prompt lookup and the trained drafter in one tree",
        "that of the trained drafter",
        part="vlm/eagle3",
        target="vlm",
    ),
    "none": VlmDrafterSpec("plain", lambda resources: None, "nothing: plain decoding in the same loop"),
    "auto": VlmDrafterSpec("auto", _automatic, "what is at hand for the model, as far as it pays by measured time"),
    "weak": VlmDrafterSpec(
        "EAGLE with noise",
        lambda resources: resources.variant("weak", weakened),
        "as eagle",
        public=False,
        target="vlm",
    ),
    "random": VlmDrafterSpec(
        "untrained EAGLE",
        lambda resources: resources.variant("random", untrained),
        "as eagle, at random",
        public=False,
        target="vlm",
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


@dataclass(slots=True)
class VlmResources(Resources):
    """name: what tables call the model.   zoo: its name in the zoo, whose drafters fit, "" for others."""

    model: Any
    processor: Any
    name: str
    zoo: str = "vlm"

    @property
    def is_zoo(self) -> bool:
        """Whether it is the zoo's VLM, which most of the zoo's drafters are for."""
        return self.zoo == "vlm"

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, also of a text-only model, whose processor it is."""
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def takes_pictures(self) -> bool:
        """Whether prompts may show pictures."""
        return not isinstance(self.processor, PreTrainedTokenizerBase)

    def zoo_part(self, name: str) -> Any:
        """A model of the zoo that belongs to this one.   Raises ValueError where it belongs to another."""
        if target_of(name) != self.zoo:
            raise ValueError(
                f"expected the zoo's model, which {name!r} was trained for, got {self.name}, "
                "use --drafter lookup or recycling"
            )
        return self.once(name, lambda: self._fitted(zoo.load(name)))

    def _fitted(self, part: Any) -> Any:
        """A drafter on the device and in the precision of the model; other parts as they are."""
        return part.fitted(self.model) if hasattr(part, "fitted") else part

    def drafter(self, name: str) -> Any:
        """The drafter called `name` in DRAFTERS, or the one saved in the folder `name`; None for "none"."""
        short = short_name(name)
        if short in DRAFTERS:
            return DRAFTERS[short].make(self)
        if Path(name).is_dir():
            return self.once(name, lambda: load_drafter(name, target=self.model))
        raise ValueError(unknown_drafter(name))

    def variant(self, name: str, change: Callable[[Any], Any]) -> Any:
        """The zoo's EAGLE after `change`, made once and kept as `name`."""
        return self.once(name, lambda: change(self.zoo_part("vlm/eagle")))


def open_target(spec: str, dtype: str) -> VlmResources:
    """Open the model that a bench decodes with.

    Args:
        spec: A name in TARGETS, a folder, or a hub id, the only case that uses the network.
        dtype: The precision, such as "bfloat16".

    Returns:
        The model with its processor.

    Raises:
        ValueError: for a text of another form, and where there is no such model.
    """
    if spec in TARGETS:
        return zoo_resources(spec, dtype)
    local = Path(spec).is_dir()
    if not local and not _HUB_ID.fullmatch(spec):
        names = ", ".join(TARGETS)
        raise ValueError(
            f"--model: expected one of {names}, a folder or a hub id 'owner/name', got {spec!r}, correct it"
        )
    return published_resources(spec, local, dtype)


def zoo_resources(name: str = "vlm", dtype: str = "float32") -> VlmResources:
    """The zoo's model of this name, in a precision."""
    model, processor = zoo.load(name)
    return VlmResources(cast_weights(model, getattr(torch, dtype)), processor, _described(f"zoo {name}", model), name)


def published_resources(spec: str, local: bool, dtype: str = "auto") -> VlmResources:
    """Open the model of transformers in a folder, or the model that a hub id names.

    Args:
        spec: The folder or the hub id.
        local: Nothing is fetched.
        dtype: The precision, "auto" for that of the files.

    Returns:
        The model with its processor; a text-only model with its tokenizer.

    Raises:
        ValueError: where there is no model that writes text. Its readers raise errors of their own.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoProcessor,
    )

    # a text-only model's processor is its tokenizer; read first, it refuses a checkpoint with code of its own
    processor = load_part(AutoProcessor, spec, local=local)
    config = type(load_part(AutoConfig, spec, local=local))
    if config in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        kind = AutoModelForImageTextToText
    elif config in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = AutoModelForCausalLM
    else:
        raise ValueError(f"{spec}: expected a model that writes text, got {config.__name__}; use another")
    model = load_model(kind, spec, local=local, dtype=dtype if dtype == "auto" else getattr(torch, dtype))
    return VlmResources(model, processor, _described(spec, model), zoo="")


def _described(name: str, model: Any) -> str:
    """The name for tables, which name the precision beside it."""
    return f"{name}, {sum(parameter.numel() for parameter in model.parameters()):,} parameters"
