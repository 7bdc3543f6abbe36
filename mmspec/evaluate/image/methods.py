"""The methods that `mmspec bench image` compares, as data, and factories of their drafters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.core.drafting.shapes import Chain, StaticTree
from mmspec.core.length import FixedLength
from mmspec.core.loop import Drafter
from mmspec.evaluate.engine.drawn import DrawnMethod
from mmspec.evaluate.image.resources import ImageResources
from mmspec.imagegen.base_pipeline import auto_decoding
from mmspec.imagegen.eagle.drafter import deep_tree
from mmspec.imagegen.jacobi import SJD, Proactive
from mmspec.imagegen.multiscale import MuLo, PixelUpsampler
from mmspec.imagegen.rowwise import PJD, RowDrafts, ZipAR

PLAIN = "ar"


@dataclass(frozen=True, slots=True)
class ImageMethod(DrawnMethod):
    """make: its drafter, None for plain decoding; what it needs is imported and loaded when called.   rule: as
    `rule_from_name` reads it.
    """

    make: Callable[[ImageResources], Drafter | None] = lambda resources: None

    def row(self) -> dict:
        return {**DrawnMethod.row(self), "rule": self.rule}


ImageDrafterFactory = Callable[[ImageResources], Drafter]


def jacobi(
    window: int, tree: tuple[int, int] | None = None, drawn: str = "without_replacement", **settings: object
) -> ImageDrafterFactory:
    """A maker of `SJD`; tree: (depth, width)."""
    return lambda resources: SJD(window, tree=None if tree is None else Proactive(*tree, drawn), **settings)


def scd(
    window: int, coupling: str = "gumbel", tree: tuple[int, int] | None = None, **settings: object
) -> ImageDrafterFactory:
    """A maker of coupled `SJD`."""
    return jacobi(window, tree, coupling=coupling, **settings)


def auto(resources: ImageResources) -> Drafter:
    """What `decoding="auto"` is of the model, having seen nothing yet, so that what it learns is timed."""
    return auto_decoding()


def eagle_chain(length: int) -> ImageDrafterFactory:
    """A maker of the zoo's drafter over chains."""
    return lambda resources: resources.part("eagle").with_shape(Chain(FixedLength(length)))


def eagle_tree(nodes: int, depth: int, drawn: str = "without_replacement") -> ImageDrafterFactory:
    """A maker of the zoo's drafter over a fixed tree."""
    return lambda resources: resources.part("eagle").with_shape(StaticTree(deep_tree(nodes, depth), drawn))


def zipar(window: int, adaptive: bool = False) -> ImageDrafterFactory:
    """A maker of `ZipAR`."""
    return lambda resources: ZipAR(window, adaptive)


def pjd(context: int, window: int) -> ImageDrafterFactory:
    """A maker of `PJD`."""
    return lambda resources: PJD(context, window)


def rows(lead: int, window: ImageDrafterFactory) -> ImageDrafterFactory:
    """A maker of `RowDrafts` around a maker of `SJD`."""
    return lambda resources: RowDrafts(window(resources), lead)


def mulo(threshold: float = 0.05, learned: bool = False) -> ImageDrafterFactory:
    """A maker of `MuLo` over the zoo's low-resolution model, through pixels or the trained upsampler.

    As many codes are pooled as LANTERN's rows borrow from; the paper's radius of 3 would be a fifth of the zoo's grid.
    """

    def make(resources: ImageResources) -> Drafter:
        low, model = resources.part("low"), resources.pipeline.model
        upsampler = resources.part("upsampler") if learned else PixelUpsampler.of(model.vq)
        return MuLo(low, upsampler, threshold, k=min(64, model.codes), radius=1)

    return make
