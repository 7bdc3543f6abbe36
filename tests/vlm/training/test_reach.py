"""Whatever a drafter drafts with has been trained: nothing that training left alone may matter to a draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree
from mmspec.core.length.controls import FixedLength
from mmspec.training.schedule import Schedule
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.drafter_names import drafter_classes, new_drafter
from mmspec.vlm.drafters.specdecpp import AcceptanceConfig, AcceptanceHead
from mmspec.vlm.training.acceptance_head import train_acceptance
from mmspec.vlm.training.job import Job
from mmspec.vlm.training.losses import cross_entropy
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.objective_wrappers import Glancing, RandomBlockLength, SelectTokens
from mmspec.vlm.training.teacher import VlmTeacherBatch
from mmspec.vlm.training.trainer import TrainSettings, train_drafter
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny
from tests.vlm.training.test_trainer import teacher_batches

# more depths with weights of their own than any recipe has by itself
SIZES = {
    "medusa": {"heads": 6},
    "hydra": {"heads": 6},
    "flash": {"block": 9, "latents": 3},
    "dflash": {"num_hidden_layers": 2, "block_size": 9},
    "dspark": {"num_hidden_layers": 2, "block_size": 9},
    "xpress": {"num_hidden_layers": 2, "block_size": 9},
}
DRAFTING = {kind: made for kind, made in drafter_classes().items() if issubclass(made, ShapedDrafter)}
SHAPED = sorted(kind for kind, made in DRAFTING.items() if made.trainable)
STEPS = 12


def teacher_batch(step: int) -> VlmTeacherBatch:
    """As of the trainer's tests, made once."""
    return _teacher_batch(step % 3)


@cache
def _teacher_batch(step: int) -> VlmTeacherBatch:
    return teacher_batches(step)


def trained_rows(module: nn.Module) -> dict[str, Tensor]:
    """Which rows of every weight have had a gradient; it fills while the module trains."""
    seen = {name: torch.zeros(len(p), dtype=torch.bool) for name, p in module.named_parameters()}
    for name, parameter in module.named_parameters():

        def note(gradient: Tensor, rows: Tensor = seen[name]) -> None:
            rows |= gradient.flatten(1).any(1) if gradient.dim() > 1 else gradient != 0

        parameter.register_hook(note)
    return seen


def poison(module: nn.Module, seen: dict[str, Tensor]) -> int:
    """Makes NaN of every row that has had no gradient; how many there are. Rows of tokens that no text held are zeros."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("markov_w1.weight", "token_embed.weight")):
                assert not parameter[~seen[name]].any()
            else:
                parameter[~seen[name]] = torch.nan
    return sum(int((~rows).sum()) for rows in seen.values())


def steps_of(drafter: ShapedDrafter, recipe: object) -> dict[str, Tensor]:
    """Some steps of the recipe, and the rows they trained."""
    drafter.train().requires_grad_(True)
    seen, parts = trained_rows(drafter), take_apart(tiny("llava"))
    optimizer = replace(recipe.schedule(STEPS), warmup=0).optimizer(drafter)
    for step in range(STEPS):
        torch.manual_seed(step)
        seen_by = teacher_batch(step)
        if drafter.levels is not None:
            seen_by = replace(seen_by, hidden=torch.cat([seen_by.last] * len(drafter.levels), -1))
        loss, _ = recipe.objective(drafter, parts, seen_by, step / STEPS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drafter.eval().requires_grad_(False)
    return seen


def drafted_logits(drafter: ShapedDrafter, spy: Callable[[Tensor], None]) -> None:
    """Drafts greedily and sampled, deeper than any head or block, with and without pictures."""

    def watched(scores: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def logits(*inputs: object) -> Tensor:
            made = scores(*inputs)
            spy(made)
            return made

        return logits

    # a drafter of a reduced vocabulary is read through the scores of its own tokens
    drafter.logits, drafter.own_logits = watched(drafter.logits), watched(drafter.own_logits)
    chain, tree = Chain(FixedLength(11)), DynamicTree(nodes=24, depth=8, width=3)
    for shape, images, sampled in ((chain, 0, False), (chain, 2, True), (tree, 2, False)):
        if shape is tree and drafter.kind == "kangaroo":
            continue  # drafts chains only
        mmspec.generate(
            tiny("llava"),
            drafter=drafter.with_shape(shape),
            max_new_tokens=14,
            do_sample=sampled,
            seed=0,
            **prompt("llava", images),
        )


@pytest.mark.default_cells("dspark-published", "eagle3-equal", "hydra-equal", "medusa-equal")
@pytest.mark.parametrize("recipe", ("equal", "published"))
@pytest.mark.parametrize("kind", SHAPED)
def test_nothing_untrained_matters_to_a_draft(kind: str, recipe: str) -> None:
    job = Job(kind, STEPS, sizes=tuple(SIZES.get(kind, {}).items()), recipe=kind if recipe == "published" else recipe)
    drafter = new_drafter(kind, tiny("llava"), **job.built)
    seen = steps_of(drafter, job.recipe_for(drafter))
    assert any(bool(rows.any()) for rows in seen.values())
    poison(drafter, seen)
    wrong: list[int] = []
    drafted_logits(drafter, lambda made: wrong.append(int(made.isnan().sum())))
    assert wrong and not any(wrong)


def test_the_test_above_sees_a_head_that_was_not_trained() -> None:
    job = Job("medusa", STEPS, sizes=(("heads", 4),))
    drafter = new_drafter("medusa", tiny("llava"), **job.built)
    recipe = job.recipe_for(drafter)
    seen = steps_of(drafter, replace(recipe, objective=replace(recipe.objective, depths=3)))
    assert poison(drafter, seen)
    wrong: list[int] = []
    drafted_logits(drafter, lambda made: wrong.append(int(made.isnan().sum())))
    assert any(wrong)


def test_an_acceptance_head_is_trained_whole() -> None:
    assert set(drafter_classes()) - set(DRAFTING) == {
        "c2t",
        "judge",
        "specdecpp",
    }  # heads that draft nothing themselves
    head = AcceptanceHead(AcceptanceConfig(make("eagle").config.hidden_size)).requires_grad_(True)
    seen = trained_rows(head)
    train_acceptance(make("eagle"), tiny("llava"), teacher_batch, Schedule(STEPS, warmup=0), head=head)
    assert all(bool(rows.all()) for rows in seen.values())


@pytest.mark.parametrize("wrapped", (False, True))
def test_an_objective_that_leaves_depths_untrained_is_refused(wrapped: bool, tmp_path: Path) -> None:
    shallow = Objective(((1.0, cross_entropy),), depths=2)
    cases = [
        ("medusa", SelectTokens(shallow, make("medusa")) if wrapped else shallow),
        ("flash", RandomBlockLength(Glancing(shallow)) if wrapped else shallow),
    ]
    for name, objective in cases:
        settings = TrainSettings(Schedule(2), objective, precision="no")
        with pytest.raises(ValueError, match="objective: expected depths of at least 3, .*, got 2; train deeper"):
            train_drafter(make(name), tiny("llava"), None, teacher_batches, tmp_path, settings)
    assert not list(tmp_path.iterdir())


def test_a_published_recipe_trains_its_named_depths() -> None:
    """Three heads and one block of five where nothing else is asked for; Hydra's is Hydra++."""
    model = tiny("llava")
    for kind, sizes, depths in (
        ("medusa", {}, 3),
        ("hydra", {}, 4),
        ("flash", {}, 5),
        ("flash", {"block": 8}, 8),
        ("flash", {"head": "ar", "block": 1}, 1),
        ("medusa", {"heads": 5}, 5),
    ):
        job = Job(kind, 4, sizes=tuple(sizes.items()), recipe=kind)
        drafter = new_drafter(kind, model, **job.built)
        assert job.recipe_for(drafter).objective.depths == depths
    config = new_drafter("hydra", model, **Job("hydra", 4, recipe="hydra").built).config
    assert (config.heads, config.layers, config.dropout) == (4, 4, 0.2) and config.prefix_layer and config.final_norm
    plain = new_drafter("hydra", model, **Job("hydra", 4).built).config
    assert (plain.layers, plain.dropout, plain.prefix_layer, plain.final_norm) == (1, 0, False, False)
