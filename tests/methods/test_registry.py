"""The registry of methods: what is described, how it is found, and the index that tells it without an import."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import mmspec.methods as registry
from mmspec.methods import MethodSetting, find, method, methods, names, parse
from mmspec.methods.registry import INDEX, ModelParts, _indexed, _registered
from mmspec.methods.settings import settings_of
from mmspec.vlm.drafters.published import PUBLISHED
from tests.methods.index import index_text, modules_with_methods
from tests.methods.page import PAGES, first_table, measured, page_text


@dataclass(frozen=True)
class Toy:
    """A method of the tests.

    Args:
        size: How large it is. A second sentence is left out.
        mode: How it works,
            on two lines.
        share: A part, if any.
        quiet: Whether it says nothing.
        shape: Something that no text gives.
    """

    size: int
    mode: Literal["fast", "slow"] = "fast"
    share: float | None = 0.5
    quiet: bool = False
    shape: tuple[int, ...] = (1, 2)


@pytest.fixture
def toy():
    described = dict(_registered)
    method("toy", domain="image", kind="decoding", title="Toy", exact=True, about="a toy", aliases=("plaything",))(Toy)
    yield find("toy")
    _registered.clear()
    _registered.update(described)


def test_the_index_matches_the_classes() -> None:
    stored = (Path(registry.__file__).parent / INDEX).read_text(encoding="utf-8")
    assert stored == index_text(), "python -m tests.methods.index"
    assert "mmspec.imagegen.rules.gsd" in list(modules_with_methods())


def test_a_method_is_the_same_before_and_after_its_module_is_imported() -> None:
    for stored in _indexed().values():
        stored.load()
        assert _registered.get((stored.kind, stored.name, stored.domains), stored) == stored, stored.name


def test_the_pages_of_methods_and_published_drafters_match_their_tables() -> None:
    text, published = (page.read_text(encoding="utf-8") for page in PAGES)
    assert text == page_text(text) and published == page_text(published), "python -m tests.methods.page"
    assert all(f"| `{row.repo}` |" in published for row in PUBLISHED)
    assert all(f"`{method.name}`: {method.title}" in text for method in methods())


def test_figures_of_the_page_are_those_of_the_benches() -> None:
    rows = dict(first_table("image-speed"))
    own = max(ratio for title, ratio in rows.items() if title.startswith("LANTERN on "))
    assert measured(find("lantern")).startswith(f"[{own:.2f}x]") and rows["plain AR"] == 1.0
    assert not measured(find("exact"))


def test_every_method_of_the_index_is_found_and_its_class_is_there() -> None:
    for info in methods():
        models = next(iter(info.facts.get("models", ())), None)
        assert find(info.name, info.domains[-1], info.kind, models=models) == info and callable(info.load())
        assert info.about and info.title and not info.about.endswith(".")
        assert all(setting.about for setting in info.settings), info.name


def test_names_are_known_without_torch() -> None:
    code = "import sys, mmspec.methods as m; print(len(m.names()), 'torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) > 20 and said[1] == "False"


def test_settings_are_read_off_the_class() -> None:
    size, mode, share, quiet = settings_of(Toy)
    assert size == MethodSetting("size", "int", None, "How large it is", required=True)
    assert mode == MethodSetting("mode", "str", "fast", "How it works, on two lines", ("fast", "slow"))
    assert share == MethodSetting("share", "float", 0.5, "A part, if any", optional=True)
    assert quiet == MethodSetting("quiet", "bool", False, "Whether it says nothing")


def test_a_text_and_its_method(toy) -> None:
    call = parse("toy:size=3,share=none,quiet=true", "image", "decoding")
    assert call.make() == Toy(3, share=None, quiet=True) and call.title == "Toy (size 3, share none, quiet true)"
    assert parse(str(call)) == call and str(call) == "toy:size=3,share=none,quiet=true"
    assert parse("plaything:size=3@runs/my-toy").weights == "runs/my-toy"
    assert str(parse("toy: size = 3 @runs/x")) == "toy:size=3@runs/x"


def test_a_method_with_settings_is_a_value_in_parentheses() -> None:
    call = parse("sdvg:router=(hybrid:run=3,least=0.2),sync=eager@zoo:video/draft", "video", "decoding")
    assert call.settings == {"router": "hybrid:run=3,least=0.2", "sync": "eager"} and call.weights == "zoo:video/draft"
    assert parse(str(call), "video", "decoding") == call
    assert parse("sdvg:router=strided:budget=3", "video", "decoding").settings == {"router": "strided:budget=3"}


def test_methods_of_one_name_are_selected_by_their_kind_of_model() -> None:
    assert names("video", "decoding", models="blocks") == ("ar", "draft", "sdvg")
    assert "sdvg" not in names("video", "decoding", models="codes") and "sjd" in names("image", models="codes")
    homes = {find("ar", "video", "decoding", models=kind).home.split(":")[0] for kind in ("blocks", "codes")}
    assert homes == {"mmspec.video.decoding.undrafted", "mmspec.imagegen.base_pipeline"}


def test_weights_that_no_part_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="^decoding 'scd': expected no weights, since it needs none, got @runs/x"):
        parse("scd@runs/x", "image", "decoding").make()


@pytest.mark.parametrize("value", (0.123456789012, 1e-9, 2.0, float("inf"), None))
def test_a_number_keeps_its_digits_in_the_text(value: float | None, toy) -> None:
    setting = toy.setting("share")
    assert setting.read(setting.written(value), "share") == value


def test_a_method_record_restores_the_method(toy) -> None:
    assert registry.MethodInfo.of_record(toy.record()) == toy
    for info in methods():
        assert registry.MethodInfo.of_record(info.record()) == info


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("toi:size=3", "decoding: expected one of .*toy.*, got 'toi'; did you mean 'toy'"),
        ("toy:sise=3", r"decoding 'toy': expected a setting of toy \(size, mode, .*, got 'sise'; did you mean 'size'"),
        ("toy:size=big", "decoding 'toy': size: expected a whole number, got 'big'"),
        ("toy:size=3,mode=fasst", "mode: expected fast or slow, got 'fasst'; did you mean 'fast'"),
        ("toy:size=3,share=nan", "share: expected a number or none, got 'nan'"),
        ("toy:size=3,quiet=maybe", "quiet: expected true or false, got 'maybe'"),
        ("toy", "decoding: expected toy:size=..., got 'toy'; name size too"),
        ("toy:size", "decoding: expected NAME, NAME:setting=value,... or either with @WEIGHTS, got 'toy:size'"),
        ("toy:size=3@", "decoding: expected NAME"),
        (":size=3", "decoding: expected NAME"),
        ("toy:size=3,size=4", "decoding: expected each setting once"),
    ],
)
def test_a_wrong_text_is_refused_with_the_known_methods(text: str, sentence: str, toy) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}" if sentence.startswith("decoding") else sentence):
        parse(text, "image", "decoding")


def test_a_name_of_several_kinds_needs_a_kind(toy) -> None:
    method("toy", domain="vlm", kind="drafter", title="Toy", exact=True, about="another toy")(Toy)
    with pytest.raises(ValueError, match="expected one method of the name 'toy', got several"):
        find("toy")
    assert find("toy", kind="drafter").domains == ("vlm",) and "toy" in names("vlm", "drafter")


def test_refusals_of_a_class_name_the_method() -> None:
    with pytest.raises(ValueError, match="^decoding 'sjd': window: expected at least 2, got 1"):
        parse("sjd:window=1", "image", "decoding").make()
    with pytest.raises(
        ValueError, match="^rule 'lantern': method: expected a model, whose codes the method reads, got none"
    ):
        parse("lantern", "image", "rule").make(ModelParts())
    with pytest.raises(ValueError, match="^decoding 'eagle': method: expected the part 'eagle', got none"):
        parse("eagle", "image", "decoding").make(ModelParts())


def test_names_domains_and_kinds_of_another_type_are_refused_by_name() -> None:
    for value in (None, 3, ["lookup"]):
        for call in (find, parse):
            with pytest.raises(ValueError, match="^method: expected [^\n]*got "):
                call(value)
    for name, value in (("domain", "x"), ("domain", 3), ("kind", "x")):
        with pytest.raises(ValueError, match=f"^{name}: expected one of "):
            names(**{name: value})
