"""A small target and drafters for it."""

from __future__ import annotations

import torch

from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.length.entropy_stop import EntropyStop
from mmspec.imagegen.eagle.image_eagle import ImageEagle
from mmspec.imagegen.geometry import Geometry
from tests.imagegen.tiny import TinyModel

CHAIN, TREE = Chain(FixedLength(3)), StaticTree((0, 0, 0, 1, 1, 2, 3))
ALIKE = StaticTree((0, 0, 0, 0, 1, 1, 4), drawn="with_replacement")
HEAP = BestFirst(6, 3, 3)
SHAPES: dict[str, Shape] = {
    "chain": CHAIN,
    "tree": TREE,
    "alike": ALIKE,
    "dynamic": DynamicTree(8, 3, 3),
    "stopped": DynamicTree(8, 3, 3, stop=((2, 0.5),)),
    "fitted": Chain(EntropyStop(threshold=0.6, goal=0.5, scale=None)),
    "heap": HEAP,
}


def drafter_for(model: TinyModel, seed: int = 0) -> ImageEagle:
    """A random drafter of four heads."""
    torch.manual_seed(seed)
    pairs = 2 if model.geometry.frames > 1 else 0
    return ImageEagle(ImageEagle.sizes_for(model, heads=4, time_pairs=pairs)).eval().requires_grad_(False)


def lined() -> TinyModel:
    """A target whose rows end in a forced value and whose image ends in another."""
    return TinyModel(Geometry(((3, 3),), row_end=12, tail=(13,)), codes=12)
