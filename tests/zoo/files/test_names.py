"""The names of the zoo."""

from __future__ import annotations

import pytest

from mmspec.zoo import load, names


def test_unknown_names_are_listed():
    assert {"vlm", "vlm/small"} <= set(names())
    with pytest.raises(ValueError, match="vlm/small"):
        load("nothing")
