"""Windows whose length changes from round to round keep the law as long as nothing is looked at but what was emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from mmspec.core.round.draft import Draft, root_only
from mmspec.core.round.keys import Keys
from mmspec.imagegen import SCD
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi import SJD, Proactive
from mmspec.imagegen.jacobi.jacobi_drafts import JacobiState
from mmspec.imagegen.pipeline import ImagePipeline
from tests.imagegen.jacobi.test_process import distance
from tests.imagegen.tiny import TinyModel

Controller = Callable[[tuple[int, ...]], int]


def shrinking(gains: tuple[int, ...]) -> int:
    """Short behind a round that kept something, long behind one that did not, now and then none."""
    return 0 if len(gains) % 3 == 2 else 1 if gains[-1] > 1 else 3


def growing(gains: tuple[int, ...]) -> int:
    """Begins without drafts and drafts one more behind every full success."""
    return min(sum(gain > 1 for gain in gains) + len(gains) // 2, 3)


def resting(gains: tuple[int, ...]) -> int:
    """Drafts, then rests for as many rounds as values were emitted."""
    return 3 if len(gains) == 1 or gains[-1] == 1 else 0


def steady(gains: tuple[int, ...]) -> int:
    return 3


@dataclass(frozen=True)
class Controlled:
    """A drafter whose lengths are a function of how many values each round emitted."""

    settings: SJD
    choose: Controller
    state: type[ControlledState]

    @property
    def window(self) -> int:
        return self.settings.window

    @property
    def name(self) -> str:
        return self.settings.name

    def open(self, target) -> ControlledState:
        made = self.state(self.settings, target)
        made.choose, made.gains, made.filled = self.choose, (), 0
        return made


class ControlledState(JacobiState):
    def propose(self, target, keys, longest: int | None = None) -> Draft:
        self.gains, self.filled = (*self.gains, target.emitted[0] - self.filled), target.emitted[0]
        longest = self.choose(self.gains)
        return super().propose(target, keys, longest) if longest else root_only(target.pending)


class PeekingAtSurvivors(ControlledState):
    """Ends a row's window before a value that survived and happens to be 0: a decision on what no rule has judged yet."""

    def propose(self, target, keys) -> Draft:
        old = None if self.scores is None else (self.value[:, :1], self.known - 1 > 0)
        draft = super().propose(target, keys)
        if old is None or draft.tree.nodes == 1:
            return draft
        value, lives = old
        valid = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid.clone()
        valid[:, 1:] &= ~((value == 0) & lives[:, None])
        draft.valid = valid
        return draft


class PeekingAtDrafts(ControlledState):
    """Ends a row's window before a drafted value that is 0."""

    def propose(self, target, keys) -> Draft:
        draft = super().propose(target, keys)
        valid = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid
        stays = (draft.value[:, 1:] != 0).long().cumprod(1).bool()
        draft.valid = torch.cat((valid[:, :1], valid[:, 1:] & stays), 1)
        return draft


def law(settings: SJD, choose: Controller, state: type = ControlledState, **options) -> float:
    return distance(Controlled(settings, choose, state), **options)


@pytest.mark.covering
@pytest.mark.parametrize("choose", (shrinking, growing, resting))
@pytest.mark.parametrize("init", ("left", "up", "random", "sample_left"))
@pytest.mark.parametrize("coupling", (None, "maximal", "gumbel"))
def test_lengths_that_follow_the_emitted_codes_keep_the_distribution(
    choose: Controller, init: str, coupling: str | None
) -> None:
    if coupling == "gumbel" and init in ("random", "sample_left"):
        pytest.skip("noise is followed for two codes drawn from a law")
    assert law(SJD(4, init, coupling), choose, codes=2) < 1e-12


@pytest.mark.parametrize("choose", (shrinking, growing))
def test_three_codes_and_trees_too(choose: Controller) -> None:
    assert law(SCD(4, "maximal"), choose, geometry=Geometry(((1, 5),))) < 1e-12
    assert law(SCD(4, "maximal", tree=Proactive(2, 2)), choose, codes=2, geometry=Geometry(((1, 5),))) < 1e-12


def test_looking_at_values_that_live_on_shows() -> None:
    assert law(SCD(4, "maximal"), steady, PeekingAtSurvivors, codes=2) > 1e-3


@pytest.mark.parametrize("coupling", (None, "maximal"))
def test_looking_at_drafted_values_shows(coupling: str | None) -> None:
    assert law(SJD(4, coupling=coupling), steady, PeekingAtDrafts, codes=2) > 1e-3


def test_rounds_without_a_draft_are_caught_up_in_one_step() -> None:
    """What a window is drafted from is the same whether the rounds before it were read one by one or together."""
    made = []
    for late in (False, True):
        run = ImagePipeline(TinyModel(Geometry.square(4))).start([0, 1], decoding=SJD(4, "up"), seed=3)
        run.step()
        for _ in range(6):
            if not late:
                run.state._read(run.target)
            propose, run.state.propose = run.state.propose, lambda target, keys: root_only(target.pending)
            run.step()
            run.state.propose = propose
        draft = run.state.propose(run.target, Keys.of(0, 2))
        made.append((draft.value, draft.law.scores))
    assert torch.equal(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1])
