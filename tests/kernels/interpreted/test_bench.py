"""The bench of ops under the interpreter: all kernels of a round run, and are counted."""

from __future__ import annotations

import pytest

from mmspec.evaluate.machine.kernel_bench import run

# launches of ours from the target's logits to the token behind the path
MOST = {"text chain, block": 14, "text tree, traversal": 16, "text chain, greedy": 4, "commit": 1, "tree attention": 2}


@pytest.mark.whole
def test_every_case_launches_few_kernels_and_says_no_times() -> None:
    result = run("cpu", repeats=1)
    assert result["env"]["side"] == "interpreter" and result["env"]["tiny"]
    for row in result["rows"]:
        assert row["ratio"] is None and row["microseconds"] is None and row["launches"] >= 1
        assert row["launches"] <= MOST.get(row["case"], 30), row["case"]
