"""The floor's list of versions comes from pyproject.toml, and its list of tests names what exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mmspec.core.layers.compat import NEWEST_TESTED, OLDEST
from tests import floor
from tests.house.tree import ROOT


def test_every_dependency_has_a_lowest_version_that_the_pins_take_over() -> None:
    wanted = floor.requirements()
    found = floor.pins(wanted)
    assert len(found) == len({entry.partition("==")[0] for entry in found}) >= 15
    for text in wanted:
        name, _, version = text.partition(">=")
        assert f"{name}=={version.partition(',')[0]}" in found
    assert {"torch", "transformers", "diffusers", "pillow"} <= {entry.partition("==")[0] for entry in found}


@pytest.mark.parametrize("wanted", [["einops"], ["a<3"], ["a>=1", "a>=2"], ["git+https://x"]])
def test_a_requirement_without_a_single_lowest_version_is_refused(wanted: list[str]) -> None:
    with pytest.raises(ValueError, match="pyproject.toml: expected .* lowest version"):
        floor.pins(wanted)


def test_the_pins_keep_extras_and_leave_upper_bounds_out() -> None:
    assert floor.pins(["ray[data] >= 2.50,<3", "b>=1.10"]) == ["ray[data]==2.50", "b==1.10"]


@pytest.mark.parametrize("place", floor.TESTS)
def test_the_floor_runs_tests_that_exist(place: str) -> None:
    file, _, name = place.partition("[")[0].partition("::")
    assert (ROOT / file).exists()
    assert not name or f"def {name}(" in (ROOT / file).read_text()


def test_the_script_needs_nothing_but_python() -> None:
    for words, status in ((["pins"], 0), (["tests"], 0), ([], 2), (["else"], 2)):
        # -S leaves out installed packages, -I the current folder
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(ROOT / "tests" / "floor.py"), *words], capture_output=True
        )
        assert done.returncode == status, done.stderr


def test_the_version_that_mmspec_refuses_below_is_that_of_the_project_file() -> None:
    assert f"transformers=={'.'.join(map(str, OLDEST))}" in floor.pins(floor.requirements())
    assert NEWEST_TESTED > OLDEST
