"""What counts as a number, a whole number and a truth value, and what a settings class refuses by its annotations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest
import torch

from mmspec.core.keys import Keys
from mmspec.io.validation import boolean, check_fields, number, whole
from tests.wrong_values import cases, refused


@dataclass(frozen=True)
class Settings:
    """A field of each kind."""

    count: int = 3
    share: float = 0.5
    bound: float = math.inf
    most: int | None = None
    loud: bool = False
    form: Literal["one", "two"] | None = None
    sizes: tuple[int, ...] = (1, 2)
    steps: str | int | None = None
    part: list | None = field(default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self, infinite=("bound",))


def test_numbers_come_back_as_python_numbers() -> None:
    for value in (2, np.int64(2), torch.tensor(2)):
        assert whole("count", value) == 2 and type(whole("count", value)) is int
    for value in (0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5])):
        assert number("share", value) == 0.5 and type(number("share", value)) is float
    assert number("bound", -math.inf, infinite=True) == -math.inf
    assert boolean("loud", True) is True and boolean("loud", False) is False


@pytest.mark.parametrize("value", (True, False, torch.tensor(True), "1", None, math.nan, [1], 1j, 10**400))
def test_invalid_numbers_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="^share: expected a number"):
        number("share", value)
    if type(value) is not int:
        with pytest.raises(ValueError, match="^count: expected a whole number"):
            whole("count", value)
    if not isinstance(value, bool):
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
    for name, value in (("count", None), ("count", []), ("loud", None), ("form", 3), ("sizes", (1, math.nan)),
                        ("sizes", ("1",)), ("part", 3), ("part", "x"), ("bound", math.nan), ("most", 2**63)):  # fmt: skip
        refused(Settings, name, value)
    Settings(np.int64(4), 1, -math.inf, 2, True, "one", [3], "ddim4", None)


def test_seeds_are_whole_numbers() -> None:
    for seed in (True, 1.5, math.nan, "3", torch.tensor(True)):
        refused(lambda seed: Keys.of(seed, 1), "seed", seed)
        refused(lambda seed: Keys.of(seed, 1), "seed", [seed])
    assert torch.equal(Keys.of(np.int64(3), 2).seeds, Keys.of(3, 2).seeds)
