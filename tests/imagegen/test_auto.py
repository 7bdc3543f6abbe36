"""`decoding="auto"`: what is drawn is plain decoding's, whatever the controller chooses."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from mmspec.core.drafting.shapes import StaticTree
from mmspec.core.length.goodput import Goodput
from mmspec.core.round.draft import Draft
from mmspec.core.round.rules.base import UnsupportedCombination
from mmspec.imagegen import PJD, SCD, SJD, Proactive, RowDrafts
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi.jacobi_drafts import JacobiState
from mmspec.imagegen.pipeline import ImagePipeline
from tests.imagegen.eagle.small import drafter_for
from tests.imagegen.tiny import TableModel, TinyModel, generate


class Whim(Goodput):
    """Chooses lengths at random, none among them, so that windows grow, shrink and rest in every order."""

    def open(self, target):
        state = super().open(target)
        rng, most = random.Random(4), state.request.deepest
        state.bandit.choose = lambda request: rng.choice((0, *range(most + 1)))
        return state


WINDOWS = (
    SCD(9),
    SCD(9, "maximal", "up"),
    SJD(6, "mix"),
    SJD(6, tree=Proactive(2, 3)),
    RowDrafts(SCD(6), 3),
    SJD(5, "sample_left"),
)


@pytest.mark.parametrize("drafter", WINDOWS, ids=lambda one: one.name)
def test_greedy_codes_are_plain_decodings_whatever_the_lengths(drafter: object) -> None:
    model = TinyModel(Geometry.square(6), sharp=3.0)
    plain = generate(model, [0, 1, 2], temperature=0.0)
    drafted = generate(model, [0, 1, 2], Whim(drafter), temperature=0.0)
    assert torch.equal(plain.tokens, drafted.tokens)
    assert drafted.stats.target_passes < plain.stats.target_passes


@pytest.mark.parametrize("drafter", (SCD(4), SCD(4, "maximal", tree=Proactive(2, 2)), RowDrafts(SCD(3), 2)), ids=str)
def test_sampled_codes_have_the_models_distribution_for_any_lengths(drafter: object) -> None:
    model, rows = TableModel(Geometry(((2, 3),)), codes=2, seed=2), 3000
    out = generate(model, [0] * rows, Whim(drafter), seed=5)
    seen = Counter((out.tokens * 2 ** torch.arange(5, -1, -1)).sum(1).tolist())
    statistic = sum((seen[code] - rows * float(p)) ** 2 / (rows * float(p)) for code, p in enumerate(model.joint()))
    assert statistic < 63 + 4 * (2 * 63) ** 0.5


class Together(JacobiState):
    """Rows 2i and 2i + 1 draft equally far, by what both of them emitted so far: batches of two, many at once."""

    def propose(self, target, keys) -> Draft:
        before, now = getattr(self, "filled", None), torch.tensor(target.emitted).view(-1, 2)
        self.filled = now
        gain = now - (torch.zeros_like(now) if before is None else before)
        most = self.lengths_of(gain).repeat_interleave(2)
        draft = super().propose(target, keys)
        if draft.tree.nodes > 1:
            there = draft.tree.depth <= most[:, None]
            draft.valid = there if draft.valid is None else there & draft.valid
        return self.ended(draft)

    def lengths_of(self, gain: torch.Tensor) -> torch.Tensor:
        return torch.where(gain[:, 0] > gain[:, 1], 0, torch.where(gain[:, 1] > 1, 1, 3))

    def ended(self, draft: Draft) -> Draft:
        return draft


class PeekingTogether(Together):
    """Ends both rows before a drafted value that they have in common."""

    def ended(self, draft: Draft) -> Draft:
        other = draft.value.view(-1, 2, draft.tree.nodes).flip(1).flatten(0, 1)
        stays = (draft.value != other)[:, 1:].long().cumprod(1).bool()
        draft.valid = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid
        draft.valid = torch.cat((draft.valid[:, :1], draft.valid[:, 1:] & stays), 1)
        return draft


def pairs_apart(settings: SJD, state: type, seed: int = 6, pairs: int = 6000) -> float:
    """How far, in standard deviations of chi-square, pairs of rows are from two independent draws of the model's law."""

    class Opened:
        name = settings.name

        def open(self, target):
            return state(settings, target)

    model = TableModel(Geometry(((1, 4),)), codes=2, seed=2)
    out = generate(model, [0] * 2 * pairs, Opened(), seed=seed)
    both = (out.tokens.view(pairs, -1) * 2 ** torch.arange(7, -1, -1)).sum(1)
    expected = pairs * torch.outer(model.joint(), model.joint()).flatten()
    seen = torch.bincount(both, minlength=256).double()
    rare = expected < 5  # counted as one
    expected, seen = (torch.cat((one[~rare], one[rare].sum()[None])) for one in (expected, seen))
    freedom = len(expected) - 1
    return (float(((seen - expected) ** 2 / expected).sum()) - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("coupling", (None, "maximal", "gumbel"))
def test_rows_that_share_a_length_stay_independent(coupling: str | None) -> None:
    assert pairs_apart(SJD(4, coupling=coupling), Together) < 4


def test_a_length_that_follows_drafted_values_binds_rows() -> None:
    assert pairs_apart(SJD(4, coupling="maximal"), PeekingTogether) > 10


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_trees_of_trained_drafters_are_cut_to_the_length(temperature: float) -> None:
    model = TinyModel(Geometry.square(4), sharp=3.0)
    drafter = drafter_for(model).with_shape(StaticTree((0, 0, 0, 1, 1, 3, 5)))
    seen = []

    class Told(Whim):
        def open(self, target):
            state = super().open(target)
            propose = state.inner.propose

            def watched(target, keys, longest):
                draft = propose(target, keys, longest)
                seen.append((state.length, draft.tree.max_depth))
                return draft

            state.inner.propose = watched
            return state

    plain = generate(model, [0, 1], temperature=temperature, seed=1)
    drafted = generate(model, [0, 1], Told(drafter), temperature=temperature, seed=1)
    assert {depth for _, depth in seen} >= {1, 2, 3} and all(depth <= asked for asked, depth in seen)
    assert temperature > 0 or torch.equal(plain.tokens, drafted.tokens)


def test_a_trained_drafter_that_never_drafts_reads_nothing() -> None:
    class Never(Goodput):
        def open(self, target):
            state = super().open(target)
            state.bandit.choose = lambda request: 0
            return state

    model = TinyModel(Geometry.square(4))
    out = generate(model, [0, 1], Never(drafter_for(model)), guidance_scale=2.0)
    assert out.stats.drafter_passes == 0 and out.stats.target_passes == 16


def test_a_pipelines_controller_goes_on_learning_and_is_its_own() -> None:
    pipe, other = (ImagePipeline(TinyModel(Geometry.square(4), sharp=3.0)) for _ in range(2))
    plain, names = pipe([0, 3], temperature=0.0, pixels=False), list(vars(pipe))
    for _ in range(3):
        out = pipe([0, 3], decoding="auto", temperature=0.0, pixels=False)
        assert torch.equal(out.tokens, plain.tokens) and out.stats.exact
    assert out.stats.drafter == "goodput(SCD gumbel(64))"
    assert sum(pipe.automatic.summary()[0]["rounds"].values()) >= 3 * 2
    assert list(vars(pipe)) == names  # what it learned is not written on the pipeline
    assert pipe.automatic is not other.automatic and not other.automatic.summary()


def test_decodings_with_their_own_order_refuse_a_controller() -> None:
    with pytest.raises(UnsupportedCombination, match="expected a controller over drafts in raster order, got 'goodput"):
        generate(TinyModel(), [0], Goodput(PJD(2)))
