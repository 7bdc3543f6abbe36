"""Rows stop each for itself: what a round's paths leave of them, whatever the values are."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.batch_target import NOT_FINITE, BatchTarget
from mmspec.core.round.draft import Draft, Law, Verdict, neutralise_bad_scores, run_of
from mmspec.core.round.tree import chain

DRAFT = Draft(torch.tensor([[9, 1, 2], [9, 3, 4], [9, 5, 6]]), chain(2), Law("deterministic"))
DEPTH = torch.tensor([2, 0, 1])
VERDICT = Verdict(
    "path", DEPTH, torch.tensor([[0, 1, 2], [0, 0, 0], [0, 1, 1]]), DEPTH, correction=torch.tensor([7, 8, 9])
)


class Numbers(BatchTarget):
    """Rows of numbers, each as long as `longest` at most."""

    device = torch.device("cpu")

    def __init__(self, batch: int, longest: int | None):
        super().__init__(batch)
        self.longest, self.rows, self.failures = longest, [[] for _ in range(batch)], [0] * batch

    @property
    def room(self) -> list[int] | None:
        return None if self.longest is None else [self.longest - len(row) for row in self.rows]

    def commit_row(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        kept = run if self.longest is None else run[: self.room[row]]
        self.rows[row] += kept
        self.live[row] = len(self.rows[row]) != self.longest
        self.failures[row] = failure
        if failure:
            self.fail(row, NOT_FINITE, f"{len(self.rows[row])} numbers")
        return min(depth, len(kept))


def test_live_rows_commit_their_runs_and_a_stopped_row_commits_nothing() -> None:
    target = Numbers(3, longest=8)
    target.live[2] = False
    assert target.commit_paths(VERDICT, None, run_of(DRAFT, VERDICT)[0]) == [2, 0, None]
    assert target.rows == [[1, 2, 7], [8], []] and target.paths == [[0, 1, 2], [0], []]
    assert target.steps.tolist() == [3, 1, 0] and target.errors == {} and not target.done
    again = Numbers(3, longest=8)  # of targets that keep their values on the device
    assert again.commit_paths(VERDICT, None) == [0, 0, 0] and again.paths == [[0, 1, 2], [0], [0, 1]]


def test_a_row_ends_at_its_longest_and_the_request_with_the_last_row() -> None:
    target = Numbers(3, longest=1)
    assert target.commit_paths(VERDICT, None, run_of(DRAFT, VERDICT)[0]) == [1, 0, 1]
    assert target.rows == [[1], [8], [5]] and target.done


@pytest.mark.parametrize("code", [1, 2, None])
def test_a_row_fails_at_the_end_of_its_path_and_keeps_its_drafted_values(code: int | None) -> None:
    target, failure = Numbers(3, longest=None), torch.zeros(3, 3, dtype=torch.bool if code is None else torch.long)
    failure[0, 1] = failure[1, 1] = 1  # no path ends there
    failure[2, 1] = code or True
    assert target.commit_paths(VERDICT, failure, run_of(DRAFT, VERDICT)[0]) == [2, 0, 1]
    assert target.rows == [[1, 2, 7], [8], [5]] and target.live == [True, True, False]
    assert target.failures == [0, 0, code or 1]
    assert target.errors == {2: "row 2: expected finite logits, got NaN or Inf after 1 numbers; the row stopped there"}


def test_a_draft_leaves_room_for_the_targets_own_value() -> None:
    target = Numbers(4, longest=7)
    target.rows = [[], [0] * 5, [0] * 6, []]
    target.live[3] = False
    assert target.rooms(4) == [4, 1, 0, 0]
    target.longest = None
    assert target.rooms(4) == [4, 4, 4, 0]


def test_scores_that_nothing_can_be_drawn_from_become_zeros() -> None:
    inf, nan = float("inf"), float("nan")
    sound = torch.tensor([[[0.0, -inf, 2.0], [1.0, 1.0, 1.0]]])
    assert neutralise_bad_scores(sound) == (sound, None)
    scores, bad = neutralise_bad_scores(
        torch.tensor([[[0.0, nan, 2.0], [inf, 0.0, 0.0], [-inf] * 3, [0.0, -inf, 2.0]]])
    )
    assert bad.tolist() == [[True, True, True, False]]
    assert scores[0, :3].abs().sum() == 0 and scores[0, 3].tolist() == [0.0, -inf, 2.0]
