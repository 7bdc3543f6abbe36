"""Tiny models gain nothing from a second thread, and lose much where it has to share its core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmspec.evaluate.machine import threads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """torch computes with one thread during the test."""
    with threads(1):
        yield
