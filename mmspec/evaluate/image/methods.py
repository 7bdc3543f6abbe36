"""The methods that `mmspec bench image` compares, as data, and factories of their drafters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.core.loop import Drafter
from mmspec.evaluate.engine.drawn import DrawnMethod
from mmspec.evaluate.image.resources import ImageResources

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

    def make(resources: ImageResources) -> Drafter:
        from mmspec.imagegen.jacobi import SJD, Proactive

        return SJD(window, tree=None if tree is None else Proactive(*tree, drawn), **settings)

    return make


def scd(
    window: int, coupling: str = "gumbel", tree: tuple[int, int] | None = None, **settings: object
) -> ImageDrafterFactory:
    """A maker of coupled `SJD`."""
    return jacobi(window, tree, coupling=coupling, **settings)


def auto(resources: ImageResources) -> Drafter:
    """What `decoding="auto"` is of the model, having seen nothing yet, so that what it learns is timed."""
    from mmspec.imagegen.base_pipeline import auto_decoding

    return auto_decoding()


def eagle_chain(length: int) -> ImageDrafterFactory:
    """A maker of the zoo's drafter over chains."""

    def make(resources: ImageResources) -> Drafter:
        from mmspec.core.drafting.shapes import Chain
        from mmspec.core.length import FixedLength

        return resources.part("eagle").with_shape(Chain(FixedLength(length)))

    return make


def eagle_tree(nodes: int, depth: int, drawn: str = "without_replacement") -> ImageDrafterFactory:
    """A maker of the zoo's drafter over a fixed tree."""

    def make(resources: ImageResources) -> Drafter:
        from mmspec.core.drafting.shapes import StaticTree
        from mmspec.imagegen.eagle.drafter import deep_tree

        return resources.part("eagle").with_shape(StaticTree(deep_tree(nodes, depth), drawn))

    return make


def zipar(window: int, adaptive: bool = False) -> ImageDrafterFactory:
    """A maker of `ZipAR`."""

    def make(resources: ImageResources) -> Drafter:
        from mmspec.imagegen.rowwise import ZipAR

        return ZipAR(window, adaptive)

    return make


def pjd(context: int, window: int) -> ImageDrafterFactory:
    """A maker of `PJD`."""

    def make(resources: ImageResources) -> Drafter:
        from mmspec.imagegen.rowwise import PJD

        return PJD(context, window)

    return make


def rows(lead: int, window: ImageDrafterFactory) -> ImageDrafterFactory:
    """A maker of `RowDrafts` around a maker of `SJD`."""

    def make(resources: ImageResources) -> Drafter:
        from mmspec.imagegen.rowwise import RowDrafts

        return RowDrafts(window(resources), lead)

    return make


def mulo(threshold: float = 0.05, learned: bool = False) -> ImageDrafterFactory:
    """A maker of `MuLo` over the zoo's low-resolution model, through pixels or the trained upsampler.

    As many codes are pooled as LANTERN's rows borrow from; the paper's radius of 3 would be a fifth of the zoo's grid.
    """

    def make(resources: ImageResources) -> Drafter:
        from mmspec.imagegen.multiscale import MuLo, PixelUpsampler

        low = resources.part("low")
        upsampler = resources.part("upsampler") if learned else PixelUpsampler.of(resources.pipeline.model.vq)
        return MuLo(low, upsampler, threshold, k=min(64, resources.pipeline.model.codes), radius=1)

    return make
