"""How drafters are trained: the published recipe of every method, and ours, the same for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mmspec.training.schedule import Schedule
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.kinds import drafter_class, trained_kinds
from mmspec.vlm.training.block_objective import BlockObjective
from mmspec.vlm.training.data import Curriculum
from mmspec.vlm.training.losses import Loss, cross_entropy, smooth_l1, terms_of
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.objective_wrappers import ObjectiveWrapper

AnyObjective = Objective | ObjectiveWrapper | BlockObjective


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides a training run beside the data.

    warmup, final_lr: shares of the steps and of `lr`.   clip, clip_by, decay, muon: see `Schedule`.
    noise: width of the uniform noise on the states read, see `TrainSettings`.   curriculum: where texts come first.
    answers: the target's own, or those given with the data.   teacher: live, or states stored before training.
    sizes: fields of the kind's config that a new drafter is built with unless others are asked for, see `new_drafter`.
    """

    objective: AnyObjective
    lr: float
    warmup: float = 0.0
    decay: Literal["cosine", "linear", "none"] = "linear"
    final_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 0.5
    clip_by: Literal["norm", "value"] = "norm"
    noise: float = 0.0
    curriculum: Curriculum | None = None
    answers: Literal["own", "given"] = "own"
    teacher: Literal["online", "offline"] = "online"
    sizes: tuple[tuple[str, Any], ...] = ()
    muon: float = 0.0

    def schedule(self, steps: int) -> Schedule:
        """Optimizer settings of a run of so many steps; any warm-up takes at least one."""
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
    """A recipe of an `Objective`.

    Args:
        terms: The terms of the loss, as `terms_of` reads them.
        depths, depth_decay, over_depths: The depths that are trained, and how much each counts, see `Objective`.
        fields: The other fields of the recipe.
    """
    return Recipe(Objective(terms_of(terms), depths, depth_decay, over_depths), **fields)


def feature_recipe(terms: str = "smooth_l1,cross_entropy:0.1", **changes: Any) -> Recipe:
    """The recipe of EAGLE's public code, with changes, see `depth_recipe`."""
    eagle = dict(lr=3e-5, warmup=2000 / 800_000, weight_decay=0.01, clip_by="value", noise=0.2, answers="given",
                 teacher="offline")  # fmt: skip
    return depth_recipe(terms, **eagle | changes)


def block_recipe(**objective: Any) -> Recipe:
    """The recipe of DFlash's paper.   objective: fields of its `BlockObjective`."""
    return Recipe(
        BlockObjective(**objective),
        lr=6e-4, warmup=0.04, decay="cosine", betas=(0.9, 0.999), weight_decay=0.01, clip=1.0,
    )  # fmt: skip


def published_recipes() -> dict[str, Recipe]:
    """The published recipes, as far as papers and public code say: one for each kind, and others by their names.

    Warm-ups are shares of the published totals, since few will train for 800,000 steps.
    """
    made = [drafter_class(kind).recipes() for kind in trained_kinds()]
    return {name: recipe for recipes in made for name, recipe in recipes.items()}


def published_recipe(name: str, drafter: ShapedDrafter) -> Recipe:
    """The published recipe of this name, at least as deep as the drafter has separate weights: heads, offsets."""
    recipe = published_recipes()[name]
    return replace(recipe, objective=_with_least_depths(recipe.objective, drafter.own_depths))


def equal_recipe(drafter: ShapedDrafter) -> Recipe:
    """Ours: the recipe all kinds share, so that a comparison compares methods.

    1.0 cross-entropy + 0.2 SmoothL1 at 4 depths with weights 0.9 ** depth, on the target's own answers, by a live teacher.
    What a method itself prescribes stays, see `prescribed` of its class: drafters that predict no states see tokens only,
    all heads are trained also where there are more than 4, block drafters learn from the blocks behind 64 anchors a row with
    their own weights of positions. The learning rate is 0.3 / hidden size: 1.2e-3 for the zoo's 256, 7e-5 for 4096.
    """
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


def with_terms(objective: AnyObjective, terms: tuple[tuple[float, Loss], ...]) -> AnyObjective:
    """The same objective of other terms."""
    if isinstance(objective, Objective | BlockObjective):
        return replace(objective, terms=terms)
    return replace(objective, objective=with_terms(objective.objective, terms))


def _with_least_depths(objective: AnyObjective, depths: int) -> AnyObjective:
    if isinstance(objective, BlockObjective):
        return objective
    if isinstance(objective, Objective):
        return replace(objective, depths=max(objective.depths, depths))
    return replace(objective, objective=_with_least_depths(objective.objective, depths))
