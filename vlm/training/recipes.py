"""Training recipes of drafters: the published recipe of every method, and an equal recipe for all methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mmspec.training.schedule import Schedule
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.drafter_names import drafter_class, trained_kinds
from mmspec.vlm.training.block_objective import BlockObjective
from mmspec.vlm.training.data import Curriculum
from mmspec.vlm.training.losses import Loss, cross_entropy, smooth_l1, terms_of
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.objective_wrappers import ObjectiveWrapper

AnyObjective = Objective | ObjectiveWrapper | BlockObjective


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a training run apart from the data; `decay`, `clip` and `muon` as in `Schedule`."""

    objective: AnyObjective
    lr: float
    warmup: float = 0.0  # as a share of the steps
    decay: Literal["cosine", "linear", "none"] = "linear"
    final_lr: float = 0.0  # as a share of `lr`
    betas: tuple[float, float] = (0.9, 0.95)  # of AdamW
    weight_decay: float = 0.0  # of AdamW
    clip: float = 0.5
    clip_by: Literal["norm", "value"] = "norm"  # norm, or each value
    noise: float = 0.0  # the width of uniform noise on the states, see `TrainSettings`
    curriculum: Curriculum | None = None  # of texts and pictures
    answers: Literal["own", "given"] = "own"  # of the target, or those in the data
    teacher: Literal["online", "offline"] = "online"  # offline stores its states before training
    sizes: tuple[tuple[str, Any], ...] = ()  # default fields of a new drafter's config, see `new_drafter`
    muon: float = 0.0  # learning rate in units of `lr`, 0 for AdamW alone

    def schedule(self, steps: int) -> Schedule:
        """Return the schedule of a run with this number of steps; a warm-up has at least a step."""
        return Schedule(
            steps=steps,
            lr=self.lr,
            warmup=max(1, round(self.warmup * steps)) if self.warmup else 0,
            decay=self.decay,
            final_lr=self.final_lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
            clip=self.clip,
            clip_by=self.clip_by,
            muon=self.muon,
        )


def depth_recipe(
    terms: str, *, depths: int = 1, depth_decay: float = 0.9, over_depths: Literal["sum", "mean"] = "sum", **fields: Any
) -> Recipe:
    """Return a recipe with an `Objective` and other fields. `terms` is a text for `terms_of`."""
    return Recipe(Objective(terms_of(terms), depths, depth_decay, over_depths), **fields)


def feature_recipe(terms: str = "smooth_l1,cross_entropy:0.1", **changes: Any) -> Recipe:
    """Return the recipe of EAGLE's public code with changes, see `depth_recipe`."""
    eagle = dict(
        lr=3e-5,
        warmup=2000 / 800_000,
        weight_decay=0.01,
        clip_by="value",
        noise=0.2,
        answers="given",
        teacher="offline",
    )
    return depth_recipe(terms, **eagle | changes)


def head_recipe(terms: str = "hard_cross_entropy") -> Recipe:
    """Return the recipe of Medusa's public code with these terms: all heads at once, 2 epochs, batch 32."""
    optimizer = dict(lr=1e-3, warmup=0.1, decay="cosine", betas=(0.9, 0.999), clip=1.0)
    return depth_recipe(terms, depth_decay=0.8, answers="given", **optimizer)


def block_recipe(**objective: Any) -> Recipe:
    """Return the recipe of DFlash's paper with these fields of its `BlockObjective`."""
    return Recipe(
        BlockObjective(**objective),
        lr=6e-4,
        warmup=0.04,
        decay="cosine",
        betas=(0.9, 0.999),
        weight_decay=0.01,
        clip=1.0,
    )


def published_recipes() -> dict[str, Recipe]:
    """Return the recipes of papers and public code by name; the default recipe of a kind has the kind's name. Warm-ups
    are shares of the published number of steps, which may be 800,000."""
    recipes = [drafter_class(kind).recipes() for kind in trained_kinds()]
    return {name: recipe for named in recipes for name, recipe in named.items()}


def published_recipe(name: str, drafter: ShapedDrafter) -> Recipe:
    """Return the published recipe of this name, with at least the depths for which the drafter has separate weights."""
    recipe = published_recipes()[name]
    return replace(recipe, objective=_with_least_depths(recipe.objective, drafter.own_depths))


def equal_recipe(drafter: ShapedDrafter) -> Recipe:
    """Return the recipe that all kinds share, so that a comparison measures the methods alone.

    The loss is 1.0 cross-entropy + 0.2 SmoothL1 at 4 depths with weights 0.9 ** depth, on the target's own answers,
    with an online teacher. Drafters that predict no states have no SmoothL1, drafters with more than 4 heads train all
    of them, and block drafters train the blocks after 64 anchors per row. A method may change it further, see
    `prescribed` of its class. The learning rate is 0.3 / hidden size: 1.2e-3 for the zoo's 256, 7e-5 for 4096."""
    terms = ((1.0, cross_entropy), (0.2, smooth_l1))
    if isinstance(drafter, BlockDrafter):
        objective: AnyObjective = BlockObjective(terms[:1], anchors=64)
    else:
        used = terms if drafter.predicts_states else terms[:1]
        objective = Objective(used, depths=max(4, drafter.own_depths), decay=0.9)
    recipe = Recipe(
        objective,
        lr=0.3072 / drafter.config.hidden_size,
        warmup=0.125,
        decay="cosine",
        final_lr=0.02,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        clip=1.0,
        curriculum=None if drafter.texts_first is None else Curriculum(*drafter.texts_first),
    )
    return drafter.prescribed(recipe)


def small_model_recipe() -> Recipe:
    """Return the recipe of a small model: the cross-entropy of the target's own answers, sequence-level distillation as
    in the last stage of "FastDraft: How to Train Your Draft". The learning rate is that of continued training, a tenth
    of the rate at which such models are trained from the start."""
    return depth_recipe("hard_cross_entropy", lr=2e-4, warmup=0.05, decay="cosine", final_lr=0.1, clip=1.0)


def with_terms(objective: AnyObjective, terms: tuple[tuple[float, Loss], ...]) -> AnyObjective:
    if isinstance(objective, Objective | BlockObjective):
        return replace(objective, terms=terms)
    return replace(objective, objective=with_terms(objective.objective, terms))


def _with_least_depths(objective: AnyObjective, depths: int) -> AnyObjective:
    if isinstance(objective, BlockObjective):
        return objective
    if isinstance(objective, Objective):
        return replace(objective, depths=max(objective.depths, depths))
    return replace(objective, objective=_with_least_depths(objective.objective, depths))
