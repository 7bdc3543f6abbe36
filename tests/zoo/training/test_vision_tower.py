"""The labels that the vision tower is pretrained on."""

from __future__ import annotations

from mmspec.zoo.architectures.llava import PATCH_HEADS
from mmspec.zoo.training.vlm.vision_tower import IGNORE, patch_labels
from mmspec.zoo.world.scene import sample_scene


def test_patch_labels_cover_objects_only():
    scene = sample_scene(3)
    labels = patch_labels(scene)
    inside = labels["color"] != IGNORE
    assert inside.any() and not inside.all()
    assert ((labels["tone"] != IGNORE) == ~inside).all()
    assert all((labels[name] < len(PATCH_HEADS[name][0])).all() for name in PATCH_HEADS)
