"""The drafters that fit a model: trained and published drafters, and kinds that can be trained for it."""

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
from mmspec.vlm.drafters.drafter_names import drafter_class, untrained
from mmspec.vlm.drafters.hub_cache import drafter_states
from mmspec.vlm.drafters.mtp.published import is_mtp_tensor
from mmspec.zoo.files.table import MODELS

_ROOTS = ("vlm/hybrid", "vlm/smol", "smollm2", "vlm")  # models of the zoo, those with longer names first


def drafter_fits(parts: Parts, source: ModelSource) -> list[DrafterFit]:
    """Return every drafter for a model, with weights or without, the available drafters first."""
    fits = [*_untrained(), *_of_zoo(source), *_of_checkpoint(parts, source), *_published(parts, source)]
    here = {fit.text.partition("@")[0] for fit in fits if fit.here}
    fits += [fit for fit in _kinds(parts) if fit.name not in here]
    return sorted(fits, key=lambda fit: (not fit.here, not fit.fits))


def _untrained() -> Iterator[DrafterFit]:
    for method in methods("vlm", "drafter"):
        if not method.needs and method.facts.get("drafts"):
            yield DrafterFit(method.name, True, True, 0, method.about, method.name)


def _of_zoo(source: ModelSource) -> Iterator[DrafterFit]:
    for name in zoo.names():
        kind = _zoo_kind(name, source.zoo)
        if kind is not None:
            text = f"{kind.name}@{ZOO}{name}"
            yield DrafterFit(kind.name, True, True, _stored(name), f"in the zoo: {MODELS[name].about}", text)


def _zoo_kind(name: str, target: str) -> MethodInfo | None:
    root = next((root for root in _ROOTS if name.startswith(f"{root}/")), None)
    if not target or root != target:
        return None
    kind = name.removeprefix(f"{root}/").partition("_")[0]
    known = methods("vlm", "drafter")
    return next((method for method in known if method.needs == ("weights",) and method.name == kind), None)


def _stored(name: str) -> int:
    """Return the number of weights in the files of a part of the zoo."""
    shapes = (read_shapes(file) for file in weight_files(zoo.folder_of(name)))
    return sum(value.numel() for tensors in shapes for value in tensors.values())


def _of_checkpoint(parts: Parts, source: ModelSource) -> Iterator[DrafterFit]:
    """The MTP layer in the model's own checkpoint."""
    if not source.has_weights or source.zoo or source.file is None:
        return
    shapes = {name: value for file in weight_files(source.folder) for name, value in read_shapes(file).items()}
    layers = [value for name, value in shapes.items() if is_mtp_tensor(name, parts.layers)]
    if layers:
        weights = sum(value.numel() for value in layers)
        yield DrafterFit("mtp", True, True, weights, "in the model's own checkpoint", f"mtp@{source.folder}")


def _published(parts: Parts, source: ModelSource) -> Iterator[DrafterFit]:
    for state in drafter_states(source.name, parts.hidden_size, parts.vocab_size):
        published, here = state.published, state.folder is not None and not state.reason
        layout = "" if published.read else "layout assumed"
        facts = (published.kind, published.size and f"{published.size} parameters", published.licence, layout)
        about = ", ".join(filter(None, facts))
        where = state.reason or ("in the cache" if here else f"not here; fetch it with `hf download {published.repo}`")
        text = f"{published.kind}@{published.repo}" if here else ""
        yield DrafterFit(published.repo, not state.reason, here, None, f"{about}; {where}", text)


def _kinds(parts: Parts) -> Iterator[DrafterFit]:
    """Yield the kinds of trained drafters, with the size of a drafter for this model."""
    for method in methods("vlm", "drafter"):
        if not method.facts.get("trained"):
            continue
        kind = method.facts["trained"][0]
        try:
            with torch.device("meta"):
                drafter: nn.Module = untrained(kind, parts, {})
        except Exception as error:  # a class whose parts have other names raises errors of any class
            yield DrafterFit(method.name, False, False, None, f"no sizes for it ({type(error).__name__}: {error})")
            continue
        yield DrafterFit(method.name, True, False, parameters_of(drafter), f"mmspec train vlm-drafter --kind {kind}")
    families = [
        method.name
        for method in methods("vlm", "drafter")
        if method.needs == ("weights",)
        and not method.facts.get("trained")
        and not method.facts.get("in_target")
        and getattr(drafter_class(method.name), "any_target", False)
    ]
    if families:
        yield DrafterFit(abbreviated(families), True, False, None, "published files of this model's sizes")
