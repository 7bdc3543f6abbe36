"""Fixtures of the whole suite: offline, few threads, one seed, and poisoned memory on request."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from functools import cache

# before anything imports huggingface_hub, which reads them once
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# bits must not depend on times
os.environ.setdefault("MMSPEC_SMALL_LINEAR", "transposed")

import numpy
import pytest
import torch
from typer.main import get_command

from tests.lanes import mark_whole

THREADS = int(os.environ.get("OMP_NUM_THREADS", min(2, os.cpu_count() or 1)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what the default lane leaves out before pytest deselects by marks."""
    mark_whole(items, selected_by_hand=any("::" in argument for argument in config.args))


def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end: the collector of garbage looks at nothing of it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def threads(request: pytest.FixtureRequest) -> None:
    """One thread but for the zoo's models: tiny tensors gain nothing from a second, which would only be waited for."""
    torch.set_num_threads(THREADS if "zoo" in request.path.parts else 1)


@pytest.fixture(scope="module")
def built_once() -> Iterator[None]:
    """Typer's runner builds the commands of an app once for a module that never completes them, not in every call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command), raising=False)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The global generators start from 0 in every test, whatever ran before."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """`torch.empty` and its relatives return NaN (floats) or the largest value (integers) instead of leftovers."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


@pytest.fixture(autouse=True)
def _poison_marker(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("poison"):
        request.getfixturevalue("poisoned")
