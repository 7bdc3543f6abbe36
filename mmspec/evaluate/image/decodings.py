"""Ways to decode an image by name, as the command line and the benches make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from mmspec.core.loop import Drafter
from mmspec.evaluate.image import methods
from mmspec.evaluate.image.resources import ImageResources


@dataclass(frozen=True, slots=True)
class ImageDecodingOverrides:
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
class ImageDecodingSpec:
    """A decoding as the command line offers it.   takes: the wishes it can grant.   rule: where none is named."""

    about: str
    make: Callable[[ImageResources, ImageDecodingOverrides], Drafter | None]
    takes: tuple[str, ...] = ()
    rule: str | None = None


_SHORT = {"t2i/eagle": "eagle", "t2i/upsampler": "learned"}


def short_name(name: str) -> str:
    """What options call what the zoo calls `name`: "eagle" of "t2i/eagle"; any other name as it is."""
    return _SHORT.get(name, name)


def sjd(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """`SJD`, without coupling unless asked for."""
    return _jacobi(wishes, window=16)


def scd(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """Coupled `SJD`, by Gumbel noise unless asked otherwise."""
    return _jacobi(wishes, window=32, coupling="gumbel")


def pac(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """Maximal coupling with a tree where the last round rejected."""
    from mmspec.imagegen.jacobi import Proactive

    return _jacobi(wishes, window=64, coupling="maximal", tree=Proactive())


def _jacobi(wishes: ImageDecodingOverrides, **settings: object) -> Drafter:
    from mmspec.imagegen.jacobi import SJD

    asked = {name: getattr(wishes, name) for name in ("window", "coupling", "init")}
    return SJD(**settings | {name: value for name, value in asked.items() if value is not None})


def rows(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """Coupled `SJD` that probes the row below its window."""
    from mmspec.imagegen.rowwise import RowDrafts

    return RowDrafts(scd(resources, wishes))


def eagle(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """The drafter trained for the zoo's model."""
    return resources.part("eagle")


def auto(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """What the pipeline's `decoding="auto"` is: it goes on learning."""
    return resources.pipeline.automatic


def zipar(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """`ZipAR`."""
    from mmspec.imagegen.rowwise import ZipAR

    return ZipAR() if wishes.window is None else ZipAR(wishes.window)


def pjd(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """`PJD`."""
    from mmspec.imagegen.rowwise import PJD

    return PJD() if wishes.window is None else PJD(window=wishes.window)


def mulo(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """`MuLo` over the zoo's low-resolution model."""
    return methods.mulo(learned=wishes.upsampler == "learned")(resources)


_DRAFTS = {"sjd": sjd, "scd": scd, "eagle": eagle}
UPSAMPLERS = ("pixels", "learned")
_JACOBI = ("window", "coupling", "init")


def _drafted(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """The drafts that a relaxed rule judges: SJD's, or those of another drafter."""
    return _DRAFTS[wishes.drafter or "sjd"](resources, wishes)


DECODINGS: dict[str, ImageDecodingSpec] = {
    "ar": ImageDecodingSpec("plain decoding", lambda resources, wishes: None),
    "sjd": ImageDecodingSpec("speculative Jacobi decoding; exact", sjd, _JACOBI),
    "scd": ImageDecodingSpec("coupled Jacobi decoding; exact", scd, _JACOBI),
    "pac": ImageDecodingSpec("coupled Jacobi decoding with a tree; exact", pac, _JACOBI),
    "rows": ImageDecodingSpec("coupled Jacobi decoding that looks into the next row; exact", rows, _JACOBI),
    "eagle": ImageDecodingSpec("a trained drafter; exact", eagle),
    "lantern": ImageDecodingSpec(
        "codes borrow from their neighbours; relaxed", _drafted, (*_JACOBI, "drafter"), "lantern"
    ),
    "gsd": ImageDecodingSpec("codes are judged in groups; relaxed", _drafted, (*_JACOBI, "drafter"), "gsd"),
    "cool": ImageDecodingSpec("annealed ratios; relaxed", _drafted, (*_JACOBI, "drafter"), "coolsd"),
    "zipar": ImageDecodingSpec("several rows at once; relaxed", zipar, ("window",)),
    "pjd": ImageDecodingSpec("Jacobi decoding in several rows at once; relaxed", pjd, ("window",)),
    "mulo": ImageDecodingSpec("a small picture drafts a large one; relaxed", mulo, ("upsampler",)),
    "auto": ImageDecodingSpec("coupled Jacobi decoding as far as it pays by measured time; exact", auto),
}


def check_decoding(name: str, wishes: ImageDecodingOverrides = ImageDecodingOverrides()) -> None:
    """Raises ValueError for an unknown name and for a wish it cannot grant."""
    if name not in DECODINGS:
        raise ValueError(f"--decoding: expected one of {', '.join(DECODINGS)}, got {name!r}, pick one of these")
    _check_overrides(wishes, f"--decoding {name}", DECODINGS[name].takes)
    for field, known in (("drafter", tuple(_DRAFTS)), ("upsampler", UPSAMPLERS)):
        value = getattr(wishes, field)
        if value is not None and value not in known:
            raise ValueError(f"--{field}: expected one of {', '.join(known)}, got {value!r}, pick one of these")
    if wishes.drafter == "eagle":
        _check_overrides(wishes, "--drafter eagle", ("drafter",))


def decoding_of(
    name: str, resources: ImageResources, wishes: ImageDecodingOverrides = ImageDecodingOverrides()
) -> tuple[Drafter | None, str | None]:
    """The drafter called `name` and the text of its rule, None for the decoding's own or the exact one.

    Raises ValueError as `check_decoding` does, for settings a drafter refuses, and where the weights it needs are missing.
    """
    check_decoding(name, wishes)
    return DECODINGS[name].make(resources, wishes), DECODINGS[name].rule


def _check_overrides(wishes: ImageDecodingOverrides, where: str, takes: tuple[str, ...]) -> None:
    """Raises ValueError for a wish outside `takes`."""
    for field in fields(wishes):
        value = getattr(wishes, field.name)
        if value is not None and field.name not in takes:
            allowed = ", ".join(f"--{one}" for one in takes) or "none of its own"
            raise ValueError(
                f"--{field.name}: expected options that {where} takes ({allowed}), got {value!r}, leave it out"
            )
