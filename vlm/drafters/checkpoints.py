"""Loading of drafters: saved here, or published by other projects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.io.pretrained import CONFIG, folder_of
from mmspec.io.readers import naming, open_tensors, read_json, read_shapes
from mmspec.methods import methods
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter
from mmspec.vlm.drafters.base.published_files import checked_fields, plain_names
from mmspec.vlm.drafters.drafter_names import drafter_class, drafter_classes, published_kinds, trained_kinds
from mmspec.vlm.hf_model import unwrapped


def load_drafter(
    path_or_repo: str | Path, target: nn.Module | None = None, kind: str | None = None
) -> PretrainedDrafter:
    """Return the drafter in a folder or a hub repository; only a repository uses the network.

    The drafter was saved here, or another project published it, or it is the MTP layer of the target's own checkpoint.

    Args:
        path_or_repo: A folder or a hub id.
        target: The model that it will draft for. It checks the sizes now, and gives the drafter its device and dtype.
            An MTP layer needs it, and so does a drafter that shares the target's head.
        kind: The kind of a published drafter, see `published_kinds`. None for the kind that the config names, else the
            kind that the tensors show; the files of EAGLE and MSD can look the same.

    Raises:
        ValueError: The folder holds no drafter, its kind is unknown or is not `kind`, or the drafter does not fit the
            target.
    """
    if kind is not None and drafter_class(kind) is None:
        raise ValueError(unknown_kind(kind, (*published_kinds(), *trained_kinds())))
    folder = folder_of(path_or_repo)
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if not config or "kind" in config:
        return _saved_drafter(folder, config.get("kind"), target, kind)
    with naming(folder):
        if kind is None and (kind := published_kind(config, target)) is None:
            if (library := config.get("speculators_model_type")) is not None:
                raise ValueError(
                    f"speculators_model_type: expected one of {', '.join(speculators_kinds())}, got {library!r}; this kind is "
                    "not supported"
                )
            kind = kind_of_tensors(shapes_of(folder), config, target)
        wanted = drafter_class(kind).tensor_filter(None if target is None else unwrapped(target))
        return drafter_from_state_dict(kind, tensors_of(folder, wanted), config, target)


def _saved_drafter(folder: Path, saved: object, target: nn.Module | None, kind: str | None) -> PretrainedDrafter:
    """Return a drafter that was saved here; its class has to be that of `kind`, where this is given."""
    own = drafter_class(saved) if isinstance(saved, str) else None  # imports its module
    if own is None:
        drafter_classes()  # the error names them all
    elif kind is not None and drafter_class(kind) is not own:
        raise ValueError(f"kind: expected {saved!r} as in the {CONFIG} of {folder}, got {kind!r}; leave it out")
    drafter = PretrainedDrafter.from_pretrained(folder)
    return drafter if target is None else drafter.fitted(target)


def unknown_kind(kind: object, known: Iterable[str]) -> str:
    """Return the error for an unknown kind, with the most similar of the known kinds."""
    known = tuple(dict.fromkeys(known))
    similar = {_letters(name): name for name in known}
    near = get_close_matches(_letters(str(kind)), similar, 1)
    wanted = f"{similar[near[0]]!r} or another of" if near else "one of"
    return f"kind: expected {wanted} {', '.join(known)}, got {kind!r}"


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def published_kind(config: Mapping[str, Any], target: nn.Module | None) -> str | None:
    """Return the registry name of the drafter that a published config names, None where it names none. The target's own
    class is no kind: publishers copy it from the target's config."""
    named, own = config.get("architectures"), config.get("dflash_config")
    projector = own.get("projector_type") if isinstance(own, Mapping) else None
    library = config.get("speculators_model_type")
    classes = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if target is not None and type(unwrapped(target)).__name__ in classes:
        classes = []
    by_sign = {sign: info.name for info in methods("vlm", "drafter") for sign in info.facts.get("published_as", ())}
    signs = (f"projector:{projector}", f"speculators:{library}", *classes)
    kind = next((by_sign[sign] for sign in signs if sign in by_sign), None)
    return "peagle" if kind == "eagle3" and config.get("parallel_drafting") is True else kind


# a tensor that shows the kind of a published drafter whose config does not, the most special first
_SHOWS = {
    "mask_hidden": "peagle", "layers.0.hidden_norm.weight": "eagle3", "imadpt.q": "vispec", "img_adaptor.query": "vispec",
    "markov_head.markov_w1.weight": "dspark", "markov_w1.weight": "dspark", "xpress_head.w1.weight": "xpress",
    "refiner_head.token_embed.weight": "xpress", "candidate_selector.predecessor_codebook": "dflash2",
    "hidden_norm.weight": "dflash", "medusa_head.0.0.linear.weight": "medusa", "medusa_heads.0.0.linear.weight": "medusa",
    "0.0.linear.weight": "medusa", "blocks.0.layers.0.linear.weight": "medusa",
}  # fmt: skip


def kind_of_tensors(state: Mapping[str, Tensor], config: Mapping[str, Any], target: nn.Module | None) -> str:
    """Return the kind that the names of a file's tensors show; EAGLE and MSD look alike for a model with pictures."""
    names = {name.replace("midlayer.", "layers.0.", 1) for name in (*state, *plain_names(state))}
    if shown := next((kind for name, kind in _SHOWS.items() if name in names), None):
        return shown
    model, named = None if target is None else unwrapped(target), config.get("architectures")
    if {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= names:
        if model is None or not take_apart(model).placeholders:
            return "eagle"  # which computes the same as MSD without pictures
        raise ValueError(
            f"kind: expected a config that names it, since EAGLE's and MSD's tensors are named alike, got architectures "
            f"{named}; pass kind='eagle' or kind='msd'"
        )
    for info in () if model is None else methods("vlm", "drafter"):
        if info.facts.get("in_target") and any(map(drafter_class(info.name).tensor_filter(model), names)):
            return info.name
    raise ValueError(
        f"kind: expected a config or tensors that show it, got architectures {named} and the tensors {sorted(state)[:4]}; "
        f"pass kind=, one of {', '.join(published_kinds())}"
    )


def speculators_kinds() -> list[str]:
    signs = (sign for info in methods("vlm", "drafter") for sign in info.facts.get("published_as", ()))
    return sorted(sign.removeprefix("speculators:") for sign in signs if sign.startswith("speculators:"))


def tensors_of(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files whose names satisfy `wanted`."""
    tensors = {}
    for path in _files(folder):
        with open_tensors(path) as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys() if wanted(name)}
    return tensors


def shapes_of(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files on the meta device."""
    return {name: value for path in _files(folder) for name, value in read_shapes(path).items()}


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: expected safetensors files beside {CONFIG}, got none; fetch them")
    for index in folder.glob("*.safetensors.index.json"):
        listed = read_json(index).get("weight_map")
        missing = (
            sorted({str(name) for name in listed.values()} - {path.name for path in files})
            if isinstance(listed, dict)
            else []
        )
        if missing:
            raise ValueError(
                f"{folder}: expected the files that {index.name} lists, got none for {', '.join(missing[:4])}; fetch "
                "them"
            )
    return files


def drafter_from_state_dict(
    kind: str, sd: Mapping[str, Tensor], config: Mapping[str, Any], target: nn.Module | None = None
) -> Any:
    """Return the drafter of a published checkpoint, in float32 and eval mode.

    Args:
        kind: A kind that is published, or the name of such a drafter in `mmspec methods`: "msd", "eagle", "mtp".
        sd: Tensors under the published names, of any size.
        config: The fields of the published config file.
        target: The model that it will draft for. It checks the sizes now, and gives the drafter its device and dtype.

    Raises:
        ValueError: The kind is unknown, keys are missing or unknown, or sizes fit neither the config nor the target.
    """
    if kind not in published_kinds():
        raise ValueError(unknown_kind(kind, published_kinds()))
    target, cls = None if target is None else unwrapped(target), drafter_class(kind)
    fields = dict(config) if cls.in_target else checked_fields(config)
    if scalars := [name for name, value in sd.items() if not value.dim() and not cls.in_target]:
        raise ValueError(f"{scalars[0]}: expected a tensor with rows, got a single number; fetch the file again")
    drafter = cls.from_published(dict(sd), fields, target)
    drafter = drafter.eval().requires_grad_(False)
    return drafter if target is None else drafter.fitted(target)
