"""The drafters that fit a model: kinds that can be made for it, trained ones that are here, and published ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmspec import zoo
from mmspec.check.memory import parameters_of
from mmspec.check.report import DrafterFit
from mmspec.check.source import ModelSource
from mmspec.io.checkpoints import weight_files
from mmspec.io.loading import abbreviated
from mmspec.io.pretrained import ZOO
from mmspec.io.readers import read_shapes
from mmspec.methods import MethodInfo, methods
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.hub_cache import drafter_states
from mmspec.vlm.drafters.kinds import drafter_class, untrained
from mmspec.vlm.drafters.mtp.published import is_mtp_tensor
from mmspec.zoo.files.table import MODELS

_ROOTS = ("vlm/hybrid", "vlm/smol", "smollm2", "vlm")  # models of the zoo, those with longer names first


def drafter_fits(parts: Parts, source: ModelSource) -> list[DrafterFit]:
    """Every drafter that the model can have, those that are here first.

    Args:
        parts: Of the model, with or without weights.
        source: Where its files are.
    """
    found = [*_untrained(), *_of_zoo(source), *_of_checkpoint(parts, source), *_published(parts, source)]
    here = {one.text.partition("@")[0] for one in found if one.here}
    found += [fit for fit in _kinds(parts) if fit.name not in here]
    return sorted(found, key=lambda one: (not one.here, not one.fits))


def _untrained() -> Iterator[DrafterFit]:
    """Drafters without weights."""
    for one in methods("vlm", "drafter"):
        if not one.needs and one.facts.get("drafts"):
            yield DrafterFit(one.name, True, True, 0, one.about, one.name)


def _of_zoo(source: ModelSource) -> Iterator[DrafterFit]:
    """The drafters of the zoo that were trained for this model of the zoo."""
    for name in zoo.names():
        kind = _zoo_kind(name, source.zoo)
        if kind is not None:
            text = f"{kind.name}@{ZOO}{name}"
            yield DrafterFit(kind.name, True, True, _stored(name), f"in the zoo: {MODELS[name].about}", text)


def _zoo_kind(name: str, target: str) -> MethodInfo | None:
    """The drafter that a part of the zoo is, where it was trained for the model `target`."""
    root = next((root for root in _ROOTS if name.startswith(f"{root}/")), None)
    if not target or root != target:
        return None
    kind = name.removeprefix(f"{root}/").partition("_")[0]
    found = (one for one in methods("vlm", "drafter") if one.needs == ("weights",) and one.name == kind)
    return next(found, None)


def _stored(name: str) -> int:
    """Weights in the files of a part of the zoo."""
    shapes = (read_shapes(file) for file in weight_files(zoo.folder_of(name)))
    return sum(value.numel() for one in shapes for value in one.values())


def _of_checkpoint(parts: Parts, source: ModelSource) -> Iterator[DrafterFit]:
    """The MTP layer in the checkpoint of the model itself."""
    if not source.has_weights or source.zoo or source.file is None:
        return
    shapes = {name: value for file in weight_files(source.folder) for name, value in read_shapes(file).items()}
    layers = [value for name, value in shapes.items() if is_mtp_tensor(name, parts.layers)]
    if layers:
        weights = sum(value.numel() for value in layers)
        yield DrafterFit("mtp", True, True, weights, "in the model's own checkpoint", f"mtp@{source.folder}")


def _published(parts: Parts, source: ModelSource) -> Iterator[DrafterFit]:
    """The drafters that others have published for the model."""
    for state in drafter_states(source.name, parts.hidden_size, parts.vocab_size):
        one, here = state.published, state.folder is not None and not state.reason
        about = ", ".join(filter(None, (one.kind, one.size and f"{one.size} parameters", one.licence)))
        where = state.reason or ("in the cache" if here else f"not here; fetch it with `hf download {one.repo}`")
        text = f"{one.kind}@{one.repo}" if here else ""
        yield DrafterFit(one.repo, not state.reason, here, None, f"{about}; {where}", text)


def _kinds(parts: Parts) -> Iterator[DrafterFit]:
    """The kinds of trained drafters, with the size that one would have for this model."""
    for one in methods("vlm", "drafter"):
        if not one.facts.get("trained"):
            continue
        kind = one.facts["trained"][0]
        try:
            with torch.device("meta"):
                made: nn.Module = untrained(kind, parts, {})
        except Exception as error:  # no end to what a class whose parts have other names raises
            yield DrafterFit(one.name, False, False, None, f"no sizes for it ({type(error).__name__}: {error})")
            continue
        yield DrafterFit(one.name, True, False, parameters_of(made), f"mmspec train vlm-drafter --kind {kind}")
    families = [one.name for one in methods("vlm", "drafter") if one.needs == ("weights",)
                and not one.facts.get("trained") and not one.facts.get("in_target")
                and getattr(drafter_class(one.name), "any_target", False)]  # fmt: skip
    if families:
        yield DrafterFit(abbreviated(families), True, False, None, "published files of this model's sizes")
