"""Ways to decode an image by name, as the command line and the benches make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.core.loop import Drafter
from mmspec.evaluate.engine.config import check_choice, check_overrides
from mmspec.evaluate.image.methods import mulo
from mmspec.evaluate.image.resources import ImageResources
from mmspec.imagegen.jacobi import SJD, Proactive
from mmspec.imagegen.rowwise import PJD, RowDrafts, ZipAR


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


ImageDecodingFactory = Callable[[ImageResources, ImageDecodingOverrides], Drafter | None]


@dataclass(frozen=True, slots=True)
class ImageDecodingSpec:
    """A decoding as the command line offers it.   takes: the wishes it can grant.   rule: where none is named."""

    about: str
    make: ImageDecodingFactory
    takes: tuple[str, ...] = ()
    rule: str | None = None


_SHORT = {"t2i/eagle": "eagle", "t2i/upsampler": "learned"}


def short_name(name: str) -> str:
    """What options call what the zoo calls `name`: "eagle" of "t2i/eagle"; any other name as it is."""
    return _SHORT.get(name, name)


def _jacobi(**settings: object) -> ImageDecodingFactory:
    """A maker of `SJD` with these settings where the user names none."""

    def make(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
        named = {name: getattr(wishes, name) for name in _JACOBI}
        return SJD(**settings | {name: value for name, value in named.items() if value is not None})

    return make


def _windowed(kind: Callable[..., Drafter]) -> ImageDecodingFactory:
    """A maker of a decoding whose only setting is its window."""
    return lambda resources, wishes: kind() if wishes.window is None else kind(window=wishes.window)


def _eagle(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    return resources.part("eagle")


def _mulo(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    return mulo(learned=wishes.upsampler == "learned")(resources)


_JACOBI = ("window", "coupling", "init")
_SCD = _jacobi(window=32, coupling="gumbel")
_PAC = _jacobi(window=64, coupling="maximal", tree=Proactive())
_DRAFTS = {"sjd": _jacobi(window=16), "scd": _SCD, "eagle": _eagle}
UPSAMPLERS = ("pixels", "learned")


def _drafted(resources: ImageResources, wishes: ImageDecodingOverrides) -> Drafter:
    """The drafts that a relaxed rule judges: SJD's, or those of another drafter."""
    return _DRAFTS[wishes.drafter or "sjd"](resources, wishes)


DECODINGS: dict[str, ImageDecodingSpec] = {
    "ar": ImageDecodingSpec("plain decoding", lambda resources, wishes: None),
    "sjd": ImageDecodingSpec("speculative Jacobi decoding; exact", _DRAFTS["sjd"], _JACOBI),
    "scd": ImageDecodingSpec("coupled Jacobi decoding; exact", _SCD, _JACOBI),
    "pac": ImageDecodingSpec("coupled Jacobi decoding with a tree; exact", _PAC, _JACOBI),
    "rows": ImageDecodingSpec("coupled Jacobi decoding that looks into the next row; exact",
                              lambda resources, wishes: RowDrafts(_SCD(resources, wishes)), _JACOBI),
    "eagle": ImageDecodingSpec("a trained drafter; exact", _eagle),
    "lantern": ImageDecodingSpec("codes borrow from their neighbours; relaxed", _drafted, (*_JACOBI, "drafter"), "lantern"),
    "gsd": ImageDecodingSpec("codes are judged in groups; relaxed", _drafted, (*_JACOBI, "drafter"), "gsd"),
    "cool": ImageDecodingSpec("annealed ratios; relaxed", _drafted, (*_JACOBI, "drafter"), "coolsd"),
    "zipar": ImageDecodingSpec("several rows at once; relaxed", _windowed(ZipAR), ("window",)),
    "pjd": ImageDecodingSpec("Jacobi decoding in several rows at once; relaxed", _windowed(PJD), ("window",)),
    "mulo": ImageDecodingSpec("a small picture drafts a large one; relaxed", _mulo, ("upsampler",)),
    "auto": ImageDecodingSpec("coupled Jacobi decoding as far as it pays by measured time; exact",
                              lambda resources, wishes: resources.pipeline.automatic),
}  # fmt: skip


def check_decoding(name: str, wishes: ImageDecodingOverrides = ImageDecodingOverrides()) -> None:
    """Raises ValueError for an unknown name and for a wish it cannot grant."""
    check_choice("--decoding", name, DECODINGS)
    check_overrides(wishes, f"--decoding {name}", DECODINGS[name].takes, drafter=_DRAFTS, upsampler=UPSAMPLERS)
    if wishes.drafter == "eagle":
        check_overrides(wishes, "--drafter eagle", ("drafter",))


def decoding_of(
    name: str, resources: ImageResources, wishes: ImageDecodingOverrides = ImageDecodingOverrides()
) -> tuple[Drafter | None, str | None]:
    """The drafter called `name` and the text of its rule, None for the decoding's own or the exact one.

    Raises ValueError as `check_decoding` does, for settings a drafter refuses, and where the weights it needs are missing.
    """
    check_decoding(name, wishes)
    return DECODINGS[name].make(resources, wishes), DECODINGS[name].rule
