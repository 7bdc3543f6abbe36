"""A model for text or for pictures and text, its processor, and every drafter for it by name, each loaded on first use."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from mmspec import zoo
from mmspec.evaluate.engine.domain import Resources
from mmspec.io.checkpoints import cast_weights, load_model, load_part
from mmspec.methods import MethodInfo, find, methods
from mmspec.vlm import load_drafter
from mmspec.zoo.files.table import MODELS

HYBRID, SMOL, SMOLLM2 = "vlm/hybrid", "vlm/smol", "smollm2"
TARGETS = ("vlm", HYBRID, SMOL, SMOLLM2)  # models of the zoo that commands decode with
NOISE = 0.6  # of the weights' own spread; leaves the zoo's EAGLE an accept length below 2
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class VlmDrafterSpec:
    """A drafter as the command line offers it.

    Attributes:
        title: Its name in tables.
        make: The function that makes it from the resources.
        part: Its name in the zoo, None where it has none.
        public: Whether users are offered it; the others serve the benches.
        target: The zoo's model that it is for, "" for any.
    """

    title: str
    make: Callable[[VlmResources], Any]
    part: str | None = None
    public: bool = True
    target: str = ""


@dataclass(frozen=True, slots=True)
class _ZooParts:
    """What a method is made of where its weights are the zoo's.

    Attributes:
        resources: The target and the models of the zoo that belong to it.
        name: The weights in the zoo, "" for none.
    """

    resources: VlmResources
    name: str = ""

    @property
    def model(self) -> Any:
        return self.resources.model

    def part(self, name: str) -> Any:
        """The weights, without the processor that models of the zoo come with."""
        found = self.resources.zoo_part(self.name)
        return found[0] if isinstance(found, tuple) else found


def target_of(part: str) -> str:
    """The zoo's model that a part of it was trained for."""
    return next((target for target in (HYBRID, SMOL, SMOLLM2) if part.startswith(f"{target}/")), "vlm")


def _automatic(resources: VlmResources) -> Any:
    """A controller that has seen nothing yet, so that what it learns is timed."""
    from mmspec.vlm.auto import controller_for

    return controller_for(resources.model)


def _of_method(found: MethodInfo, part: str | None = None) -> VlmDrafterSpec:
    """A method by itself, or over the weights of a part of the zoo."""
    if part is None:
        return VlmDrafterSpec(found.title, lambda resources: found.make({}, _ZooParts(resources)))
    target = target_of(part)
    title = MODELS[part].title or found.title
    return VlmDrafterSpec(title, lambda resources: found.make({}, _ZooParts(resources, part)), part, target=target)


def drafter_specs() -> dict[str, VlmDrafterSpec]:
    """The drafters by name, in the order of the registry: what the zoo has weights for, and what needs none. Then variants."""
    known = zoo.names()
    found: dict[str, VlmDrafterSpec] = {}
    for one in methods("vlm", "drafter"):
        if not one.needs:
            found[one.name] = _of_method(one)
            continue
        for part in known:
            name = part.removeprefix(f"{target_of(part)}/")
            if name != part and one.name in (name, name.partition("_")[0]):
                found[_short(part)] = _of_method(one, part)
    found["auto"] = VlmDrafterSpec("auto", _automatic)
    if (part := "vlm/eagle3") in known:
        over = find("both", "vlm", "drafter")
        found[over.name] = replace(_of_method(over, part), title="prompt lookup + EAGLE-3")
    for name, title, change in (("weak", "EAGLE with noise", weakened), ("random", "untrained EAGLE", untrained)):
        make = partial(VlmResources.variant, name=name, change=change)
        found[name] = VlmDrafterSpec(title, make, public=False, target="vlm")
    return found


def _short(part: str) -> str:
    """The name of a part of the zoo in commands: "msd" of "vlm/msd", "hybrid-mtp" of "vlm/hybrid/mtp"."""
    return part.removeprefix("vlm/").replace("/", "-")


def short_name(name: str) -> str:
    """The drafter that the zoo calls `name`, as commands call it: "msd" of "vlm/msd"; any other name as it is."""
    return short if (short := _short(name)) in drafter_specs() and name in zoo.names() else name


def drafter_names(model: str = "vlm") -> list[str]:
    """The names users choose from for a model of the zoo: what needs no training, and what the zoo has for it."""
    return [name for name, one in drafter_specs().items() if one.public and one.target in ("", model)]


def unknown_drafter(name: str) -> str:
    """The sentence for a name that is no drafter."""
    names = ", ".join(drafter_names())
    return f"--drafter: expected one of {names} or a folder with a saved drafter, got {name!r}, pick one of these"


def title_of(name: str) -> str:
    """What tables call a drafter."""
    found = drafter_specs().get(name)
    return name if found is None else found.title


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
        if isinstance(part, tuple):  # a smaller model and its processor
            part[0].to(self.model.device)
        return part.fitted(self.model) if hasattr(part, "fitted") else part

    def drafter(self, name: str) -> Any:
        """The drafter of a name in `drafter_specs`, or the one saved in the folder `name`; None for "none"."""
        if (found := drafter_specs().get(short_name(name))) is not None:
            return found.make(self)
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


def untrained(drafter: Any, seed: int = 0) -> Any:
    """A drafter of the same sizes and shape with fresh random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        other = type(drafter)(drafter.config)
    other.shapes = drafter.shapes
    weight = next(drafter.parameters())
    return other.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(False)


def weakened(drafter: Any, noise: float = NOISE, seed: int = 0) -> Any:
    """The drafter with Gaussian noise on its matrices, `noise` times each matrix's own standard deviation."""
    other = copy.deepcopy(drafter)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.dim() > 1:
                drawn = torch.randn(weight.shape, generator=random).to(device=weight.device, dtype=weight.dtype)
                weight += noise * weight.std() * drawn
    return other
