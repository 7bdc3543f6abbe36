"""How drafters are trained: the published recipe of every method, and ours, the same for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mmspec.training.schedule import Schedule
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.training.block_objective import BlockObjective
from mmspec.vlm.training.data import Curriculum
from mmspec.vlm.training.initialisation import KINDS, new_drafter
from mmspec.vlm.training.losses import Loss, cross_entropy, hard_cross_entropy, l1, list_mle, smooth_l1
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.objective_wrappers import Glancing, ObjectiveWrapper, RandomBlockLength

__all__ = ["KINDS", "PUBLISHED", "Recipe", "equal_recipe", "new_drafter", "published_recipe", "with_terms"]

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


_FEATURES = ((1.0, smooth_l1), (0.1, cross_entropy))
_EAGLE = Recipe(
    Objective(_FEATURES, depths=1),
    lr=3e-5,
    warmup=2000 / 800_000,
    weight_decay=0.01,
    clip_by="value",
    noise=0.2,
    answers="given",
    teacher="offline",
)

_DFLASH = Recipe(
    BlockObjective(), lr=6e-4, warmup=0.04, decay="cosine", betas=(0.9, 0.999), weight_decay=0.01, clip=1.0
)

PUBLISHED: dict[str, Recipe] = {
    "eagle2": _EAGLE,  # EAGLE-1's: 20 epochs of 68k conversations
    "eagle2_text": _EAGLE,
    # 40 epochs of 68k texts and 68k pictures, 2 rows x 2
    "msd": replace(_EAGLE, lr=5e-5, weight_decay=0.0, clip_by="norm", curriculum=Curriculum()),
    # 68k texts; an EAGLE drafter that sees no pictures, which the second stage starts from
    "vispec_stage1": replace(
        _EAGLE, objective=Objective((*_FEATURES, (0.01, list_mle())), depths=1), answers="given"
    ),
    # 68k pictures, 20 epochs, batch 8, the first epoch a warm-up. The paper reports cross-entropy, the code has these terms
    "vispec": replace(
        _EAGLE,
        objective=Objective(((10.0, l1), (0.1, list_mle())), depths=2, decay=1.0, over_depths="mean"),
        lr=3e-6,
        warmup=1 / 20,
        answers="own",
    ),
    # one block, of 5 offsets; 20 epochs of 50k, batch 2
    "flash": replace(_EAGLE, objective=Objective(_FEATURES, depths=1, decay=1.0, over_depths="mean")),
    # 1 epoch of 655k or more, batch 128, live teacher, no warm-up; decay and clipping are not stated. 5e-5 for 13B
    "specvlm": Recipe(Objective(_FEATURES, depths=1), lr=8e-5, decay="none", clip=0.0, answers="given"),
    # 40 epochs of 530k conversations, batch 2
    "eagle3": Recipe(Objective(((1.0, cross_entropy),), depths=7, decay=0.8), lr=5e-5, warmup=12_000 / 800_000),
    # all heads, 3 of them; 2 epochs, batch 32
    "medusa": Recipe(
        Objective(((1.0, hard_cross_entropy),), depths=1, decay=0.8),
        lr=1e-3, warmup=0.1, decay="cosine", betas=(0.9, 0.999), clip=1.0, answers="given",
    ),
    # Hydra++, all heads: 10 epochs, batch 32, 100 steps of warm-up
    "hydra": Recipe(
        Objective(((1.0, cross_entropy),), depths=1, decay=1.0),
        lr=5e-4, warmup=0.005, decay="cosine", final_lr=0.33, betas=(0.9, 0.999), weight_decay=0.1, clip=1.0,
        answers="given", sizes=(("heads", 4), ("layers", 4), ("prefix_layer", True), ("dropout", 0.2)),
    ),
    # 6 epochs of 800k answers of the target's own, rows of 3072 tokens
    "dflash": _DFLASH,
    # heads of a walk learn from more blocks of a row
    "dspark": replace(_DFLASH, objective=BlockObjective(anchors=3072)),
    "dflash_dpace": replace(_DFLASH, objective=BlockObjective(weights="dpace", per="row")),
}  # fmt: skip
"""By kind, as far as papers and public code say; where a method has two stages, `vispec_stage1` is the first.
`published_recipe` raises the depths to the number that a drafter has separate weights for: heads, or offsets of a block.

ViSpec scores a teacher-forced pass and one on the drafter's own features equally. In its code all keys of the second pass are
the drafter's own; here a place attends to true slots but for its own draft, as it does when drafting.
Warm-ups are shares of the published totals, since few will train for 800,000 steps.
"""


def published_recipe(name: str, drafter: ShapedDrafter) -> Recipe:
    """The recipe of this name in PUBLISHED, for this drafter."""
    recipe = PUBLISHED[name]
    return replace(recipe, objective=_with_least_depths(recipe.objective, drafter.own_depths))


def equal_recipe(drafter: ShapedDrafter) -> Recipe:
    """Ours: the recipe all kinds share, so that a comparison compares methods.

    1.0 cross-entropy + 0.2 SmoothL1 at 4 depths with weights 0.9 ** depth, on the target's own answers, by a live teacher.
    What a method itself prescribes stays: EAGLE-3 and heads see tokens only, all heads are trained also where there are
    more than 4, FLASH trains every block length with glancing, DFlash and DSpark blocks behind 64 anchors a row with their
    own weights of positions, MSD and ViSpec see texts first. The learning rate is 0.3 / hidden size: 1.2e-3 for the zoo's
    256, 7e-5 for 4096.
    """
    terms = ((1.0, cross_entropy), (0.2, smooth_l1))
    objective: AnyObjective = Objective(terms, depths=4, decay=0.9)
    kind = getattr(drafter, "kind", drafter.name)  # an MTP layer is of no kind that is saved apart
    curriculum = {"msd": Curriculum(0.1, 0.2), "vispec": Curriculum(0.1, 0.1)}.get(kind)
    if kind == "flash":
        objective = RandomBlockLength(Glancing(Objective(terms, depths=drafter.config.block + 2, decay=0.9)))
    elif kind in ("dflash", "dspark"):
        objective = BlockObjective(terms[:1], anchors=64)
    elif kind in ("eagle3", "medusa", "hydra"):
        objective = Objective(terms[:1], depths=max(4, drafter.own_depths), decay=0.9)
    return Recipe(
        objective,
        lr=0.3072 / drafter.config.hidden_size,
        warmup=0.125,
        decay="cosine",
        final_lr=0.02,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        clip=1.0,
        curriculum=curriculum,
    )


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
