"""The settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.kinds import SMALL
from mmspec.vlm.training.losses import terms_of
from mmspec.vlm.training.on_policy import Teaching, share_of
from mmspec.vlm.training.recipes import Recipe, equal_recipe, published_recipe, published_recipes, with_terms


@dataclass(frozen=True, slots=True)
class Job:
    """The settings of a training run.

    Args:
        kind: The kind of drafter, see `new_drafter`, or "small" for a small model, see `initial_small_model`.
        steps: The number of steps.
        batch: The number of rows in a step.
        sizes: Pairs of a size and its value in place of the recipe's, see `new_drafter`; empty with `start`.
        recipe: "equal" (the same for all kinds) or a name of `published_recipes`.
        lr: The learning rate in place of the recipe's.
        loss: The loss in place of the recipe's, see `terms_of`.
        answers: The source of answers in place of the recipe's.
        teacher: The use of the teacher in place of the recipe's.
        source: The source of the trained tokens: "target", "drafter" or the drafter's share, see `Teaching`.
        drafted: The tokens of a drafter's continuation, see `Teaching`.
        new_tokens: The most tokens of the target's own answers, which are greedy and sampled in turn.
        longest: The number of tokens to which rows are cut, None for no limit.
        precision: "bf16" trains in autocast, "no" in float32.
        start: The folder of a drafter to start from, of this kind or of the kind of its first training stage.
        reference: The folder of a reference drafter for `SelectTokens`; None trains on all tokens.
        share: The share of tokens to train on with a reference, see `SelectTokens`.
        eval_every: The number of steps between measurements of acceptance, 0 for none.
        eval_tokens: The number of tokens generated for each prompt of a measurement.
        seed: The seed of weights, answers and steps.
    """

    kind: str
    steps: int
    batch: int = 12
    sizes: tuple[tuple[str, Any], ...] = ()
    recipe: str = "equal"
    lr: float | None = None
    loss: str | None = None
    answers: Literal["own", "given"] | None = None
    teacher: Literal["online", "offline"] | None = None
    source: str = "target"
    drafted: int = 8
    new_tokens: int = 128
    longest: int | None = None
    precision: Literal["bf16", "no"] = "bf16"
    start: Path | None = None
    reference: Path | None = None
    share: float = 0.4
    eval_every: int = 0
    eval_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.recipe != "equal" and self.recipe not in (known := published_recipes()):
            raise ValueError(f"recipe: expected equal or one of {', '.join(known)}, got {self.recipe!r}")
        if self.teaching.share and self.teacher == "offline":
            raise ValueError(
                f"source: expected target with stored states, got {self.source}; leave --teacher offline out"
            )
        if self.kind == SMALL:
            self._check_small()
        if self.loss is not None:
            terms_of(self.loss)
        if self.start is not None and self.sizes:
            raise ValueError(
                f"size: expected none with start, whose drafter has its own, got {dict(self.sizes)}; leave it out"
            )

    def _check_small(self) -> None:
        """Refuse settings that a small model does not have; it learns tokens, not states of the target."""
        unset = dict(recipe="equal", loss=None, teacher=None, source="target", reference=None, sizes=())
        for name, default in unset.items():
            if (value := getattr(self, name)) != default:
                raise ValueError(
                    f"{name}: expected none for a small model, which learns the answers alone, got {value}; leave it out"
                )

    @property
    def teaching(self) -> Teaching:
        """The source of the trained tokens."""
        return Teaching(share_of(self.source), self.drafted)

    @property
    def built(self) -> dict[str, Any]:
        """The sizes of a new drafter: those of the recipe, overridden by those of the job."""
        recipe = published_recipes().get(self.recipe)
        return {**({} if recipe is None else dict(recipe.sizes)), **dict(self.sizes)}

    def recipe_for(self, drafter: ShapedDrafter) -> Recipe:
        """Return the recipe with the job's own settings."""
        recipe = equal_recipe(drafter) if self.recipe == "equal" else published_recipe(self.recipe, drafter)
        if self.loss is not None:
            recipe = replace(recipe, objective=with_terms(recipe.objective, terms_of(self.loss)))
        changes = {name: getattr(self, name) for name in ("lr", "answers", "teacher")}
        return replace(recipe, **{name: value for name, value in changes.items() if value is not None})
