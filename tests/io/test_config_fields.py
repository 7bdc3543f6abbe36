"""Config classes are made of files only where every field is there and of its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from mmspec.io.validation import from_fields

Way = Literal["a", "b"] | Literal["c"]


@dataclass(frozen=True, slots=True)
class Sizes:
    width: int
    rate: float = 0.5
    wide: bool = False
    name: str = "x"
    levels: tuple[int, ...] = (1,)
    most: int | None = None
    way: Way = "a"
    scaling: dict[str, float] | None = None

    def __post_init__(self) -> None:
        if self.width % (self.most or 1):
            raise ValueError("width: expected a multiple of most")
        _ = 1 / self.rate


@pytest.mark.parametrize(
    "given",
    [
        {"width": 4},
        {"width": 4, "rate": 2},
        {"width": 4, "levels": [1, 2], "most": 2},
        {"width": 4, "most": None, "way": "c"},
        {"width": 4, "scaling": {"a": 1}},
    ],
)
def test_fields_of_their_types_pass(given: dict[str, Any]) -> None:
    made = from_fields(Sizes, given)
    assert {name: getattr(made, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"expected the fields \['width'\] of Sizes, got none for \['width'\]"),
        ({"width": 4, "depth": 1}, r"expected fields of Sizes, got \['depth'\]"),
        *((({"width": value}, "width: expected int, got")) for value in ("4", 4.0, True, None, [4], {}, 10**30)),
        *(
            ({"width": 4, "rate": value}, "rate: expected (float|a finite number), got")
            for value in ("1", False, None, float("nan"), float("inf"), 10**400)
        ),
        ({"width": 4, "wide": 1}, "wide: expected bool, got 1"),
        ({"width": 4, "name": 3}, "name: expected str, got 3"),
        *(
            ({"width": 4, "levels": value}, "levels: expected tuple")
            for value in (3, "12", [1, "2"], [1, 2.0], {"1": 1})
        ),
        ({"width": 4, "most": "2"}, "most: expected int or None"),
        ({"width": 4, "way": 3}, "way: expected 'a', 'b' or 'c', got 3"),
        ({"width": 4, "way": "d"}, "way: expected 'a', 'b' or 'c', got 'd'; correct the config"),
        ({"width": 4, "scaling": [1]}, "scaling: expected dict"),
        ({"width": 5, "most": 2}, "width: expected a multiple of most"),
        ({"width": 4, "rate": 0.0}, "expected sizes of Sizes that divide each other"),
    ],
)
def test_invalid_fields_report_one_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        from_fields(Sizes, given)
    assert "\n" not in str(caught.value)


def test_every_saved_config_can_be_checked() -> None:
    """The types of all fields of all drafters resolve, so that none is let in unchecked."""
    from typing import get_type_hints

    from mmspec.imagegen import LatentUpsampler
    from mmspec.imagegen.eagle.image_eagle import ImageEagle
    from mmspec.io.pretrained import Pretrained
    from mmspec.vlm.drafters.drafter_names import drafter_classes

    found = [*drafter_classes().values(), *ImageEagle.kinds.values(), *LatentUpsampler.kinds.values()]
    assert len(found) > 8 and all(issubclass(entry, Pretrained) for entry in found)
    for entry in found:
        assert get_type_hints(entry.config_class)
