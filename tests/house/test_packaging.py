"""The wheel is what the tree says, and nothing but mmspec."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

import mmspec
from mmspec._checkout import FOLDERS
from tests.house.tree import ROOT, modules, pyproject, roots

WEIGHTS_CAP, WHEEL_CAP = 90_000_000, 95_000_000  # bytes


def packages() -> dict[str, Path]:
    return {name: path.parent for name, path in modules() if path.name == "__init__.py"}


def test_packages_list_equals_the_tree() -> None:
    listed = pyproject()["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(packages()), "pyproject.toml [tool.setuptools] packages differs from the tree"


def test_every_folder_with_modules_is_a_package() -> None:
    missing = {path.parent for _, path in modules() if not (path.parent / "__init__.py").is_file()}
    assert not missing, f"folders without __init__.py: {sorted(map(str, missing))}"


def test_package_folders_agree_with_the_checkout_finder() -> None:
    listed = pyproject()["tool"]["setuptools"]["package-dir"]
    assert listed == {"mmspec": "mmspec", **FOLDERS}
    assert {name: ROOT / folder for name, folder in listed.items()} == roots()


def test_editors_follow_the_mapped_folders() -> None:
    config = json.loads((ROOT / "pyrightconfig.json").read_text(encoding="utf-8"))
    (links,) = (ROOT / path / "mmspec" for path in config["extraPaths"] if path == ".editor")
    assert {f"mmspec.{link.name}": link.resolve() for link in links.iterdir() if link.is_dir()} == {
        name: folder for name, folder in roots().items() if name != "mmspec"
    }
    assert (links / "__init__.py").resolve() == ROOT / "mmspec" / "__init__.py"


def test_version_is_the_same_everywhere() -> None:
    assert pyproject()["project"]["version"] == mmspec.__version__


def test_top_level_kernels_is_no_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


def bytes_below(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files)


def test_the_shipped_weights_and_the_wheel_stay_under_their_caps() -> None:
    sizes = {path.name: bytes_below(path) for path in (ROOT / "mmspec" / "zoo" / "weights").iterdir()}
    assert 0 < sum(sizes.values()) <= WEIGHTS_CAP, sorted(sizes.items(), key=lambda one: -one[1])
    assert sum(bytes_below(folder) for folder in roots().values()) <= WHEEL_CAP  # before it is compressed


def copy_or_stand_in(source: str, target: str) -> None:
    """Copies a file; weights become empty files of the same name, since only names matter here."""
    if source.endswith(".safetensors"):
        Path(target).touch()
    else:
        shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """File names inside a wheel that setuptools builds from a copy of the sources, without network."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, copy / name)
    for folder in pyproject()["tool"]["setuptools"]["package-dir"].values():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore, copy_function=copy_or_stand_in)
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = (copy / "dist").glob("*.whl")
    with ZipFile(built) as archive:
        return set(archive.namelist())


def test_wheel_holds_only_mmspec(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert tops == {"mmspec", f"mmspec-{mmspec.__version__}.dist-info"}


def test_wheel_holds_every_file_of_the_packages(wheel: set[str]) -> None:
    expected = set()
    for name, folder in roots().items():
        files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        expected |= {f"{name.replace('.', '/')}/{path.relative_to(folder).as_posix()}" for path in files}
    missing = {name for name in expected - wheel if not Path(name).name.startswith(".")}
    assert not missing, f"package-data leaves out {sorted(missing)}"


def test_source_tree_is_not_run_from_a_wheel(wheel: set[str]) -> None:
    assert "mmspec/vlm/__init__.py" in wheel and "mmspec/pyproject.toml" not in wheel


PROBE = """
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("kernels")
assert spec is not None and pathlib.Path(spec.origin).parent.parent == pathlib.Path({site!r}), spec
import kernels, mmspec.kernels
assert kernels.__version__ == {version!r}
assert pathlib.Path(mmspec.kernels.__file__).parts[-3:-1] == ("kernels", "ops"), mmspec.kernels.__file__
from transformers.utils import is_kernels_available
assert is_kernels_available()
"""


def run_from_root(code: str, **environment: str) -> None:
    env = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **environment}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_kernels_distribution_wins_over_our_folder(tmp_path: Path) -> None:
    """From the repository root, transformers finds an installed `kernels` package and not the folder of that name."""
    version = pytest.importorskip("transformers.utils.import_utils").KERNELS_MIN_VERSION
    package, metadata = tmp_path / "kernels", tmp_path / f"kernels-{version}.dist-info"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n", encoding="utf-8")
    (metadata / "RECORD").write_text("kernels/__init__.py,,\n", encoding="utf-8")
    run_from_root(PROBE.format(site=str(tmp_path), version=version), PYTHONPATH=str(tmp_path))


@pytest.mark.whole
def test_our_kernels_folder_is_not_mistaken_for_the_kernels_distribution() -> None:
    """Without that package, transformers sees none and its models import from the repository root."""
    if any(distribution.name == "kernels" for distribution in distributions()):
        pytest.skip("the kernels distribution is installed here")
    run_from_root(
        "from transformers.utils import is_kernels_available\n"
        "assert not is_kernels_available()\n"
        "from transformers import LlamaForCausalLM"
    )
