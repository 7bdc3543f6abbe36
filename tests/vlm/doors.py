"""The three ways into the engine, for tests of a call's arguments and of its result."""

from __future__ import annotations

from typing import Any

from torch import nn

import mmspec
from mmspec.core.round.loop import Drafter

DOORS = ("generate", "custom_generate", "enable")


def call_through(door: str, model: nn.Module, *, drafter: Drafter | None = None, **settings: Any) -> Any:
    """Calls `mmspec.generate`, `model.generate(custom_generate=mmspec.decode)` or `generate` of an enabled model."""
    if door == "generate":
        return mmspec.generate(model, drafter=drafter, **settings)
    if door == "custom_generate":
        return model.generate(**settings, custom_generate=mmspec.decode, drafter=drafter)
    with mmspec.enable(model, drafter):
        return model.generate(**settings)
