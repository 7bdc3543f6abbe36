"""What counts as a number, a whole number and a truth value, and what a settings class refuses by its annotations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pytest
import torch

import mmspec
from mmspec.core.round.keys import Keys
from mmspec.io.validation import Range, Size, boolean, check_fields, number, whole
from mmspec.vlm.drafters import PromptLookup
from tests.wrong_values import cases, refused


@dataclass(frozen=True)
class Settings:
    """A field of each kind."""

    count: int = 3
    share: float = 0.5
    bound: Annotated[float, Range(infinite=True)] = math.inf
    most: int | None = None
    loud: bool = False
    form: Literal["one", "two"] | None = None
    sizes: tuple[int, ...] = (1, 2)
    steps: str | int | None = None
    part: list | None = field(default_factory=list)
    dropped: Annotated[float, Range(0, below=1, hint="0.5 is usual")] = 0.5
    heads: Size | None = None

    __post_init__ = check_fields


def test_numbers_come_back_as_python_numbers() -> None:
    for value in (2, np.int64(2), torch.tensor(2)):
        assert whole("count", value) == 2 and type(whole("count", value)) is int
    for value in (0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5])):
        assert number("share", value) == 0.5 and type(number("share", value)) is float
    assert number("bound", -math.inf, infinite=True) == -math.inf
    for value in (True, np.True_, np.array(True), torch.tensor(True)):
        assert boolean("loud", value) is True
    assert boolean("loud", False) is False


NUMBERS = {"numpy": np.int64, "small": np.uint8, "array": np.array, "tensor": torch.tensor}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_without_dimensions_are_numbers_in_settings(kind: str) -> None:
    make = NUMBERS[kind]
    settings = Settings(count=make(4), share=make(1), most=make(5), sizes=(make(2), make(3)), steps=make(6))
    assert settings == Settings(count=4, share=1, most=5, sizes=(2, 3), steps=6)
    assert {type(value) for value in (settings.count, settings.most, *settings.sizes, settings.steps)} == {int}
    half = {"numpy": np.float32, "small": np.float16}.get(kind, make)
    assert Settings(share=half(0.5), bound=half(2.0)) == Settings(share=0.5, bound=2.0)
    for wrong in ({"count": half(0.5)}, {"count": make(3) > 2}, {"share": half(math.nan)}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: expected "):
            Settings(**wrong)


@pytest.mark.default_cells("numpy", "tensor")
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_without_dimensions_are_numbers_of_requests(kind: str) -> None:
    make, half = NUMBERS[kind], {"numpy": np.float32, "small": np.float16}.get(kind, NUMBERS[kind])
    model, processor = mmspec.zoo.load("vlm")
    ids = processor.tokenizer("Describe this picture.", return_tensors="pt").input_ids
    own = dict(max_new_tokens=4, min_new_tokens=2, top_k=5, seed=3, eos_token_id=2)
    given = {name: make(value) for name, value in own.items()}
    for name, value in (("temperature", 0.5), ("top_p", 0.875), ("repetition_penalty", 1.25), ("min_p", 0.125)):
        own[name], given[name] = value, half(value)
    own["drafter"], given["drafter"] = PromptLookup(longest=3), PromptLookup(longest=make(3))
    wanted = mmspec.generate(model, input_ids=ids, do_sample=True, **own)
    assert torch.equal(wanted, mmspec.generate(model, input_ids=ids, do_sample=np.True_, **given))
    pipe = mmspec.zoo.load("c2i")
    wanted = pipe(3, seed=1, top_k=5, temperature=0.5, pixels=False).tokens
    assert torch.equal(wanted, pipe(make(3), seed=make(1), top_k=make(5), temperature=half(0.5), pixels=False).tokens)


@pytest.mark.parametrize("value", (True, False, torch.tensor(True), "1", None, math.nan, [1], 1j, 10**400))
def test_invalid_numbers_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="^share: expected a number"):
        number("share", value)
    if type(value) is not int:
        with pytest.raises(ValueError, match="^count: expected a whole number"):
            whole("count", value)
    if not isinstance(value, bool | torch.Tensor):
        with pytest.raises(ValueError, match="^loud: expected True or False"):
            boolean("loud", value)


def test_limits_are_named() -> None:
    for value in (-0.1, 1.1, math.inf):
        with pytest.raises(ValueError, match="^share: expected a number from 0 to 1, got"):
            number("share", value, 0, 1)
    with pytest.raises(ValueError, match="^share: expected a number of 0 or more, got inf"):
        number("share", math.inf, 0)
    with pytest.raises(ValueError, match="^count: expected at least 1, got 0"):
        whole("count", 0, 1)


def test_fields_are_checked_by_their_annotations() -> None:
    for name, value in cases(Settings):
        if (name, value) != ("bound", math.inf):
            refused(Settings, name, value)
    for name, value in (
        ("count", None),
        ("count", []),
        ("loud", None),
        ("form", 3),
        ("sizes", (1, math.nan)),
        ("sizes", ("1",)),
        ("part", 3),
        ("part", "x"),
        ("bound", math.nan),
        ("most", 2**63),
        ("form", "three"),
        ("dropped", 1.0),
        ("dropped", -0.1),
        ("heads", 0),
    ):
        refused(Settings, name, value)
    Settings(np.int64(4), 1, -math.inf, 2, True, "one", [3], "ddim4", None, np.float32(0), torch.tensor(1))
    with pytest.raises(ValueError, match="^dropped: expected at least 0 and below 1, got 1; 0.5 is usual$"):
        Settings(dropped=1)
    with pytest.raises(ValueError, match="^heads: expected int or None, got '3'; change it$"):
        Settings(heads="3")


def test_seeds_are_whole_numbers() -> None:
    for seed in (True, 1.5, math.nan, "3", torch.tensor(True)):
        refused(lambda seed: Keys.of(seed, 1), "seed", seed)
        refused(lambda seed: Keys.of(seed, 1), "seed", [seed])
    assert torch.equal(Keys.of(np.int64(3), 2).seeds, Keys.of(3, 2).seeds)
