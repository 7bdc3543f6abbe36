"""`import mmspec` is light, its names resolve, and every package has one import name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mmspec
from mmspec._checkout import FOLDERS, CheckoutFinder, install
from mmspec._lazy import lazy
from tests.house.tree import ROOT


def run(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs `code` without site-packages of mmspec's own: only the working directory and the dependencies."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_importing_mmspec_loads_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "diffusers", "numpy", "PIL", "typer", "rich")
    done = run(f"import sys, mmspec; print([name for name in {heavy!r} if name in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(mmspec._PUBLIC))
def test_public_name_resolves(name: str) -> None:
    module, _, attribute = mmspec._PUBLIC[name].partition(":")
    value = getattr(mmspec, name)
    assert name in dir(mmspec) and name in mmspec.__all__
    assert value is (getattr(sys.modules[module], attribute) if attribute else sys.modules[module])


def test_the_drafters_are_a_module_of_the_package_whose_import_loads_no_heavy_library() -> None:
    done = run('import sys, mmspec.drafters; assert not {"torch", "transformers"} & set(sys.modules), "heavy"')
    assert done.returncode == 0, done.stderr
    drafters = import_module("mmspec.drafters")
    assert drafters.PromptLookup is mmspec.drafters.PromptLookup is mmspec.vlm.drafters.PromptLookup


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mmspec.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "name", ["mmspec.certify", "mmspec.core", "mmspec.drafters", "mmspec.imagegen", "mmspec.vlm", "mmspec.vlm.drafters"]
)
def test_a_package_hands_out_its_names_on_first_use(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package)) and "__name__" in dir(package)
    for one in package.__all__:
        assert getattr(package, one) is vars(package)[one]  # asked once, kept
        assert getattr(vars(package)[one], "__name__", one) == one
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


def test_a_lazy_name_is_imported_on_first_access() -> None:
    homes = {"json": "json", "loads": "json", "joined": "os.path:join"}
    namespace = {"__name__": "somewhere"}
    find, names = lazy(namespace, homes)
    assert names() == ["__name__", *sorted(homes)] and list(namespace) == ["__name__"]
    assert (find("json"), find("loads"), find("joined")) == (json, json.loads, os.path.join)
    assert namespace == {"__name__": "somewhere", "json": json, "loads": json.loads, "joined": os.path.join}


@pytest.mark.parametrize("name", ["kernels.ops", "vlm"])
def test_a_package_refuses_a_second_import_name(name: str) -> None:
    done = run(f"import {name}")
    assert done.returncode != 0
    assert "ImportError" in done.stderr and "mmspec." in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_the_finder_resolves_a_mapped_package_from_the_checkout(name: str) -> None:
    spec = CheckoutFinder(ROOT).find_spec(name)
    assert spec is not None and Path(spec.origin) == ROOT / FOLDERS[name] / "__init__.py"


def test_the_finder_resolves_nothing_else(tmp_path: Path) -> None:
    assert CheckoutFinder(ROOT).find_spec("mmspec.core") is None
    assert CheckoutFinder(ROOT).find_spec("vlm") is None
    assert CheckoutFinder(tmp_path).find_spec("mmspec.vlm") is None


@pytest.mark.parametrize(
    ("files", "active"),
    [
        (["pyproject.toml", "mmspec/__init__.py"], True),
        (["mmspec/__init__.py"], False),
        (["pyproject.toml", "mmspec/__init__.py", "mmspec/vlm/__init__.py"], False),
    ],
    ids=["checkout", "site-packages", "wheel beside a stray pyproject"],
)
def test_the_finder_activates_only_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], active: bool
) -> None:
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    others = [finder for finder in sys.meta_path if not isinstance(finder, CheckoutFinder)]
    monkeypatch.setattr(sys, "meta_path", list(others))
    install(str(tmp_path / "mmspec"))
    install(str(tmp_path / "mmspec"))
    added = [finder for finder in sys.meta_path if finder not in others]
    assert [finder.root for finder in added] == ([tmp_path.resolve()] if active else [])
