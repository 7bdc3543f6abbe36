"""Ways to decode an image by name, as the command line and the benches make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from mmspec.core.loop import Drafter
from mmspec.evaluate.image import drafters
from mmspec.evaluate.image.resources import ImageResources


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asked of a decoding; None leaves it as the decoding has it.

    window: values a pass.   coupling: "gumbel" or "maximal".   init: of `SJD`.   drafter: "sjd", "scd" or "eagle".
    upsampler: "pixels" or "learned".
    """

    window: int | None = None
    coupling: str | None = None
    init: str | None = None
    drafter: str | None = None
    upsampler: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A decoding as the command line offers it.   takes: the wishes it can grant.   rule: where none is named."""

    about: str
    make: Callable[[ImageResources, Wishes], Drafter | None]
    takes: tuple[str, ...] = ()
    rule: str | None = None


_SHORT = {"t2i/eagle": "eagle", "t2i/upsampler": "learned"}


def short_name(name: str) -> str:
    """What options call what the zoo calls `name`: "eagle" of "t2i/eagle"; any other name as it is."""
    return _SHORT.get(name, name)


def sjd(resources: ImageResources, wishes: Wishes) -> Drafter:
    """`SJD`, without coupling unless asked for."""
    return _jacobi(wishes, window=16)


def scd(resources: ImageResources, wishes: Wishes) -> Drafter:
    """Coupled `SJD`, by Gumbel noise unless asked otherwise."""
    return _jacobi(wishes, window=32, coupling="gumbel")


def pac(resources: ImageResources, wishes: Wishes) -> Drafter:
    """Maximal coupling with a tree where the last round rejected."""
    from mmspec.imagegen.jacobi import Proactive

    return _jacobi(wishes, window=64, coupling="maximal", tree=Proactive())


def _jacobi(wishes: Wishes, **settings: object) -> Drafter:
    from mmspec.imagegen.jacobi import SJD

    asked = {name: getattr(wishes, name) for name in ("window", "coupling", "init")}
    return SJD(**settings | {name: value for name, value in asked.items() if value is not None})


def rows(resources: ImageResources, wishes: Wishes) -> Drafter:
    """Coupled `SJD` that probes the row below its window."""
    from mmspec.imagegen.rowwise import RowDrafts

    return RowDrafts(scd(resources, wishes))


def eagle(resources: ImageResources, wishes: Wishes) -> Drafter:
    """The drafter trained for the zoo's model."""
    return resources.part("eagle")


def auto(resources: ImageResources, wishes: Wishes) -> Drafter:
    """What the pipeline's `decoding="auto"` is: it goes on learning."""
    return resources.pipeline.automatic


def zipar(resources: ImageResources, wishes: Wishes) -> Drafter:
    """`ZipAR`."""
    from mmspec.imagegen.rowwise import ZipAR

    return ZipAR() if wishes.window is None else ZipAR(wishes.window)


def pjd(resources: ImageResources, wishes: Wishes) -> Drafter:
    """`PJD`."""
    from mmspec.imagegen.rowwise import PJD

    return PJD() if wishes.window is None else PJD(window=wishes.window)


def mulo(resources: ImageResources, wishes: Wishes) -> Drafter:
    """`MuLo` over the zoo's low-resolution model."""
    return drafters.mulo(learned=wishes.upsampler == "learned")(resources)


_DRAFTS = {"sjd": sjd, "scd": scd, "eagle": eagle}
UPSAMPLERS = ("pixels", "learned")
_JACOBI = ("window", "coupling", "init")


def _drafted(resources: ImageResources, wishes: Wishes) -> Drafter:
    """The drafts that a relaxed rule judges: SJD's, or those of another drafter."""
    return _DRAFTS[wishes.drafter or "sjd"](resources, wishes)


DECODINGS: dict[str, Choice] = {
    "ar": Choice("plain decoding", lambda resources, wishes: None),
    "sjd": Choice("speculative Jacobi decoding; exact", sjd, _JACOBI),
    "scd": Choice("coupled Jacobi decoding; exact", scd, _JACOBI),
    "pac": Choice("coupled Jacobi decoding with a tree; exact", pac, _JACOBI),
    "rows": Choice("coupled Jacobi decoding that looks into the next row; exact", rows, _JACOBI),
    "eagle": Choice("a trained drafter; exact", eagle),
    "lantern": Choice("codes borrow from their neighbours; relaxed", _drafted, (*_JACOBI, "drafter"), "lantern"),
    "gsd": Choice("codes are judged in groups; relaxed", _drafted, (*_JACOBI, "drafter"), "gsd"),
    "cool": Choice("annealed ratios; relaxed", _drafted, (*_JACOBI, "drafter"), "coolsd"),
    "zipar": Choice("several rows at once; relaxed", zipar, ("window",)),
    "pjd": Choice("Jacobi decoding in several rows at once; relaxed", pjd, ("window",)),
    "mulo": Choice("a small picture drafts a large one; relaxed", mulo, ("upsampler",)),
    "auto": Choice("coupled Jacobi decoding as far as it pays by measured time; exact", auto),
}


def check_decoding(name: str, wishes: Wishes = Wishes()) -> None:
    """Raises ValueError for an unknown name and for a wish it cannot grant."""
    if name not in DECODINGS:
        raise ValueError(f"--decoding: expected one of {', '.join(DECODINGS)}, got {name!r}, pick one of these")
    _refuse(wishes, f"--decoding {name}", DECODINGS[name].takes)
    for field, known in (("drafter", tuple(_DRAFTS)), ("upsampler", UPSAMPLERS)):
        value = getattr(wishes, field)
        if value is not None and value not in known:
            raise ValueError(f"--{field}: expected one of {', '.join(known)}, got {value!r}, pick one of these")
    if wishes.drafter == "eagle":
        _refuse(wishes, "--drafter eagle", ("drafter",))


def decoding_of(name: str, resources: ImageResources, wishes: Wishes = Wishes()) -> tuple[Drafter | None, str | None]:
    """The drafter called `name` and the text of its rule, None for the decoding's own or the exact one.

    Raises ValueError as `check_decoding` does, for settings a drafter refuses, and where the weights it needs are missing.
    """
    check_decoding(name, wishes)
    return DECODINGS[name].make(resources, wishes), DECODINGS[name].rule


def _refuse(wishes: Wishes, where: str, takes: tuple[str, ...]) -> None:
    """Raises ValueError for a wish outside `takes`."""
    for field in fields(wishes):
        value = getattr(wishes, field.name)
        if value is not None and field.name not in takes:
            allowed = ", ".join(f"--{one}" for one in takes) or "none of its own"
            raise ValueError(
                f"--{field.name}: expected options that {where} takes ({allowed}), got {value!r}, leave it out"
            )
