"""The probe of this machine: its figures are positive, its device prices work, and wrong wishes are refused."""

from __future__ import annotations

import pytest
import torch

from mmspec.estimate import probe as module
from mmspec.estimate.probe import probe
from mmspec.estimate.work import Work, product


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small samples."""
    for name, value in {
        "ROWS": (1, 4),
        "SIZES": (32, 128),
        "STACKS": (16, 32),
        "STACK_ROWS": (1, 4),
        "SAMPLE": 1e-5,
    }.items():
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("small")
def test_this_machine_is_measured() -> None:
    device = probe(0.0, ("float32", "bfloat16"), "cpu")
    assert device.name == "here" and device.waits and device.source == "measured now"
    assert device.call > 0 and device.streaming > 0 and device.round >= 0 and device.memory > 1e8
    assert set(device.flops) == {"float32", "bfloat16"} and all(speed > 1e6 for speed in device.flops.values())
    reads = device.reads
    assert reads is not None and tuple(reads.rows) == (1, 4) and list(reads.ready) == [16e6, 32e6]
    assert all(0 < seconds < 1 for line in reads.seconds for pair in line for seconds in pair)
    assert device.attention > 1e6 and device.drafting >= 1
    few, many = (device.seconds(product(1, 512, 512, count), "float32") for count in (1, 20))
    assert 0 < few < many < 1
    assert device.seconds(Work(calls=2), "float32") == pytest.approx(2 * device.call)


def test_unknown_dtypes_and_missing_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="--dtype: expected one of float32, bfloat16, float16, got 'int3'"):
        probe(0.0, ("int3",), "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="expected a GPU for 'cuda', got a machine without any"):
            probe(0.0, device="cuda")
