"""Untrained drafters for every target, and recipes for every kind."""

from __future__ import annotations

import pytest
import torch

from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.drafter_names import new_drafter, trained_kinds
from mmspec.vlm.training.losses import LOSSES, terms_of
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.recipes import equal_recipe, published_recipes, with_terms
from tests.vlm.tiny import TEXT, VLMS, tiny
from tests.vlm.training.test_trainer import teacher_batches


@pytest.mark.parametrize("target", [*VLMS, *TEXT])
def test_every_kind_fits_every_target(target: str) -> None:
    for kind in trained_kinds():
        new_drafter(kind, tiny(target)).check(take_apart(tiny(target)))


def test_sizes_follow_the_target_unless_given() -> None:
    qwen = new_drafter("msd", tiny("qwen2_5_vl")).config
    assert qwen.qkv_bias and qwen.input_norm and qwen.num_key_value_heads == 2
    assert not new_drafter("msd", tiny("llava")).config.input_norm
    assert new_drafter("vispec", tiny("qwen2_5_vl")).config.num_key_value_heads == 0
    assert new_drafter("flash", tiny("llava"), latents=5, head="ar", block=1).config.intermediate_size == 48
    assert new_drafter("eagle2_text", tiny("llava")).config.pictures == "left_out"
    head = new_drafter("hydra", tiny("llava"), heads=2)
    assert len(head.blocks) == 2 and torch.equal(head.heads[0].weight, tiny("llava").lm_head.weight)
    with pytest.raises(ValueError, match="kind: expected one of eagle2, eagle2_text"):
        new_drafter("magic", tiny("llava"))
    with pytest.raises(ValueError, match="sizes: expected fields of .*, got colour"):
        new_drafter("msd", tiny("llava"), colour=3)


@pytest.mark.parametrize("kind", trained_kinds())
def test_every_recipe_gives_every_weight_something_to_learn(kind: str) -> None:
    """Ours and the published one; features of eagle3 come from levels of the target."""
    torch.manual_seed(0)
    model = tiny("llava")
    parts, teacher_batch = take_apart(model), teacher_batches(0)
    for recipe in (equal_recipe(new_drafter(kind, model)), published_recipes()[kind]):
        drafter = new_drafter(kind, model)
        if drafter.levels is not None:
            teacher_batch.hidden = torch.cat([teacher_batch.last] * len(drafter.levels), -1)
        loss, notes = recipe.objective(drafter.train(), parts, teacher_batch, 0.5)
        loss.backward()
        assert loss.isfinite() and "hit0" in notes
        learned = [p.grad is not None and bool(p.grad.any()) for p in drafter.parameters()]
        assert sum(learned) >= min(2, len(learned))
        schedule = recipe.schedule(200)
        assert schedule.steps == 200 and 0 < schedule.lr_at(150) <= schedule.lr == recipe.lr


def test_terms_are_replaced_wherever_they_are() -> None:
    drafter, terms = new_drafter("flash", tiny("llava")), terms_of("l1:2")
    inner = with_terms(equal_recipe(drafter).objective, terms).objective.objective
    assert isinstance(inner, Objective) and inner.terms == ((2.0, LOSSES["l1"]),) and inner.depths == 7
