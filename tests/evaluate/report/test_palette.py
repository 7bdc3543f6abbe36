"""Colours and marks: a method looks the same in every figure, and no two of a figure look alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mmspec.evaluate.report.labels import short_names
from mmspec.evaluate.report.palette import BLACK, METHODS, known, looks_of
from mmspec.methods import names

FIGURES = {
    "text": ("plain", "EAGLE", "EAGLE-3", "EAGLE without vision", "MSD", "ViSpec", "FLASH", "SpecVLM", "DFlash", "DSpark",
             "Hydra", "MTP layer", "prompt lookup", "Token Recycling", "small model chain"),
    "images": ("plain AR", "SJD 32", "SCD gumbel 32", "LANTERN", "LANTERN++", "GSD", "Cool-SD", "ZipAR", "EAGLE tree"),
    "sweep": ("plain", "SJD (window 32)", "SJD (window 32) + LANTERN (delta 0.2)", "SJD (window 32) + LANTERN (delta 0.4)"),
    "continuous": ("plain", "CSpD patch 8", "head window 8", "anneal + lazy", "CSpD patch 8 + head", "small causal"),
    "videos": ("target alone", "SDVG, share 0.5", "SDVG, share 0.9", "strided, share 0.5", "random, share 0.5"),
    "others": ("mine", "yours", "MSD"),
}  # fmt: skip


def looks(figure: Sequence[str]) -> dict:
    return looks_of((name, True) for name in figure)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_no_two_methods_of_a_figure_look_alike(figure: Sequence[str]) -> None:
    found = [(look.colour, look.mark) for look in looks(figure).values()]
    assert len(set(found)) == len(figure)


def test_a_method_has_the_same_colour_in_every_figure() -> None:
    first, second = looks(("MSD", "EAGLE", "mine")), looks(("yours", "DSpark", "EAGLE", "MSD"))
    assert {name: first[name] for name in ("MSD", "EAGLE")} == {name: second[name] for name in ("MSD", "EAGLE")}
    assert (
        looks(("LANTERN",))["LANTERN"].colour
        == looks(("SJD + LANTERN (delta 0.2)",))["SJD + LANTERN (delta 0.2)"].colour
    )
    assert looks(("EAGLE, goodput",))["EAGLE, goodput"].colour == first["EAGLE"].colour


def test_plain_decoding_is_a_black_star() -> None:
    for name in ("plain", "plain AR", "mmspec plain", "target alone", "transformers"):
        assert (looks((name,))[name].colour, looks((name,))[name].mark) == (BLACK, "*")


def test_a_short_name_decides_its_own_colour_only() -> None:
    assert known("a decoding of mine") is None and known("flashy") is None
    assert known("eagle3") == known("EAGLE-3") and known("scd-lantern++") == known("LANTERN++ on SCD")


def test_common_methods_of_the_registry_have_a_colour() -> None:
    common = {"eagle", "msd", "vispec", "flash", "specvlm", "eagle3", "dflash", "dspark", "lookup", "recycling", "sjd", "scd",
              "cspd", "sdvg", "lantern", "gsd", "coolsd", "zipar"}  # fmt: skip
    assert common <= set(names()) and all(map(known, common)) and len(METHODS) > len(common)


def test_short_names_keep_what_tells_methods_apart() -> None:
    rules = [f"SJD (window 32) + LANTERN (delta {delta}, k 64)" for delta in (0.2, 0.4)]
    found = short_names(["SJD (window 32)", *rules])
    assert list(found.values()) == ["SJD", "SJD + LANTERN, delta 0.2", "SJD + LANTERN, delta 0.4"]
    assert list(short_names(["a (b)", "a, b"]).values()) == ["a", "a, b"]
    assert short_names(["a (b)", "a", "a, b"]) == {name: name for name in ("a (b)", "a", "a, b")}
