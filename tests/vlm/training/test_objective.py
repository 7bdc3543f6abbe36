"""The objective over depths: a sum, or one mean over the places of all of them."""

from __future__ import annotations

import pytest
import torch

from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.training.losses import cross_entropy, forward_kl
from mmspec.vlm.training.objective import DepthPredictions, Objective, predictions
from mmspec.vlm.training.recipes import published_recipe, published_recipes
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import tiny
from tests.vlm.training.predictions import prediction
from tests.vlm.training.test_trainer import teacher_batches

HERE = torch.device("cpu")


def test_a_mean_over_depths_weighs_every_place_alike() -> None:
    made = [prediction(5, seed=1, depth=0), prediction(3, seed=2, depth=1)]
    loss, _ = Objective(((2.0, forward_kl),), depths=2, decay=1.0, over_depths="mean").over(
        [DepthPredictions.of(entry) for entry in made], HERE
    )
    torch.testing.assert_close(loss, 2 * torch.cat([forward_kl.places(entry) for entry in made]).mean())


def test_a_sum_over_depths_weighs_every_depth_by_its_decay() -> None:
    made = [prediction(5, seed=1, depth=0), prediction(3, seed=2, depth=1)]
    loss, _ = Objective(((1.0, forward_kl),), depths=2, decay=0.5).over(
        [DepthPredictions.of(entry) for entry in made], HERE
    )
    torch.testing.assert_close(loss, forward_kl(made[0]) + 0.5 * forward_kl(made[1]))


@pytest.mark.parametrize(("kind", "depths"), [("vispec", 2), ("flash", 5)])
def test_a_published_mean_has_the_gradients_of_one_depth(kind: str, depths: int) -> None:
    """Where all depths are laid side by side in public code, a bound on gradients binds where it binds there."""
    drafter = new_drafter(kind, tiny("llava")).requires_grad_(True)
    parts, teacher_batch = take_apart(tiny("llava")), teacher_batches(0)
    objective = published_recipe(kind, drafter).objective
    assert objective.depths == depths
    places = [
        sum(weight * term.places(prediction.whole()) for weight, term in objective.terms)
        for prediction in predictions(drafter, parts, teacher_batch, depths)
    ]
    expected = torch.autograd.grad(torch.cat(places).mean(), drafter.fc.weight)[0]
    found = torch.autograd.grad(objective(drafter, parts, teacher_batch)[0], drafter.fc.weight)[0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_other_published_recipes_sum_as_their_code_does() -> None:
    objectives = {name: recipe.objective for name, recipe in published_recipes().items()}
    means = {
        name
        for name, objective in objectives.items()
        if isinstance(objective, Objective) and objective.over_depths == "mean"
    }
    assert means == {"vispec", "flash"}


def test_no_place_at_all_costs_nothing() -> None:
    for how in ("sum", "mean"):
        loss, notes = Objective(((1.0, cross_entropy),), over_depths=how).over([], HERE)
        assert loss.item() == 0 and not notes
    empty = [prediction(0, depth=0)]
    assert (
        Objective(((1.0, cross_entropy),), over_depths="mean")
        .over([DepthPredictions.of(one) for one in empty], HERE)[0]
        .item()
        == 0
    )
    with pytest.raises(ValueError, match="over_depths sum or mean"):
        Objective(((1.0, cross_entropy),), over_depths="median")


def test_an_objective_says_how_deep_it_goes() -> None:
    assert published_recipe("medusa", make("medusa")).objective.depths == make("medusa").own_depths == 3
