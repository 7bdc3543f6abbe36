"""A model for text, or for pictures and text, with its processor and its drafters by name, loaded on first use."""

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
from mmspec.io.checkpoints import cast_weights, load_model, load_part
from mmspec.methods import MethodInfo, find, methods
from mmspec.run.placement import AUTO, Placement
from mmspec.run.resources import Resources
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.zoo.files.table import MODELS

HYBRID, SMOL, SMOLLM2 = "vlm/hybrid", "vlm/smol", "smollm2"
TARGETS = ("vlm", HYBRID, SMOL, SMOLLM2)  # models of the zoo that commands decode with
NOISE = 0.6  # relative to the weights' own spread; reduces the accept length of the zoo's EAGLE below 2
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class VlmDrafterSpec:
    """A drafter that the command line offers."""

    title: str  # in tables
    make: Callable[[VlmResources], Any]
    part: str | None = None  # its name in the zoo, None where it has none
    public: bool = True  # whether users may choose it; the others serve the benches
    target: str = ""  # the zoo's model that it belongs to, "" for any


@dataclass(frozen=True, slots=True)
class _ZooParts:
    """The parts of a method whose weights come from the zoo."""

    resources: VlmResources
    name: str = ""  # of the weights in the zoo, "" for none

    @property
    def model(self) -> Any:
        return self.resources.model

    def part(self, name: str) -> Any:
        """Return the weights without the processor that models of the zoo come with."""
        part = self.resources.zoo_part(self.name)
        return part[0] if isinstance(part, tuple) else part


def target_of(part: str) -> str:
    """Return the zoo's model for which a part of the zoo was trained."""
    return next((target for target in (HYBRID, SMOL, SMOLLM2) if part.startswith(f"{target}/")), "vlm")


def _automatic(resources: VlmResources) -> Any:
    """Return a controller without any history, so that its learning is timed."""
    from mmspec.vlm.auto import controller_for

    return controller_for(resources.model)


def _of_method(method: MethodInfo, part: str | None = None) -> VlmDrafterSpec:
    """Return the drafter of a method, over the weights of a part of the zoo if `part` is set."""
    if part is None:
        return VlmDrafterSpec(method.title, lambda resources: method.make({}, _ZooParts(resources)))
    target = target_of(part)
    title = MODELS[part].title or method.title
    return VlmDrafterSpec(title, lambda resources: method.make({}, _ZooParts(resources, part)), part, target=target)


def drafter_specs() -> dict[str, VlmDrafterSpec]:
    """Return the drafters by name: those that the zoo has weights for or that need none, then variants."""
    known = zoo.names()
    specs: dict[str, VlmDrafterSpec] = {}
    for method in methods("vlm", "drafter"):
        if not method.needs:
            specs[method.name] = _of_method(method)
            continue
        for part in known:
            name = part.removeprefix(f"{target_of(part)}/")
            if name != part and method.name in (name, name.partition("_")[0]):
                specs[_short(part)] = _of_method(method, part)
    specs["auto"] = VlmDrafterSpec("auto", _automatic)
    if (part := "vlm/eagle3") in known:
        over = find("both", "vlm", "drafter")
        specs[over.name] = replace(_of_method(over, part), title="prompt lookup + EAGLE-3")
    for name, title, change in (("weak", "EAGLE with noise", weakened), ("random", "untrained EAGLE", untrained)):
        make = partial(VlmResources.variant, name=name, change=change)
        specs[name] = VlmDrafterSpec(title, make, public=False, target="vlm")
    return specs


def _short(part: str) -> str:
    """Return the name of a part of the zoo in commands: "msd" for "vlm/msd", "hybrid-mtp" for "vlm/hybrid/mtp"."""
    return part.removeprefix("vlm/").replace("/", "-")


def short_name(name: str) -> str:
    """Return the command-line name of a drafter of the zoo, such as "msd" for "vlm/msd"; other names are unchanged."""
    return short if (short := _short(name)) in drafter_specs() and name in zoo.names() else name


def drafter_names(model: str = "vlm") -> list[str]:
    """Return the drafters that users may choose for a model of the zoo."""
    return [name for name, spec in drafter_specs().items() if spec.public and spec.target in ("", model)]


def unknown_drafter(name: str) -> str:
    names = ", ".join(drafter_names())
    return f"--drafter: expected one of {names} or a folder with a saved drafter, got {name!r}, pick one of these"


def title_of(name: str) -> str:
    spec = drafter_specs().get(name)
    return name if spec is None else spec.title


@dataclass(slots=True)
class VlmResources(Resources):
    """A model for text, its processor and its drafters."""

    model: Any
    processor: Any  # of a text-only model its tokenizer
    name: str  # in tables
    zoo: str = "vlm"  # its name in the zoo, whose drafters fit; "" for other models

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer; for a text-only model it is the processor itself."""
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def takes_pictures(self) -> bool:
        return not isinstance(self.processor, PreTrainedTokenizerBase)

    def place(self, placement: Placement) -> None:
        dtype = self.model.dtype if placement.dtype == AUTO else getattr(torch, placement.dtype)
        if dtype != self.model.dtype:
            cast_weights(self.model, dtype)
        Placement(placement.device).moved(self.model)

    def zoo_part(self, name: str) -> Any:
        """Return a model of the zoo that belongs to this model."""
        if target_of(name) != self.zoo:
            raise ValueError(
                f"expected the zoo's model, which {name!r} was trained for, got {self.name}, "
                "use --drafter lookup or recycling"
            )
        return self.once(name, lambda: self._fitted(zoo.load(name)))

    def _fitted(self, part: Any) -> Any:
        """Move a drafter to the device and the precision of the model; other parts are unchanged."""
        if isinstance(part, tuple):  # a smaller model and its processor
            part[0].to(self.model.device)
        return part.fitted(self.model) if hasattr(part, "fitted") else part

    def drafter(self, name: str) -> Any:
        """Return a drafter by its name in `drafter_specs`, from the folder `name` or by its text form; None for "none"."""
        if (spec := drafter_specs().get(short_name(name))) is not None:
            return spec.make(self)
        if Path(name).is_dir() or "@" in name:
            return drafter_from_text(name, self.model)
        raise ValueError(unknown_drafter(name))

    def variant(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Return the zoo's EAGLE after `change`, built once and cached under `name`."""
        return self.once(name, lambda: change(self.zoo_part("vlm/eagle")))


def open_target(spec: str, dtype: str = AUTO) -> VlmResources:
    """Open the model that a bench decodes with: a name in TARGETS, a folder, or a hub id, the only case that uses the
    network. The precision "auto" is float32 for the zoo's models, and that of other files."""
    if spec in TARGETS:
        return zoo_resources(spec, "float32" if dtype == AUTO else dtype)
    return published_resources(spec, _is_local(spec), dtype)


def _is_local(spec: str) -> bool:
    """Return whether the name of a model is a folder; refuse names that are no hub ids either."""
    if not (local := Path(spec).is_dir()) and not _HUB_ID.fullmatch(spec):
        known = f"{', '.join(TARGETS)}, a folder or a hub id 'owner/name'"
        raise ValueError(f"--model: expected one of {known}, got {spec!r}, correct it")
    return local


def zoo_resources(name: str = "vlm", dtype: str = "float32") -> VlmResources:
    model, processor = zoo.load(name)
    return VlmResources(cast_weights(model, getattr(torch, dtype)), processor, _described(f"zoo {name}", model), name)


def published_resources(spec: str, local: bool, dtype: str = "auto") -> VlmResources:
    """Open a transformers model from a folder or a hub id, with local files only if `local`. The precision "auto" is
    that of the files."""
    from transformers import AutoProcessor

    # the processor of a text-only model is its tokenizer; read first, since it refuses a checkpoint with its own code
    processor = load_part(AutoProcessor, spec, local=local)
    precision = dtype if dtype == "auto" else getattr(torch, dtype)
    model = load_model(_kind_of(spec, local), spec, local=local, dtype=precision)
    return VlmResources(model, processor, _described(spec, model), zoo="")


def _kind_of(spec: str, local: bool) -> type:
    """Return the auto class of a transformers model; refuse a model that writes no text."""
    import transformers as hf

    config = type(load_part(hf.AutoConfig, spec, local=local))
    if config in hf.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return hf.AutoModelForImageTextToText
    if config in hf.MODEL_FOR_CAUSAL_LM_MAPPING:
        return hf.AutoModelForCausalLM
    raise ValueError(f"{spec}: expected a model that writes text, got {config.__name__}; use another")


def takes_pictures(spec: str) -> bool:
    """Return whether prompts of a model may show pictures; reads no weights. The model is named as for `open_target`."""
    return spec != SMOLLM2 if spec in TARGETS else "Image" in _kind_of(spec, _is_local(spec)).__name__


def _described(name: str, model: Any) -> str:
    """Return the name for tables, which print the precision beside it."""
    return f"{name}, {sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def untrained(drafter: Any, seed: int = 0) -> Any:
    """Return a drafter of the same sizes and shape with fresh random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        other = type(drafter)(drafter.config)
    other.shapes = drafter.shapes
    weight = next(drafter.parameters())
    return other.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(False)


def weakened(drafter: Any, noise: float = NOISE, seed: int = 0) -> Any:
    """Return the drafter with Gaussian noise on its matrices, `noise` times each matrix's own standard deviation."""
    other = copy.deepcopy(drafter)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.dim() > 1:
                drawn = torch.randn(weight.shape, generator=random).to(device=weight.device, dtype=weight.dtype)
                weight += noise * weight.std() * drawn
    return other
