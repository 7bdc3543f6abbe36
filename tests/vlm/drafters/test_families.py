"""Every family of drafters is registered, and loads what its publishers save."""

from __future__ import annotations

import pytest

import mmspec.vlm.drafters as drafters
from mmspec.methods import methods
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter
from mmspec.vlm.drafters.checkpoints import drafter_from_state_dict, published_kind
from mmspec.vlm.drafters.drafter_names import drafter_class, drafter_classes, published_kinds, trained_kinds

KINDS = {"dflash", "dflash2", "dspark", "eagle2", "eagle3", "flash", "gemma4_assistant", "hydra", "medusa", "msd", "peagle",
         "specdecpp", "specvlm", "vispec", "xpress"}  # fmt: skip


def test_every_kind_is_registered() -> None:
    assert set(drafter_classes()) >= KINDS
    for kind, drafter in drafter_classes().items():
        assert (
            issubclass(drafter, PretrainedDrafter) and drafter.kind == kind and isinstance(drafter.config_class, type)
        )


def test_every_published_kind_has_a_loader() -> None:
    assert set(published_kinds()) == KINDS - {"specvlm"} | {"eagle", "mtp"}
    signs = [sign for method in methods("vlm", "drafter") for sign in method.facts.get("published_as", ())]
    assert len(signs) == len(set(signs)) == 36
    assert {published_kind({"architectures": [sign]}, None) for sign in signs} <= {None, *published_kinds()}


def test_a_kind_is_found_by_every_name_it_has() -> None:
    assert drafter_class("eagle") is drafter_class("eagle2") is drafter_class("eagle2_text") is drafters.Eagle
    assert drafter_class("specdecpp") is drafters.AcceptanceHead and drafter_class("magic") is None
    assert all(drafter_class(kind).trainable for kind in trained_kinds())


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "dflash"),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"projector_type": "dspark"}}, "dspark"),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"projector_type": "none"}}, "dflash"),
        ({"architectures": ["Other"], "speculators_model_type": "peagle"}, "peagle"),
        ({"architectures": ["Other"], "speculators_model_type": "other"}, None),
        ({}, None),
    ],
)
def test_a_published_config_tells_its_kind(config: dict, kind: str | None) -> None:
    assert published_kind(config, None) == kind


@pytest.mark.parametrize("kind", published_kinds())
def test_every_loader_refuses_a_file_without_weights(kind: str) -> None:
    with pytest.raises(ValueError):
        drafter_from_state_dict(kind, {}, {})


@pytest.mark.parametrize("name", drafters.__all__)
def test_every_public_name_is_a_class(name: str) -> None:
    assert isinstance(getattr(drafters, name), type)
