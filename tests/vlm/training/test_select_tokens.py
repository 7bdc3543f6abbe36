"""Token selection: which places stay, and what the objective makes of them."""

from __future__ import annotations

import pytest
import torch

from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training.losses import cross_entropy, smooth_l1
from mmspec.vlm.training.objective import DepthPredictions, Objective
from mmspec.vlm.training.objective_wrappers import SelectTokens, select_places
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import tiny
from tests.vlm.training.test_trainer import teacher_batches

OBJECTIVE = Objective(((1.0, cross_entropy), (0.2, smooth_l1)), depths=2)


def spoiled(teacher: torch.Tensor, by: list[float]) -> torch.Tensor:
    """The target's log-weights, wrong by so much at each place."""
    wrong = teacher.clone()
    wrong[:, 0] += torch.tensor(by)
    return wrong


def test_the_places_most_behind_the_reference_stay() -> None:
    teacher, token = torch.randn(5, 7), torch.arange(5)
    mine = DraftPrediction(
        spoiled(teacher, [8.0, 8.0, 0.0, 4.0, 2.0]), teacher, token, 1, torch.randn(5, 3), torch.randn(5, 3)
    )
    # as bad at place 0, so that nothing is to be gained there, and perfect elsewhere
    reference = DraftPrediction(spoiled(teacher, [8.0, 0.0, 0.0, 0.0, 0.0]), teacher, token, 1)
    own, other, here = DepthPredictions.of(mine), DepthPredictions.of(reference), torch.device("cpu")
    kept = own.at(select_places(own, other, 0.4, here)).whole()
    assert sorted(kept.token.tolist()) == [1, 3] and kept.depth == 1
    for place, was in enumerate(kept.token.tolist()):
        for name in ("student", "teacher", "feature", "truth"):
            assert torch.equal(getattr(kept, name)[place], getattr(mine, name)[was])
    assert sorted(select_places(own, other, 0.41, here).tolist()) == [1, 3, 4]


@pytest.mark.parametrize("name", ["msd", "hydra"])
def test_all_places_are_the_objective_itself(name: str) -> None:
    drafter, reference, parts = make(name).requires_grad_(True), make(name), take_apart(tiny("llava"))
    whole, notes = OBJECTIVE(drafter, parts, teacher_batches(0))
    chosen, others = SelectTokens(OBJECTIVE, reference, 1.0)(drafter, parts, teacher_batches(0))
    assert chosen.item() == pytest.approx(whole.item(), rel=1e-5) and others == pytest.approx(notes)
    half, _ = SelectTokens(OBJECTIVE, reference, 0.5)(drafter, parts, teacher_batches(0))
    half.backward()
    assert all(p.grad is None for p in reference.parameters())


def test_a_reference_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="reference: expected a drafter that predicts at the same places"):
        SelectTokens(Objective(OBJECTIVE.terms, depths=4), make("hydra"))(
            make("msd"), take_apart(tiny("llava")), teacher_batches(0)
        )
    with pytest.raises(ValueError, match="share: expected above 0 and at most 1, got 0"):
        SelectTokens(OBJECTIVE, make("msd"), 0)
