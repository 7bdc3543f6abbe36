"""The bench of ops on kernels: all kernels of a round run, and are counted."""

from __future__ import annotations

import pytest

from mmspec.evaluate.machine.kernel_bench import run
from tests.kernels.interpreted.conftest import DEVICE

# launches of ours from the target's logits to the token behind the path
MOST = {
    "text chain, block": 8,
    "text tree, traversal": 10,
    "text chain, greedy": 4,
    "image chain, LANTERN": 8,
    "commit": 1,
    "tree attention": 2,
    "exact top-p 0.9": 5,
}


@pytest.mark.whole
def test_every_case_launches_few_kernels_and_says_times_on_a_gpu_only() -> None:
    result = run(DEVICE, tiny=True, repeats=1)
    interpreted = DEVICE == "cpu"
    assert result["env"]["side"] == ("interpreter" if interpreted else "kernels") and result["env"]["tiny"]
    for row in result["rows"]:
        assert (row["ratio"] is None) == (row["microseconds"] is None) == interpreted and row["launches"] >= 1
        if interpreted:  # a GPU counts the launches of torch too
            assert row["launches"] <= MOST.get(row["case"], 30), row["case"]
