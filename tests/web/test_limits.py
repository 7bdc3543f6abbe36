"""What a visitor may ask for is checked on the server, and refused in one sentence."""

from __future__ import annotations

import math

import pytest

from mmspec.web.limits import (
    LARGEST_SEED,
    Limits,
    RefusedRequest,
    checked_choice,
    checked_number,
    checked_text,
    checked_whole,
)

LIMITS = Limits(characters=10)


def sentence(error: RefusedRequest) -> None:
    """One line of the form "what: expected ..., got ..., do ..."."""
    assert str(error).count("expected") == str(error).count("got") == 1 and "\n" not in str(error)


@pytest.mark.parametrize("text", ["", "   ", None, 7, ["a"], "x" * 11, "x" * 10_000_000])
def test_a_text_that_is_none_or_too_long_is_refused_without_being_repeated(text: object) -> None:
    with pytest.raises(RefusedRequest) as caught:
        checked_text("prompt", text, LIMITS)
    sentence(caught.value)
    assert len(str(caught.value)) < 200


def test_half_a_character_is_refused() -> None:
    """JSON can hold one, and a tokenizer cannot."""
    with pytest.raises(RefusedRequest, match="prompt: expected"):
        checked_text("prompt", "a\ud800", LIMITS)


def test_a_text_loses_its_blanks_and_nothing_else() -> None:
    assert checked_text("prompt", "  a <b> c ", LIMITS) == "a <b> c"
    assert checked_text("prompt", "x" * 10, LIMITS) == "x" * 10


@pytest.mark.parametrize("value", [-1, LARGEST_SEED + 1, 1.5, math.nan, math.inf, None, "3", True, [], 10**400])
def test_a_seed_that_is_no_whole_number_in_range_is_refused(value: object) -> None:
    with pytest.raises(RefusedRequest) as caught:
        checked_whole("seed", value, 0, LARGEST_SEED)
    sentence(caught.value)


@pytest.mark.parametrize("value", [-0.1, 2.1, math.nan, None])
def test_a_temperature_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(RefusedRequest) as caught:
        checked_number("temperature", value, 0, 2)
    sentence(caught.value)


def test_numbers_in_range_pass() -> None:
    assert checked_whole("seed", 3.0, 0, 9) == 3 and checked_number("temperature", 0, 0, 2) == 0.0


@pytest.mark.parametrize("value", ["../../etc", None, ["exact"]])
def test_a_name_that_no_control_offers_is_refused_and_not_repeated(value: object) -> None:
    with pytest.raises(RefusedRequest, match="expected one of exact, relaxed") as caught:
        checked_choice("law", value, ("exact", "relaxed"))
    assert "etc" not in str(caught.value)


def test_limits_are_above_zero() -> None:
    with pytest.raises(ValueError, match="waiting: expected a number above 0"):
        Limits(waiting=0)
