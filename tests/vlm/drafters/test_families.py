"""Every family of drafters is registered, and loads what its publishers save."""

from __future__ import annotations

import pytest

import mmspec.vlm.drafters as drafters
from mmspec.vlm.drafters import checkpoints
from mmspec.vlm.drafters.base.trained_drafter import PretrainedDrafter

KINDS = {"dflash", "dflash2", "dspark", "eagle2", "eagle3", "flash", "gemma4_assistant", "hydra", "medusa", "msd", "peagle",
         "specdecpp", "specvlm", "vispec"}  # fmt: skip


def test_every_kind_is_registered() -> None:
    assert set(PretrainedDrafter.kinds) >= KINDS
    for kind, drafter in PretrainedDrafter.kinds.items():
        assert (
            issubclass(drafter, PretrainedDrafter) and drafter.kind == kind and isinstance(drafter.config_class, type)
        )


def test_every_published_kind_has_a_loader() -> None:
    assert set(checkpoints._LOADERS) == KINDS - {"specvlm"} | {"eagle", "mtp"}
    assert set(checkpoints._ARCHITECTURES.values()) <= set(checkpoints._LOADERS)
    assert set(checkpoints._SPECULATORS) <= set(checkpoints._LOADERS)


@pytest.mark.parametrize("kind", checkpoints._LOADERS)
def test_every_loader_refuses_a_file_without_weights(kind: str) -> None:
    with pytest.raises(ValueError):
        checkpoints.drafter_from_state_dict(kind, {}, {})


@pytest.mark.parametrize("name", drafters.__all__)
def test_every_public_name_is_a_class(name: str) -> None:
    assert isinstance(getattr(drafters, name), type)
