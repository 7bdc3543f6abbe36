"""What all tabs share: errors are one sentence, the page is told at a pace, and no interface is open by accident."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

gradio = pytest.importorskip("gradio", reason="needs the extra `web`")

from mmspec.web import app as page  # noqa: E402
from mmspec.web.limits import Limits, RefusedRequest  # noqa: E402
from mmspec.web.model_cache import ModelCache  # noqa: E402
from mmspec.web.tabs.controls import ALONE, PageContext, handler, paced, small_handler  # noqa: E402


def run(work) -> tuple[list[tuple], str | None]:
    """What a handler yields, and the error that its visitor gets."""
    yielded = []
    try:
        for one in handler(["", None])(work)():
            yielded.append(one)
    except gradio.Error as error:
        return yielded, str(error)
    return yielded, None


def test_successful_work_passes_unchanged() -> None:
    def work() -> Iterator[tuple]:
        yield "a", 1, 2
        yield "b", 3, 4

    assert run(work) == ([("a", 1, 2), ("b", 3, 4)], None)


def test_a_refusal_is_the_status_line_and_the_error_and_clears_the_result() -> None:
    def work() -> Iterator[tuple]:
        yield "a", 1, 2
        raise RefusedRequest("seed: expected <1>,\\n got 2, change it")

    yielded, error = run(work)
    assert yielded[0] == ("a", 1, 2) and yielded[1][1:] == ("", None)
    assert "&lt;1&gt;" in yielded[1][0] and 'data-state="refused"' in yielded[1][0]
    assert "seed: expected <1>," in error


def test_an_internal_error_is_logged_and_reported_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> Iterator[tuple]:
        yield "a", 1, 2
        raise RuntimeError("secret")

    with caplog.at_level(logging.ERROR):
        yielded, error = run(work)
    assert "secret" in caplog.text and "secret" not in error and "secret" not in yielded[-1][0]
    assert error.count("expected") == 1


def test_the_first_and_the_last_of_fast_updates_are_reported() -> None:
    assert list(paced(range(1000), every=60)) == [0, 999]
    assert list(paced([], every=60)) == [] and list(paced([7], every=60)) == [7]
    assert list(paced(range(4), every=0)) == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("uploads")
    return page.build(PageContext(ModelCache(), Limits(waiting=5), folder / "runs", folder)).get_config_file()


def test_decoding_handlers_have_exclusive_use_of_the_machine_and_a_name(config: dict) -> None:
    public = {one["api_name"]: one for one in config["dependencies"] if one["api_visibility"] == "public"}
    assert set(public) - {"video"} == {"caption", "image", "continuous", "pareto"}
    app = page.build(PageContext(ModelCache(), Limits(), Path("runs"), Path("uploads")))
    for fn in app.fns.values():
        if fn.api_name in set(public) - {"pareto"}:
            assert (fn.concurrency_id, fn.concurrency_limit) == (ALONE["concurrency_id"], 1), fn.api_name


def test_no_handler_leaves_its_values_to_gradio_which_rounds_them_and_logs_a_traceback() -> None:
    app = page.build(PageContext(ModelCache(), Limits(), Path("runs"), Path("uploads")))
    assert [fn.api_name for fn in app.fns.values() if fn.inputs and fn.preprocess] == []


def test_the_gate_knows_the_inputs_of_every_handler() -> None:
    app = page.build(PageContext(ModelCache(), Limits(), Path("runs"), Path("uploads")))
    handlers = page.handlers_of(app)
    names = {app.fns[number].api_name: inputs for number, inputs in handlers.items()}
    assert [name.name for name in names["image"]] == ["prompt", "decoding", "law", "temperature", "seed"]
    assert [name.name for name in names["caption"] if name.is_file] == ["file"]
    assert all(len(inputs) == len(app.fns[number].inputs) for number, inputs in handlers.items())


def test_a_dependent_control_reports_one_error_and_logs_internal_errors(caplog) -> None:
    def refused() -> None:
        raise RefusedRequest("law: expected exact, got another, change it")

    def broken() -> None:
        raise RuntimeError("secret")

    for work, is_logged in ((refused, False), (broken, True)):
        with pytest.raises(gradio.Error, match="expected") as caught:
            small_handler(work)()
        assert not caught.value.print_exception and "secret" not in str(caught.value)
        assert ("secret" in caplog.text) == is_logged
    assert small_handler(lambda number: number + 1)(2) == 3


def test_the_page_sends_nothing_and_shows_no_link_out(config: dict) -> None:
    assert config["analytics_enabled"] is False
    for font in ("font", "font_mono"):
        assert "googleapis" not in str(getattr(page.theme(), font))


def test_nothing_is_loaded_before_someone_asks() -> None:
    model_cache = ModelCache()
    page.build(PageContext(model_cache, Limits(), Path("runs"), Path("uploads")))
    assert model_cache._models == {}


def test_a_model_is_made_once_however_many_ask() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model_cache, made = ModelCache(), []
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: model_cache.once("a", lambda: made.append(1) or object()), range(32)))
    assert len(made) == 1 and len(set(map(id, found))) == 1


def test_every_tab_has_the_request_then_the_result_then_closed_settings(config: dict) -> None:
    """In the order of the document, which a phone shows."""
    places = [part["props"].get("elem_id") for part in config["components"]]
    for tab in ("vlm", "image", "continuous", "video"):
        order = [places.index(f"{tab}-{part}") for part in ("run", "headline", "lanes", "settings")]
        assert order == sorted(order)
        assert config["components"][order[-1]]["props"]["open"] is False


def test_defaults_are_methods_that_were_faster_here(config: dict) -> None:
    by_label = {}
    for part in config["components"]:
        by_label.setdefault(part["props"].get("label"), []).append(part["props"].get("value"))
    assert by_label["Decoding of the fast lane"] == ["scd", "head:window=32", "scd:window=64"]
    assert by_label["Model"] == ["car", "video/tokens"] and by_label["Drafter"] == ["dspark"]
    assert by_label["Temperature (0 is greedy)"] == [0, 1, 1] and by_label["Temperature"] == [1]


def test_the_picture_is_uploaded_as_a_picture_that_the_gate_checks(tmp_path: Path) -> None:
    app = page.build(PageContext(ModelCache(), Limits(), tmp_path, tmp_path))
    (check,) = [fn for fn in app.fns.values() if fn.name == "check"]
    assert [type(part).__name__ for part in check.inputs] == ["Image"]
    (tmp_path / "fake.png").write_bytes(b"<svg></svg>")
    file, line, *cleared = check.fn({"path": str(tmp_path / "fake.png")})
    assert file is None and 'data-state="refused"' in line and cleared[0] == ""
