"""Scores that cannot be compared are refused; a block's score is the least or the mean of its frames'."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.video.rewards.scores import reduced, scored

FRAMES = torch.zeros(4, 3, 8, 8)


class Fixed:
    name = "fixed"

    def __init__(self, scores: object):
        self.scores = scores

    def __call__(self, frames: Tensor, prompt: str) -> object:
        return self.scores


def test_one_finite_number_a_frame_passes_as_float32() -> None:
    scores = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    found = scored(Fixed(scores), FRAMES, "a ball")
    assert found.dtype == torch.float32 and torch.equal(found, scores.float())
    assert torch.equal(
        scored(lambda frames, prompt: frames.mean((1, 2, 3)) + len(prompt), FRAMES, "ball"), torch.full((4,), 4.0)
    )


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            torch.tensor([0.0, float("nan"), 1.0, float("nan")]),
            "fixed: expected finite scores, got nan for frame 1, 3 of 4",
        ),
        (torch.tensor([float("-inf")] * 4), "got -inf for frame 0, 1, 2, 3 of 4"),
        (torch.zeros(3), r"expected one score for each of 4 frames, got \(3,\)"),
        (torch.zeros(4, 1), r"got \(4, 1\)"),
        (torch.tensor(0.3), r"got \(\)"),
        ([0.0] * 4, "got list"),
    ],
)
def test_other_scores_report_one_error(scores: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        scored(Fixed(scores), FRAMES, "a ball")
    assert "\n" not in str(caught.value)


def test_the_least_and_the_mean_of_frames() -> None:
    scores = torch.tensor([[1.0, -2.0, 4.0], [0.0, 3.0, 3.0]])
    assert torch.equal(reduced(scores), torch.tensor([-2.0, 0.0]))
    assert torch.equal(reduced(scores, "mean"), torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="expected one of min, mean, got 'max'"):
        reduced(scores, "max")
