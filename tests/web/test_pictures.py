"""Two lanes of a picture: every cell is filled once, by whom the marks say, and both are the public calls'."""

from __future__ import annotations

import numpy as np
import pytest

import mmspec  # noqa: E402
from mmspec.evaluate.continuous.decodings import decoding_of as vectors_of
from mmspec.evaluate.continuous.resources import open_continuous
from mmspec.evaluate.image.decodings import decoding_of
from mmspec.evaluate.image.resources import ImageResources
from mmspec.web.lanes.image import ImageLane, ImageLaneRequest, image_lanes, layout, same_tokens
from mmspec.web.lanes.markup import figures
from mmspec.web.lanes.pixels import difference, enlarged

gradio = pytest.importorskip("gradio", reason="needs the extra `web`")

from mmspec.web.tabs.continuous import OFFERED_DECODINGS, offered  # noqa: E402
from mmspec.web.tabs.image import OFFERED  # noqa: E402
from tests.evaluate.tiny_images import tiny_image_zoo, use_tiny_images  # noqa: E402

DECODINGS = [(law, name) for law, names in OFFERED.items() for name in names]
FILLED = ("accepted", "corrected", "own")


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> ImageResources:
    use_tiny_images(monkeypatch)
    return ImageResources(tiny_image_zoo()["t2i"], "tiny", "t2i")


def wish(resources: ImageResources, name: str, temperature: float = 1.0, seed: int = 5) -> ImageLaneRequest:
    drafter, rule = decoding_of(name, resources)
    plain = {"temperature": temperature}
    (given,) = resources.given(["red circle"])
    return ImageLaneRequest(given, plain, {**plain, "decoding": drafter, "rule": resources.rule(rule)}, name, seed)


def last(pipe: object, asked: ImageLaneRequest) -> tuple[ImageLane, ImageLane]:
    *_, pair = image_lanes(pipe, asked, 60)
    return pair


def check_cells(lane: ImageLane, total: int) -> None:
    """Every cell once; accepted ones were drafted in that round and are as many as the statistics say."""
    filled = [cell for one in lane.rounds for name in FILLED for cell in one.marks[name]]
    assert sorted(filled) == list(range(total))
    for one in lane.rounds:
        drafted = set(one.marks["drafted"])
        assert set(one.marks["accepted"]) <= drafted and set(one.marks["corrected"]) <= drafted
        assert not drafted & set(one.marks["own"])
        assert len(one.marks["accepted"]) == one.kept


@pytest.mark.parametrize(("law", "name"), DECODINGS)
def test_every_cell_is_filled_once_and_marked_by_who_filled_it(codes, law: str, name: str) -> None:
    plain, fast = last(codes.pipeline, wish(codes, name))
    total = codes.pipeline.model.geometry.total
    for lane in (plain, fast):
        check_cells(lane, total)
    assert all(not one.marks["accepted"] and not one.marks["drafted"] for one in plain.rounds)
    assert fast.stats.exact == (law == "exact")


@pytest.mark.parametrize(("law", "name"), DECODINGS)
def test_both_pictures_are_the_public_calls(codes, law: str, name: str) -> None:
    asked = wish(codes, name)
    plain, fast = last(codes.pipeline, asked)
    for lane, how in ((plain, asked.plain), (fast, asked.fast)):
        out = codes.pipeline([asked.given], seed=[asked.seed], **how)
        assert np.array_equal(np.asarray(out.images[0]), np.asarray(lane.picture))
        assert bool((out.tokens == lane.tokens).all())
        told = figures(lane)
        assert told["target_passes"] == out.stats.target_passes and told["exact"] == out.stats.exact
        assert told["accept_length"] == round(out.stats.accept_length, 3)


def test_greedy_exact_pictures_are_identical_and_said_to_be(codes) -> None:
    plain, fast = last(codes.pipeline, wish(codes, "scd", 0.0))
    assert same_tokens(plain, fast)
    sentence, shown = difference(plain.picture, fast.picture)
    assert "identical" in sentence and shown is None


def test_one_changed_pixel_is_not_identical() -> None:
    from PIL import Image

    one = Image.new("RGB", (8, 8), (10, 20, 30))
    other = one.copy()
    other.putpixel((3, 4), (10, 21, 30))
    sentence, shown = difference(one, other)
    assert "identical" not in sentence and "1 of 64 pixels differ, by at most 1 of 255" in sentence
    assert np.asarray(shown)[4, 3] == 255 and int((np.asarray(shown) > 0).sum()) == 1
    assert "different sizes" in difference(one, enlarged(one))[0]


def test_a_lane_that_is_too_slow_has_no_picture_and_is_not_the_same(codes) -> None:
    *_, (plain, fast) = image_lanes(codes.pipeline, wish(codes, "scd"), 1e-9)
    assert plain.picture is None and plain.stopped and plain.ended and not same_tokens(plain, fast)


def test_cells_lie_where_the_geometry_says(codes) -> None:
    rows, columns, place = layout(codes.pipeline)
    assert sorted(map(place, range(codes.pipeline.model.geometry.total))) == [
        (r, c) for r in range(rows) for c in range(columns)
    ]


def test_the_page_offers_decodings_whose_weights_are_here() -> None:
    names = {name for _, name in offered("car", "exact")}
    assert "car-head" in names and ({"small", "reflection"} <= names) == ("car/draft" in mmspec.zoo.names())
    assert {name for _, name in offered("mar", "relaxed")} == {"patch", "truncate"}


HERE = [name for name, way in OFFERED_DECODINGS.items() if way.is_here]


@pytest.mark.parametrize("name", HERE)
def test_vectors_fill_every_cell_once_too(name: str) -> None:
    """On the zoo's own models, few denoising steps."""
    way = OFFERED_DECODINGS[name]
    resources = open_continuous(way.model)
    plain = {"temperature": 1.0, **({"num_iter": 8} if way.model == "mar" else {})}
    (given,) = resources.given(["red circle"])
    fast = plain | vectors_of(way.decoding, resources, way.wishes)
    one, other = last(resources.pipeline, ImageLaneRequest(given, plain, fast, way.title, 1))
    for lane in (one, other):
        check_cells(lane, resources.total)
    assert other.stats.exact == (way.law == "exact")
    if name == "cspd-0":
        assert same_tokens(one, other)
        assert any(mark.marks["accepted"] or mark.marks["corrected"] for mark in other.rounds)


@pytest.mark.parametrize("name", [name for name in ("patch", "car-head", "small") if name in HERE])
def test_vectors_are_the_public_calls(name: str) -> None:
    way = OFFERED_DECODINGS[name]
    resources = open_continuous(way.model)
    (given,) = resources.given(["blue star"])
    plain = {"temperature": 1.0, **({"num_iter": 8} if way.model == "mar" else {})}
    asked = ImageLaneRequest(
        given,
        plain,
        plain | vectors_of(way.decoding, resources, way.wishes),
        way.title,
        4,
    )
    for lane, how in zip(last(resources.pipeline, asked), (asked.plain, asked.fast), strict=True):
        out = resources.pipeline([given], seed=[4], **how)
        assert np.array_equal(np.asarray(out.images[0]), np.asarray(lane.picture))
        told = figures(lane)
        assert told["target_passes"] == out.stats.target_passes and told["exact"] == out.stats.exact
        assert told["accept_length"] == round(out.stats.accept_length, 3)
