"""The settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.drafter_names import SMALL
from mmspec.vlm.training.losses import terms_of
from mmspec.vlm.training.on_policy import Teaching, share_of
from mmspec.vlm.training.recipes import Recipe, equal_recipe, published_recipe, published_recipes, with_terms


@dataclass(frozen=True, slots=True)
class Job:
    """The settings of a training run. A `loss`, `lr`, `answers` or `teacher` replaces that of the recipe, as `sizes`
    do."""

    kind: str  # of drafter, see `new_drafter`, or "small", see `initial_small_model`
    steps: int
    batch: int = 12  # rows in a step
    sizes: tuple[tuple[str, Any], ...] = ()  # pairs of a size and its value, see `new_drafter`; empty with `start`
    recipe: str = "equal"  # "equal" (the same for all kinds) or a name of `published_recipes`
    lr: float | None = None
    loss: str | None = None  # see `terms_of`
    answers: Literal["own", "given"] | None = None
    teacher: Literal["online", "offline"] | None = None
    source: str = "target"  # "target", "drafter" or the drafter's share, see `Teaching`
    drafted: int = 8  # the tokens of a drafter's continuation, see `Teaching`
    new_tokens: int = 128  # most tokens of the target's own answers, greedy and sampled in turn
    longest: int | None = None  # tokens to which rows are cut, None for no limit
    precision: Literal["bf16", "no"] = "bf16"  # "bf16" trains in autocast, "no" in float32
    start: Path | None = None  # the folder of a drafter of this kind, or of the kind of its first training stage
    reference: Path | None = None  # the folder of a drafter for `SelectTokens`; None trains on all tokens
    share: float = 0.4  # of tokens to train on with a reference, see `SelectTokens`
    eval_every: int = 0  # steps between measurements of acceptance, 0 for none
    eval_tokens: int = 64  # generated for each prompt of a measurement
    seed: int = 0  # of weights, answers and steps

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
        return Teaching(share_of(self.source), self.drafted)

    @property
    def built(self) -> dict[str, Any]:
        recipe = published_recipes().get(self.recipe)
        return {**({} if recipe is None else dict(recipe.sizes)), **dict(self.sizes)}

    def recipe_for(self, drafter: ShapedDrafter) -> Recipe:
        recipe = equal_recipe(drafter) if self.recipe == "equal" else published_recipe(self.recipe, drafter)
        if self.loss is not None:
            recipe = replace(recipe, objective=with_terms(recipe.objective, terms_of(self.loss)))
        changes = {name: getattr(self, name) for name in ("lr", "answers", "teacher")}
        return replace(recipe, **{name: value for name, value in changes.items() if value is not None})
