"""Held-out scenes of the zoo's world, for requests with long answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as counting

from mmspec.zoo.world.scene import EVAL_SEEDS, Scene, sample_scene

FIRST_SCENE = EVAL_SEEDS[0] + 1_000_000  # quality figures use the scenes before it
SCENES_A_SEED = 100_000
_MANY = 5  # objects


def long_scenes(count: int, seed: int = 0) -> list[Scene]:
    """Return `count` held-out scenes of at least five objects; different seeds give different scenes."""
    check_scenes(count, seed)
    scenes = scenes_of_many_objects(FIRST_SCENE + seed * SCENES_A_SEED)
    return [next(scenes) for _ in range(count)]


def demo_scenes(count: int = 3) -> list[Scene]:
    """Return the held-out scenes of the demo."""
    scenes = scenes_of_many_objects(FIRST_SCENE - 100_000)
    return [next(scenes) for _ in range(count)]


def check_scenes(count: int, seed: int) -> None:
    if count < 1:
        raise ValueError(f"--prompts: expected at least 1, got {count}, ask for more")
    if not 0 <= seed < 10_000:  # later scenes are not held out
        raise ValueError(f"--seed: expected 0 to 9999, got {seed}, pick another")


def scenes_of_many_objects(first: int) -> Iterator[Scene]:
    return (scene for scene in map(sample_scene, counting(first)) if len(scene.things) >= _MANY)
