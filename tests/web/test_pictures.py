"""Two lanes of a picture: every cell is filled once, by whom the marks say, and both are the public calls'."""

from __future__ import annotations

import numpy as np
import pytest

import mmspec
from mmspec.run.continuous_models import open_continuous
from mmspec.run.image_models import ImageResources
from mmspec.web.lanes.cells import layout
from mmspec.web.lanes.decodings import offered
from mmspec.web.lanes.markup import figures
from mmspec.web.lanes.pictures import (
    PictureLane,
    PictureRequest,
    identical,
    image_request,
    picture_lanes,
)
from mmspec.web.lanes.pixels import difference, enlarged
from tests.evaluate.tiny_images import tiny_image_zoo, use_tiny_images

LAWS = ("exact", "relaxed")
DECODINGS = [(law, name) for law in LAWS for name in offered("t2i", law)]
FILLED = ("accepted", "corrected", "own")


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> ImageResources:
    use_tiny_images(monkeypatch)
    return ImageResources(tiny_image_zoo()["t2i"], "tiny", "t2i")


def wish(resources: ImageResources, name: str, temperature: float = 1.0, seed: int = 5) -> PictureRequest:
    return image_request(resources, "red circle", name, {"temperature": temperature}, seed)


def last(asked: PictureRequest) -> tuple[PictureLane, PictureLane]:
    *_, pair = picture_lanes(asked, 60)
    return pair


def check_cells(lane: PictureLane, total: int) -> None:
    """Every cell once; accepted ones were drafted in that round and are as many as the statistics say."""
    filled = [cell for round_ in lane.rounds for name in FILLED for cell in round_.marks[name]]
    assert sorted(filled) == list(range(total))
    for round_ in lane.rounds:
        drafted = set(round_.marks["drafted"])
        assert set(round_.marks["accepted"]) <= drafted and set(round_.marks["corrected"]) <= drafted
        assert not drafted & set(round_.marks["own"])
        assert len(round_.marks["accepted"]) == round_.accepted


@pytest.mark.parametrize(("law", "name"), DECODINGS)
def test_every_cell_is_filled_once_and_marked_by_who_filled_it(codes, law: str, name: str) -> None:
    plain, fast = last(wish(codes, name))
    total = codes.pipeline.model.geometry.total
    for lane in (plain, fast):
        check_cells(lane, total)
    assert all(not round_.marks["accepted"] and not round_.marks["drafted"] for round_ in plain.rounds)
    assert fast.stats.exact == (law == "exact")


@pytest.mark.parametrize(("law", "name"), DECODINGS)
def test_both_pictures_are_the_public_calls(codes, law: str, name: str) -> None:
    asked = wish(codes, name)
    plain, fast = last(asked)
    for lane, how in ((plain, {}), (fast, asked.fast)):
        out = codes.pipeline([asked.condition], seed=[asked.seed], **asked.plain, **how)
        assert np.array_equal(np.asarray(out.images[0]), np.asarray(lane.output))
        assert bool((out.tokens == lane.values).all())
        told = figures(lane)
        assert told["target_passes"] == out.stats.target_passes and told["exact"] == out.stats.exact
        assert told["accept_length"] == round(out.stats.accept_length, 3)


def test_greedy_exact_pictures_are_identical_and_reported_as_such(codes) -> None:
    plain, fast = last(wish(codes, "scd", 0.0))
    assert identical(plain, fast)
    sentence, shown = difference(plain.output, fast.output)
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
    *_, (plain, fast) = picture_lanes(wish(codes, "scd"), 1e-9)
    assert plain.output is None and plain.stopped and plain.ended and not identical(plain, fast)


def test_cells_lie_where_the_geometry_says(codes) -> None:
    rows, columns, place = layout(codes.pipeline)
    assert sorted(map(place, range(codes.pipeline.model.geometry.total))) == [
        (r, c) for r in range(rows) for c in range(columns)
    ]


def test_the_page_offers_decodings_whose_weights_are_here() -> None:
    small = {"small:rule=reflection", "small:rule=gaussian_block"}
    assert "head:window=32" in offered("car", "exact")
    assert (small <= set(offered("car", "exact"))) == ("car/draft" in mmspec.zoo.names())
    assert list(offered("mar", "exact")) == ["head:window=32", "cspd:tolerance=0"]
    assert set(offered("mar", "relaxed")) == {
        "cspd:window=patch",
        "cspd:window=truncate",
        "stack",
        "scheduled:annealing=anneal,lazy=lazy",
    }
    assert not offered("car", "relaxed")


HERE = [
    pytest.param(model, law, text, marks=() if text == "cspd:tolerance=0" else pytest.mark.whole)
    for model in ("mar", "car")
    for law in LAWS
    for text in offered(model, law)
]


def vectors(model: str, text: str, seed: int) -> PictureRequest:
    """A request to the zoo's own model, of few denoising steps."""
    plain = {"temperature": 1.0, **({"num_iter": 8} if model == "mar" else {})}
    return image_request(open_continuous(model), "red circle", text, plain, seed)


@pytest.mark.parametrize(("model", "law", "text"), HERE)
def test_vectors_fill_every_cell_once_too(model: str, law: str, text: str) -> None:
    asked = vectors(model, text, 1)
    one, other = last(asked)
    for lane in (one, other):
        check_cells(lane, layout(asked.pipe)[0] ** 2)
    assert other.stats.exact == (law == "exact")
    if text == "cspd:tolerance=0":
        assert identical(one, other)
        assert any(mark.marks["accepted"] or mark.marks["corrected"] for mark in other.rounds)


@pytest.mark.whole
@pytest.mark.parametrize(("model", "law", "text"), HERE)
def test_vectors_are_the_public_calls(model: str, law: str, text: str) -> None:
    asked = vectors(model, text, 4)
    for lane, how in zip(last(asked), ({}, asked.fast), strict=True):
        out = asked.pipe([asked.condition], seed=[4], **asked.plain, **how)
        assert np.array_equal(np.asarray(out.images[0]), np.asarray(lane.output))
        told = figures(lane)
        assert told["target_passes"] == out.stats.target_passes and told["exact"] == out.stats.exact
        assert told["accept_length"] == round(out.stats.accept_length, 3)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("t2i", "scd"),
        pytest.param("t2i", "lantern", marks=pytest.mark.whole),
        pytest.param("car", "head:window=32", marks=pytest.mark.whole),
    ],
)
def test_the_copied_program_draws_the_picture_of_the_fast_lane(model: str, text: str, tmp_path, monkeypatch) -> None:
    from PIL import Image

    from mmspec.run.image_models import zoo_resources

    resources = zoo_resources(model) if model == "t2i" else open_continuous(model)
    prompt = "a large yellow heart" if model == "t2i" else "yellow heart"
    request = image_request(resources, prompt, text, {"temperature": 1.0}, 2)
    _, fast = last(request)
    monkeypatch.chdir(tmp_path)
    exec(request.code, {})
    assert np.array_equal(np.asarray(Image.open("image.png")), np.asarray(fast.output))


def test_words_that_the_model_does_not_know_are_listed() -> None:
    from mmspec.run.image_models import zoo_resources

    resources = zoo_resources("t2i")
    request = image_request(resources, "a red elephant on a zeppelin background", "scd", {}, 0)
    assert request.unknown == ("elephant", "zeppelin")
    assert image_request(resources, "a large yellow heart", "scd", {}, 0).unknown == ()
