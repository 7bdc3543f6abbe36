"""`decoding="auto"`: what is drawn is plain decoding's, whatever the controller chooses."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from mmspec.core.drafting.shapes import StaticTree
from mmspec.core.goodput import Goodput
from mmspec.core.rules.base import Misfit
from mmspec.imagegen import PJD, SCD, SJD, Proactive, RowDrafts
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.pipeline import ImagePipeline
from tests.imagegen.eagle.small import drafter_for
from tests.imagegen.tiny import TableModel, TinyModel, generate


class Whim(Goodput):
    """Chooses lengths at random, none among them, so that windows grow, shrink and rest in every order."""

    def open(self, target):
        state = super().open(target)
        rng, most = random.Random(4), state.seat.deepest
        state.ledger.choose = lambda seat: rng.choice((0, *range(most + 1)))
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
def test_sampled_codes_have_the_models_law_whatever_the_lengths(drafter: object) -> None:
    model, rows = TableModel(Geometry(((2, 3),)), codes=2, seed=2), 3000
    out = generate(model, [0] * rows, Whim(drafter), seed=5)
    seen = Counter((out.tokens * 2 ** torch.arange(5, -1, -1)).sum(1).tolist())
    statistic = sum((seen[code] - rows * float(p)) ** 2 / (rows * float(p)) for code, p in enumerate(model.joint()))
    assert statistic < 63 + 4 * (2 * 63) ** 0.5


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_trees_of_trained_drafters_are_cut_to_the_length(temperature: float) -> None:
    model = TinyModel(Geometry.square(4), sharp=3.0)
    drafter = drafter_for(model).with_shape(StaticTree((0, 0, 0, 1, 1, 3, 5)))
    seen = []

    class Told(Whim):
        def open(self, target):
            state = super().open(target)
            propose = state.inner.propose

            def watched(target, keys):
                draft = propose(target, keys)
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
            state.ledger.choose = lambda seat: 0
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


def test_what_has_an_order_of_its_own_takes_no_controller() -> None:
    with pytest.raises(Misfit, match="expected a controller over drafts in raster order, got 'goodput"):
        generate(TinyModel(), [0], Goodput(PJD(2)))
