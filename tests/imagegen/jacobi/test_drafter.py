"""Jacobi drafters on whole images: greedy equals plain decoding, sampling keeps the law, rows are on their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify.samples import chi_square
from mmspec.core.round.keys import Keys
from mmspec.imagegen import SCD
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi import SJD, Proactive
from mmspec.imagegen.jacobi.initialisation import INITS, JacobiWindow, sources_of
from mmspec.imagegen.jacobi.jacobi_drafts import JacobiState
from tests.imagegen.tiny import TableModel, TinyModel, generate

FORCED = Geometry(((3, 4),), row_end=16, tail=(17,))
FRAMES = Geometry(((2, 3),), row_end=16, tail=(17,), frames=3)
TREE = Proactive(2, 3)


def drafters() -> list[SJD]:
    trees = [SJD(6, "up", coupling, TREE) for coupling in (None, "maximal", "gumbel")]
    return [SJD(6, init) for init in INITS] + [SJD(20, "mix", "maximal"), SCD(5), SJD(2, "repeat_left")] + trees


@pytest.fixture(scope="module", params=(FORCED, FRAMES), ids=("image", "video"))
def model(request: pytest.FixtureRequest) -> TinyModel:
    return TinyModel(request.param, sharp=0.8)


@pytest.mark.parametrize("scale", (1.0, 3.0))
def test_greedy_equals_plain_decoding(model: TinyModel, scale: float) -> None:
    settings = dict(temperature=0, guidance_scale=scale, seed=1)
    plain = generate(model, [0, 1, 2], **settings)
    for drafter in drafters():
        out = generate(model, [0, 1, 2], drafter, **settings)
        assert torch.equal(out.tokens, plain.tokens), drafter.name
        assert out.stats.exact and out.stats.drafter_passes == 0
        assert out.stats.target_passes < plain.stats.target_passes


def test_grids_in_a_row_and_settings_of_the_sampler() -> None:
    model = TinyModel(Geometry(((2, 2), (3, 3)), row_end=16), sharp=0.8)
    for drafter in drafters():
        out = generate(model, [0, 1], drafter, seed=2, guidance_scale=2.0, top_k=5, top_p=0.9, temperature=0.8)
        assert out.tokens.shape == (2, 9) and int(out.tokens.max()) < 16 and not out.errors
        assert sum(out.stats.emitted) == 2 * model.geometry.total


@pytest.mark.parametrize(
    "drafter",
    [
        SJD(5),
        SJD(5, "repeat_up"),
        SJD(5, "frame"),
        SCD(5, init="repeat_frame"),
        SCD(5),
        SCD(5, "maximal", "mix"),
        SJD(5, tree=TREE),
        SCD(5, tree=TREE),
    ],
    ids=lambda d: d.name,
)
def test_a_row_does_not_depend_on_the_others(model: TinyModel, drafter: SJD) -> None:
    seeds, labels = [11, 12, 13, 14], [0, 1, 2, 0]
    together = generate(model, labels, drafter, seed=seeds, guidance_scale=2.0)
    for row in range(4):
        alone = generate(model, labels[row : row + 1], drafter, seed=seeds[row : row + 1], guidance_scale=2.0)
        assert torch.equal(alone.tokens[0], together.tokens[row])


def code_of(tokens: Tensor, size: int) -> Tensor:
    return (tokens * size ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(1)


@pytest.mark.default_cells("SCD gumbel(4) + tree 2x3")
@pytest.mark.parametrize(
    "drafter",
    [SCD(4, "gumbel", "random"), SCD(4, "gumbel", "up"), SCD(4, "gumbel", tree=TREE), SCD(3, "maximal", "mix")],
    ids=lambda d: d.name,
)
def test_sampled_images_have_the_targets_distribution(drafter: SJD) -> None:
    rows, model = 60_000, TableModel(seed=3)
    tokens = generate(model, [0] * rows, drafter, seed=5).tokens
    seen = torch.bincount(code_of(tokens, 4), minlength=256)
    assert chi_square(seen, model.joint() * rows).passed


@pytest.mark.default_cells("SCD gumbel(4) repeat_frame")
@pytest.mark.parametrize(
    "drafter",
    [SJD(4, "frame"), SCD(4, init="repeat_frame"), SCD(3, "maximal", "frame"), SCD(4, init="frame", tree=TREE)],
    ids=lambda d: d.name,
)
def test_sampled_videos_have_the_targets_distribution(drafter: SJD) -> None:
    rows, model = 40_000, TableModel(Geometry(((1, 2),), frames=2), codes=3, seed=3)
    tokens = generate(model, [0] * rows, drafter, seed=5).tokens
    seen = torch.bincount(code_of(tokens, 3), minlength=81)
    assert chi_square(seen, model.joint() * rows).passed


def test_copies_take_the_newest_known_code_but_at_the_start_of_a_row() -> None:
    geometry = Geometry(((3, 4),), row_end=16)  # places 4, 9 and 14 end the rows
    sources = sources_of(geometry, torch.device("cpu"))
    window = JacobiWindow.of(torch.tensor([1, 0]), torch.tensor([1, 4]), 8, geometry.total)
    first, second = sources.near("repeat_left", window).tolist()
    assert first[1:] == [2, 2, 5, 2, 2, 2, 2]  # place 5 starts a row and has no neighbour; forced ones are pinned later
    assert second[4:] == [5, 3, 3, 3]  # the newest known place is forced: the one before it


def test_noise_belongs_to_positions(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = JacobiState._noise

    def compared(self: JacobiState, scores: Tensor, position: Tensor, keys: Keys) -> Tensor:
        noise, live = kept(self, scores, position, keys), position < model.geometry.total - 1
        assert torch.equal(noise[live], keys.gumbel_at(position, scores.shape[-1])[live])
        return noise

    monkeypatch.setattr(JacobiState, "_noise", compared)
    for window in (2, 5, 30):
        generate(model, [0, 1, 2], SCD(window), seed=3)


@pytest.mark.parametrize("geometry", (Geometry.square(8), Geometry(((4, 4),), frames=4)), ids=("image", "video"))
def test_coupled_drafts_need_fewer_passes(geometry: Geometry) -> None:
    model = TinyModel(geometry, sharp=0.7)
    passes = [
        generate(model, list(range(5)) * 2, drafter, seed=1).stats.row_passes
        for drafter in (None, SJD(16), SCD(16, "maximal"), SCD(16, "gumbel"))
    ]
    assert passes[0] > 1.5 * passes[1] and passes[1] > passes[2] and passes[1] > passes[3]


def test_names() -> None:
    assert SJD().name == "SJD(16)" and SCD().name == "SCD gumbel(32)"
    assert SJD(8, "up", "maximal", Proactive()).name == "SCD maximal(8) up + tree 3x4"


@pytest.mark.parametrize(
    ("wrong", "message"),
    (
        (dict(window=1), "window: expected at least 2, got 1"),
        (dict(init="best"), "init: expected 'random'"),
        (dict(coupling="shared"), "coupling: expected 'maximal', 'gumbel' or None, got 'shared'"),
        (dict(tree=(3, 4)), "tree: expected None or a Proactive, got tuple"),
    ),
)
def test_wrong_settings_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SJD(**wrong)


def test_wrong_trees_are_refused() -> None:
    with pytest.raises(ValueError, match="depth: expected at least 1, got 0"):
        Proactive(0, 4)
    with pytest.raises(ValueError, match="drawn: expected"):
        Proactive(drawn="none")
    with pytest.raises(ValueError, match="got categorical with_replacement"):
        generate(TinyModel(), [0], SJD(4, tree=Proactive(drawn="with_replacement")), "recursive")
