"""The app on a port of its own, for tests that speak with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mmspec.web.limits import Limits
from mmspec.web.model_cache import ModelCache
from mmspec.web.server import serving


@contextmanager
def app(runs: Path, **limits: Any) -> Iterator[str]:
    """Its address."""
    with serving(ModelCache(), Limits(**limits), runs=runs) as address:
        yield address


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Makes every round take longer; a list that grows by the moment of each."""
    import time

    from mmspec.core.round.loop import DecodingRun

    plain, moments = DecodingRun.step, []

    def step(self: DecodingRun) -> bool:
        time.sleep(seconds)
        moments.append(time.monotonic())
        return plain(self)

    monkeypatch.setattr(DecodingRun, "step", step)
    return moments
