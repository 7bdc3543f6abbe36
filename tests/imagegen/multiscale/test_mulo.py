"""Multi-scale drafts: the ends of the threshold, what falls, what is fed again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import chains
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi import SJD
from mmspec.imagegen.multiscale import MuLo
from mmspec.imagegen.multiscale.local_threshold import LocalThreshold, code_pools
from mmspec.imagegen.multiscale.low_resolution import draft_low_resolution
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.imagegen.target import Guidance, Warp
from tests.imagegen.tiny import TinyModel, generate

PLAIN = (Geometry(((4, 6),)), Geometry(((2, 3),)))
ENDS = (Geometry(((4, 6),), row_end=16, tail=(17,)), Geometry(((2, 3),), row_end=16))


class Repeat:
    """Every code four times."""

    scale = 2

    def up(self, codes: Tensor) -> Tensor:
        return codes.repeat_interleave(2, 1).repeat_interleave(2, 2)

    def down(self, codes: Tensor) -> Tensor:
        return codes[:, ::2, ::2]


class Given(Repeat):
    """Candidates that are written down."""

    def __init__(self, codes: Tensor):
        self.codes = codes

    def up(self, codes: Tensor) -> Tensor:
        return self.codes[:, : 2 * codes.shape[1]]


def pair(geometries: tuple[Geometry, Geometry]) -> tuple[TinyModel, ImagePipeline]:
    return TinyModel(geometries[0], sharp=1.5), ImagePipeline(TinyModel(geometries[1], sharp=1.5, seed=1))


@pytest.mark.covering
@pytest.mark.parametrize("geometries", (PLAIN, ENDS), ids=("plain", "row ends"))
@pytest.mark.parametrize("rows", (None, 1))
@pytest.mark.parametrize("stale", (False, True))
def test_a_threshold_nothing_reaches_is_plain_decoding(geometries, rows: int | None, stale: bool) -> None:
    large, small = pair(geometries)
    for temperature in (0.0, 1.0):
        settings = dict(temperature=temperature, seed=4, guidance_scale=2.0)
        plain = generate(large, [0, 1, 2], **settings)
        out = generate(large, [0, 1, 2], MuLo(small, Repeat(), 2.0, rows=rows, stale=stale), **settings)
        if not temperature or geometries is PLAIN:  # forced values take plain decoding a round each
            assert torch.equal(out.tokens, plain.tokens)
        assert out.stats.target_passes == len(large.geometry.code_index)
        assert not out.stats.exact and out.stats.emitted == plain.stats.emitted


def test_a_threshold_of_zero_keeps_every_candidate() -> None:
    large, small = pair(PLAIN)
    candidates = torch.randint(16, (3, 4, 6), generator=torch.Generator().manual_seed(0))
    for rows, passes in ((None, 2), (1, 3)):
        out = generate(large, [0, 1, 2], MuLo(small, Given(candidates), 0.0, rows=rows), seed=1)
        assert torch.equal(out.tokens[:, 1:], candidates.flatten(1)[:, 1:])  # the first value is the target's own
        assert out.stats.target_passes == passes


def test_the_targets_own_image_is_accepted() -> None:
    """Greedy candidates that are the plain image itself fall nowhere, and one wrong code makes a hole of its radius."""
    large, small = pair(PLAIN)
    plain = generate(large, [0], temperature=0).tokens.view(1, 4, 6)
    kept = generate(large, [0], MuLo(small, Given(plain), 1e-3, k=1), temperature=0)
    assert torch.equal(kept.tokens.view(1, 4, 6), plain) and kept.stats.target_passes == 2


def drafted(pooled: Tensor) -> tuple[Draft, Evidence]:
    """A draft of a 3 x 4 image whose candidate at place i > 0 gets probability pooled[i]; code 1 everywhere."""
    places = torch.arange(12)
    law = torch.stack((1 - pooled, pooled), -1)[None].roll(-1, 1)  # what node i says is about place i + 1
    draft = Draft(
        torch.ones(1, 12, dtype=torch.long), chains((11,)), Law("none"), index=places[None], open=places[None] < 11
    )
    return draft, Evidence(law.log().float())


@pytest.mark.parametrize(("radius", "fallen"), ((0, [6]), (1, [6, 7, 9, 10, 11]), (None, [6, 7, 8, 9, 10, 11])))
def test_a_failure_rejects_its_neighbourhood(radius: int | None, fallen: list[int]) -> None:
    pooled = torch.full((12,), 0.5)
    pooled[6] = 0.05
    draft, evidence = drafted(pooled)
    rule = LocalThreshold(0.1, code_pools(torch.eye(2), 1), radius, Geometry(((3, 4),)))
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    verdict = rule.select(weights, torch.zeros(1, 12), draft)
    assert (~verdict.keep[0]).nonzero()[:, 0].tolist() == fallen
    verdict = rule.resample(evidence, draft, weights, verdict, Keys.of(0, 1))
    assert (verdict.correction[0] >= 0).nonzero()[:, 0].tolist() == [5]  # only the first failure is drawn at once


def test_pools_hold_the_code_itself_and_add_up() -> None:
    book = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert code_pools(book, 3)[:, 0].tolist() == list(range(6)) and code_pools(book, 6).sort(1).values[
        2
    ].tolist() == list(range(6))
    draft, evidence = drafted(torch.full((12,), 0.05))
    whole = LocalThreshold(0.99, code_pools(torch.eye(2), 2), 1, Geometry(((3, 4),)))
    assert bool((whole.weigh(evidence, draft).threshold == 1).all())
    with pytest.raises(ValueError, match="expected 1 to 6"):
        code_pools(book, 7)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("geometries", (PLAIN, ENDS), ids=("plain", "row ends"))
@pytest.mark.parametrize("settings", (dict(radius=0), dict(radius=1, rows=1), dict(radius=0, rows=1, stale=True)))
def test_images_are_filled_islands_side_by_side(geometries, settings: dict) -> None:
    large, small = pair(geometries)
    decoding = MuLo(small, Repeat(), 0.08, k=2, **settings)
    out = generate(large, [0, 1, 2], decoding, seed=6, guidance_scale=2.0)
    assert out.stats.emitted == [large.geometry.total] * 3 and not out.errors and int(out.tokens.max()) < 16
    assert sum(a for line in out.stats.accepted for a in line if a) > 0
    # both rows of the low-resolution picture are drawn either way, by three passes each
    assert out.stats.target_passes <= 24 and out.stats.drafter_passes == (small.model.geometry.total)
    again = generate(large, [0, 1, 2], decoding, seed=6, guidance_scale=2.0)
    assert torch.equal(out.tokens, again.tokens)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("scale", (1.0, 2.0))
@pytest.mark.parametrize("rows", (None, 1))
def test_a_row_does_not_depend_on_the_others(rows: int | None, scale: float) -> None:
    large, small = pair(PLAIN)
    decoding, labels = MuLo(small, Repeat(), 0.12, k=2, radius=1, rows=rows), [0, 1, 2, 3, 4, 0]
    options = dict(guidance_scale=scale)
    together = generate(large, labels, decoding, seed=list(range(6)), **options).tokens
    alone = [generate(large, [label], decoding, seed=[seed], **options).tokens for seed, label in enumerate(labels)]
    assert torch.equal(together, torch.cat(alone))


def test_accepted_codes_are_fed_again_unless_stale() -> None:
    """When the second block is judged, keys and values of the first are those of one pass over what stands there."""
    large, small = pair(PLAIN)
    candidates = torch.randint(16, (2, 4, 6), generator=torch.Generator().manual_seed(3))
    seen = {}

    class Watching(MuLo):
        def open(self, target):
            seen["target"] = target
            return super().open(target)

    for stale in (False, True):
        generate(large, [0, 1], Watching(small, Given(candidates), 0.05, k=1, radius=0, rows=1, stale=stale), seed=2)
        target = seen["target"]
        made = target.cache.keys[:, :, :, target.prompt : target.prompt + 12].clone()
        draft = Draft(target.values[:, :12], chains((0,) * 12), Law("none"), index=torch.arange(12).expand(2, -1))
        target.score(draft)
        fresh = target.cache.keys[:, :, :, target.prompt : target.prompt + 12]
        assert torch.allclose(made, fresh, atol=1e-5) is not stale


@pytest.mark.parametrize("geometry", (PLAIN[1], ENDS[1]), ids=("plain", "row ends"))
@pytest.mark.parametrize("drafter", (None, SJD(3)), ids=("plain", "jacobi"))
def test_the_drafter_goes_on_behind_given_rows(geometry: Geometry, drafter: SJD | None) -> None:
    model = TinyModel(geometry, sharp=1.5)
    settings = dict(guidance=Guidance(2.0), warp=Warp(0.0), keys=Keys.of(0, 2), drafter=drafter)
    plain = generate(model, [0, 1], temperature=0, guidance_scale=2.0).tokens.view(2, 2, 3)
    empty = plain[:, :0]
    for start in (empty, plain[:, :1]):
        rows, _ = draft_low_resolution(model, torch.tensor([0, 1]), before=start, rows=1, **settings)
        assert torch.equal(rows, plain[:, start.shape[1] : start.shape[1] + 1])
    whole, passes = draft_low_resolution(model, torch.tensor([0, 1]), before=empty, rows=2, **settings)
    assert torch.equal(whole, plain) and passes <= geometry.total


def test_wrong_settings_and_pairs_are_refused() -> None:
    large, small = pair(PLAIN)
    for wrong in (dict(threshold=-1), dict(k=0), dict(radius=-1), dict(rows=0)):
        with pytest.raises(ValueError, match="expected"):
            MuLo(small, Repeat(), **wrong)
    upwards = SimpleNamespace(scale=2, up=Repeat().up)
    with pytest.raises(ValueError, match="PixelUpsampler"):
        MuLo(small, upwards, rows=1)
    apart = MuLo(small, upwards, 0.1, rows=1, downsampler=Repeat())
    together = MuLo(small, Repeat(), 0.1, rows=1)
    assert torch.equal(generate(large, [0], apart, seed=1).tokens, generate(large, [0], together, seed=1).tokens)
    with pytest.raises(ValueError, match="divided by 2"):
        generate(large, [0], MuLo(ImagePipeline(large), Repeat()))
    with pytest.raises(ValueError, match="a single grid"):
        generate(TinyModel(Geometry(((2, 2), (4, 6)))), [0], MuLo(small, Repeat()))
    with pytest.raises(
        ValueError, match="geometry: expected a single frame per model, got 2 and 1; use models of images"
    ):
        generate(TinyModel(Geometry(((4, 6),), frames=2)), [0], MuLo(small, Repeat()))
