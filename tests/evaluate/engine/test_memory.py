"""The peak memory of a block, beyond what was there before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmspec.evaluate.engine import memory
from mmspec.evaluate.engine.memory import peak_memory

CPU, SIZE = torch.device("cpu"), 64_000_000  # bytes, far above what the interpreter takes by the way


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux, which counts resident memory")
def test_peak_memory_counts_freed_tensors_and_excludes_earlier_tensors() -> None:
    kept = torch.ones(SIZE // 4)
    with peak_memory(CPU) as small:
        kept.sum()
    with peak_memory(CPU) as large:
        torch.ones(SIZE // 4).sum()
    assert small[0] < SIZE // 4 and 0.9 * SIZE < large[0] < 2 * SIZE


def test_a_system_that_does_not_count_gives_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_RESET", tmp_path / "none" / "here")
    with peak_memory(CPU) as peak:
        pass
    assert peak == []
