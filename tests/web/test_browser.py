"""The page in Chromium: what a visitor does with it, both themes, a phone, and the keyboard."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra `web`")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

from mmspec.run.scenes import demo_scenes  # noqa: E402
from mmspec.zoo.world.render import render  # noqa: E402
from tests.evaluate.report.kept import grid, written  # noqa: E402
from tests.web.hostile import SVG, png_bomb  # noqa: E402
from tests.web.served import app, slow  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SHOTS = os.environ.get("MMSPEC_SCREENSHOTS")  # a folder to look at; none by default
TEXT_CONTRAST = 4.5


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as started:
        try:
            found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"needs Chromium: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("runs")
    written(runs / "one", grid())
    with app(runs, characters=200) as found:
        yield found


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "scene.png"
    render(demo_scenes()[0]).save(path)
    return path


class Visitor:
    """A page of its own, whose console and requests are listened to."""

    def __init__(self, browser, address: str, theme: str = "light", width: int = 1280, height: int = 900):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", lambda one: one.type == "error" and self.said.append(one.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda one: self._went(one.url, address))
        self.page.set_default_timeout(120_000)
        self.page.goto(f"{address}?__theme={theme}")
        self.page.get_by_role("tab", name="Captions").wait_for()

    def _went(self, url: str, address: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            self.elsewhere.append(url)

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name, exact=True).click()

    def state(self, part: str, state: str) -> None:
        self.page.locator(f"#{part}-status [data-state={state}]").wait_for()

    def upload(self, path: Path) -> None:
        self.page.locator("#vlm-picture input[type=file]").set_input_files(str(path))
        self.page.locator("#vlm-picture img").wait_for()

    def settings(self, part: str) -> None:
        """Open the settings of a tab."""
        self.page.locator(f"#{part}-settings button").first.click()

    def shot(self, name: str) -> None:
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)

    def quiet(self) -> None:
        """Nothing went wrong and nothing came from elsewhere."""
        assert self.said == [] and self.elsewhere == []

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def visit(browser, address: str) -> Iterator[object]:
    made: list[Visitor] = []

    def enter(**how: object) -> Visitor:
        made.append(Visitor(browser, address, **how))
        return made[-1]

    yield enter
    for entry in made:
        entry.close()


def test_a_picture_is_uploaded_questioned_and_replayed(visit, picture: Path) -> None:
    one = visit()
    one.upload(picture)
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    lanes = one.page.locator("#vlm-lanes .mm-lane")
    assert lanes.count() == 2
    texts = [lanes.nth(i).locator(".mm-text").text_content() for i in range(2)]
    assert texts[0] == texts[1] and len(texts[0]) > 100
    assert "Identical" in one.page.locator("#vlm-headline").text_content()
    assert (
        lanes.nth(1).locator(".mm-text .accepted").count() > 20
        and lanes.nth(0).locator(".mm-text .accepted").count() == 0
    )
    assert lanes.nth(1).locator(".mm-strip i").count() < lanes.nth(0).locator(".mm-strip i").count() / 3
    one.page.locator("#vlm-lanes [data-playing=no]").wait_for()
    one.shot("captions-light")
    one.quiet()


def test_a_replay_is_at_true_speed_and_ends_with_everything_shown(visit, picture: Path) -> None:
    one = visit()
    one.upload(picture)
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    root = one.page.locator("#vlm-lanes [data-replay]")
    one.page.locator("#vlm-lanes [data-playing=no]").wait_for()
    lasts = float(root.get_attribute("data-replay"))
    one.page.locator("#vlm-lanes .mm-pace").select_option("0.25")
    took = one.page.evaluate(
        """async () => {
            const root = document.querySelector("#vlm-lanes [data-replay]"), began = performance.now();
            root.querySelector(".mm-replay").click();
            const later = root.querySelectorAll(".mm-later").length;
            while (root.dataset.playing !== "no") await new Promise(requestAnimationFrame);
            return [later, root.querySelectorAll(".mm-later").length, (performance.now() - began) / 1000];
        }"""
    )
    assert took[0] > 50 and took[1] == 0
    assert 4 * lasts <= took[2] < 4 * lasts + 0.5
    one.quiet()


def test_an_example_is_one_click_away(visit) -> None:
    one = visit()
    one.page.locator("#vlm-examples button").nth(1).click()
    one.page.locator("#vlm-picture img").wait_for()
    assert one.page.locator("#vlm-question textarea").input_value() == "What do you see in this picture?"
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    one.quiet()


def test_an_image_is_drawn_twice_and_compared(visit) -> None:
    one = visit()
    one.tab("Images")
    one.settings("image")
    one.page.locator("#image-settings").get_by_label("Temperature").first.fill("0")
    one.page.locator("#image-run").click()
    one.state("image", "done")
    assert "identical" in one.page.locator("#image-difference").text_content()
    grids = one.page.locator("#image-lanes svg.mm-grid")
    assert grids.count() == 2 and grids.nth(1).locator("path.accepted").count() > 10
    assert one.page.locator("#image-slider img").count() == 2
    one.page.locator("#image-lanes [data-playing=no]").wait_for()
    one.shot("images-light")
    one.quiet()


@pytest.mark.parametrize("tab", ["image", "continuous", "video"])
def test_samples_of_a_tabs_defaults_are_shown_in_their_lanes_with_captions(visit, tab: str) -> None:
    names = {"image": "Images", "continuous": "Continuous images", "video": "Video"}
    one = visit(theme="dark")
    one.tab(names[tab])
    one.page.locator(f"#{tab}-run").click()
    one.state(tab, "done")
    lanes = one.page.locator(f"#{tab}-lanes .mm-lane")
    for number in range(2):
        assert lanes.nth(number).locator("img").count() == 1
        assert lanes.nth(number).locator(".mm-caption").count() == 2
    headline = one.page.locator(f"#{tab}-headline").text_content()
    assert "same distribution" in headline and ("Slower here" in headline) == ("because" in headline)
    one.page.locator(f"#{tab}-lanes [data-playing=no]").wait_for()
    one.shot(f"{tab}-dark")
    one.quiet()


def test_a_button_copies_the_program_of_the_request(visit) -> None:
    one = visit()
    one.context.grant_permissions(["clipboard-read", "clipboard-write"])
    one.tab("Images")
    one.page.locator("#image-run").click()
    one.state("image", "done")
    one.page.locator("#image-lanes .mm-copy").click()
    one.page.locator("#image-lanes .mm-copy", has_text="Copied").wait_for()
    text = one.page.evaluate("navigator.clipboard.readText()")
    assert 'mmspec.zoo.load("t2i")'.replace('"', "'") in text and "decoding='scd'" in text
    one.quiet()


def test_an_error_clears_the_result_of_an_earlier_request(visit, picture: Path, tmp_path: Path) -> None:
    one = visit()
    one.upload(picture)
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    one.page.locator("#vlm-question textarea").fill(" ")
    one.page.locator("#vlm-run").click()
    one.state("vlm", "refused")
    assert one.page.locator("#vlm-headline .mm-headline, #vlm-table table, #vlm-lanes .mm-lane").count() == 0
    one.quiet()


def test_a_word_that_the_model_does_not_know_is_named(visit) -> None:
    one = visit()
    one.tab("Images")
    one.page.locator("#image-prompt textarea").fill("a large red elephant")
    one.page.locator("#image-run").click()
    one.state("image", "done")
    assert 'does not know "elephant"' in one.page.locator("#image-headline .mm-amber").first.text_content()
    one.quiet()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_result_is_below_the_button_on_a_phone_and_beside_it_on_a_desk(visit, picture: Path, width: int) -> None:
    one = visit(width=width)
    one.upload(picture)
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    run, result, settings = (
        one.page.locator(f"#vlm-{part}").bounding_box() for part in ("run", "headline", "settings")
    )
    if width < 900:
        assert run["y"] + run["height"] <= result["y"] < settings["y"]
    else:
        assert run["x"] + run["width"] <= result["x"] and settings["x"] < result["x"] and result["y"] < run["y"]
    one.quiet()


def test_the_video_tab_is_a_sentence_only_without_a_model(visit) -> None:
    from mmspec.web.tabs.videos import video_models

    one = visit()
    one.tab("Video")
    assert one.page.locator("#video-absent").count() == (not video_models())
    one.shot("video-light")
    one.quiet()


def test_a_run_is_shown_as_quality_against_speed(visit) -> None:
    for theme in ("light", "dark"):
        one = visit(theme=theme)
        one.tab("Quality against speed")
        one.page.locator("#pareto-run").click()
        one.state("pareto", "done")
        assert one.page.locator("#pareto-plots img").count() >= 1
        one.shot(f"pareto-{theme}")
        one.quiet()


def test_cancelling_midway_says_so_and_the_next_request_runs(visit, picture: Path, monkeypatch) -> None:
    moments = slow(monkeypatch, 0.05)
    one = visit()
    one.upload(picture)
    one.page.locator("#vlm-run").click()
    one.page.locator("#vlm-lanes .mm-text span").nth(5).wait_for()
    one.page.locator("#vlm-cancel").click()
    one.state("vlm", "cancelled")
    one.page.wait_for_timeout(500)
    seen = len(moments)
    one.page.wait_for_timeout(500)
    assert len(moments) == seen
    monkeypatch.undo()
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    one.quiet()


@pytest.mark.parametrize(
    ("name", "body"),
    [("bomb.png", png_bomb()), ("fake.png", SVG), ("half.png", b"\x89PNG\r\n\x1a\n12"), ("notes.txt", b"hello")],
)
def test_a_wrong_file_reports_one_error(visit, tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)
    one = visit()
    one.page.locator("#vlm-picture input[type=file]").set_input_files(str(tmp_path / name))
    if name != "notes.txt":  # the page itself refuses to upload it
        one.state("vlm", "refused")
        assert "picture: expected" in one.page.locator("#vlm-status").text_content()
    one.page.wait_for_timeout(300)
    assert one.page.locator("#vlm-picture img").count() == 0
    one.page.locator("#vlm-run").click()
    one.page.locator("[data-testid=toast-body], .toast-body").filter(has_text="picture: expected").first.wait_for()
    assert str(tmp_path) not in one.page.content()


def test_an_oversized_or_empty_prompt_is_stopped_on_the_server_too(visit) -> None:
    one = visit()
    one.tab("Images")
    box = one.page.locator("#image-prompt textarea")
    box.fill("x" * 100)
    box.evaluate("node => node.removeAttribute('maxlength')")
    box.fill("x" * 5000)
    one.page.locator("#image-run").click()
    one.state("image", "refused")
    said = one.page.locator("#image-status").text_content()
    assert "expected at most 200 characters, got 5,000" in said
    box.fill("  ")
    one.page.locator("#image-run").click()
    one.page.locator("#image-status").get_by_text("expected a text, got an empty one, write a few words").wait_for()
    one.quiet()


def test_two_visitors_at_once_see_their_own_seeds(visit, picture: Path) -> None:
    pair = [visit(), visit()]
    for seed, entry in enumerate(pair, 21):
        entry.upload(picture)
        entry.settings("vlm")
        entry.page.get_by_label("Seed").first.fill(str(seed))
        entry.page.get_by_label(re.compile("Temperature")).first.fill("1")
    for entry in pair:
        entry.page.locator("#vlm-run").click()
    texts = []
    for seed, entry in enumerate(pair, 21):
        entry.state("vlm", "done")
        assert f"seed {seed}" in entry.page.locator("#vlm-status").text_content()
        texts.append(entry.page.locator("#vlm-lanes .mm-text").first.text_content())
        entry.quiet()
    assert texts[0] != texts[1]


def test_relaxed_warns_plainly_and_exact_does_not(visit) -> None:
    one = visit()
    one.tab("Images")
    panel = one.page.locator("[role=tabpanel]").filter(has=one.page.locator("#image-run"))
    assert not panel.get_by_role("alert").is_visible()
    one.settings("image")
    panel.get_by_label("relaxed").click()
    panel.get_by_role("alert").wait_for()
    assert "does not follow the model's own distribution" in panel.get_by_role("alert").text_content()
    one.page.locator("#image-run").click()
    one.state("image", "done")
    assert "Relaxed" in one.page.locator("#image-headline").text_content()
    one.page.locator("#image-lanes [data-playing=no]").wait_for()
    one.shot("images-relaxed")
    one.quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(visit, picture: Path, theme: str) -> None:
    one = visit(theme=theme, width=375, height=760)
    one.upload(picture)
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert one.page.evaluate(wide) <= 0
    one.shot(f"phone-captions-{theme}")
    for tab in ("Images", "Quality against speed"):
        found = one.page.get_by_role("tab", name=tab, exact=True)
        if not found.is_visible():
            one.page.locator(".overflow-menu button").first.click()
            one.page.locator(".overflow-dropdown button", has_text=tab).click()
        else:
            found.click()
        if tab == "Images":
            one.page.locator("#image-run").click()
            one.state("image", "done")
        assert one.page.evaluate(wide) <= 0
        one.shot(f"phone-{tab.split()[0].lower()}-{theme}")
    one.quiet()


def test_everything_is_reached_and_seen_by_keyboard(visit) -> None:
    one = visit()
    names, outlines = [], []
    for _ in range(40):
        one.page.keyboard.press("Tab")
        found = one.page.evaluate(
            """() => { const n = document.activeElement, s = getComputedStyle(n);
            return [n.id || n.closest("[id]")?.id || "", n.getAttribute("aria-label") || n.textContent.trim().slice(0, 30),
                    s.outlineStyle !== "none" || s.boxShadow !== "none", n.tagName]; }"""
        )
        names.append(found[0] + " " + found[1])
        outlines.append((found[2], found[3], found[1]))
    text = " | ".join(names)
    for wanted in ("Captions", "vlm-question", "vlm-run", "vlm-cancel"):
        assert wanted in text, text
    unseen = [outline for outline in outlines if not outline[0] and outline[1] in ("BUTTON", "TEXTAREA", "SELECT")]
    assert not unseen, unseen


def luminance(colour: str) -> float:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_coloured_text_has_enough_contrast(visit, picture: Path, theme: str) -> None:
    one = visit(theme=theme)
    one.upload(picture)
    one.page.locator("#vlm-run").click()
    one.state("vlm", "done")
    pairs = one.page.evaluate(
        """() => [...document.querySelectorAll("#vlm-lanes .mm-text span, #vlm-run, #vlm-cancel")].map(n => {
            let back = n, colour;
            do { colour = getComputedStyle(back).backgroundColor; back = back.parentElement; }
            while (back && /, 0\\)$|transparent/.test(colour));
            return [getComputedStyle(n).color, colour]; })"""
    )
    for text, back in {tuple(pair) for pair in pairs if pair[0].startswith("rgb(")}:
        light, dark = sorted((luminance(text), luminance(back)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= TEXT_CONTRAST, (text, back)
    one.page.locator("#vlm-lanes [data-playing=no]").wait_for()
    one.shot(f"captions-{theme}")


def test_an_example_of_a_prompt_becomes_the_prompt(visit) -> None:
    one = visit()
    one.tab("Images")
    one.page.get_by_role("button", name="a large yellow heart").click()
    prompt = one.page.locator("#image-prompt textarea")
    one.page.wait_for_function("field => field.value === 'a large yellow heart'", arg=prompt.element_handle())
    one.quiet()
