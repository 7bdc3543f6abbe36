"""Finds `mmspec.vlm` and its siblings in a source checkout, where they live next to `mmspec/` and not inside it.

An installed wheel has them inside `mmspec/`: there the finder never activates.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

# the same map as package-dir in pyproject.toml (a test compares them)
FOLDERS = {
    "mmspec.imagegen": "imagegen",
    "mmspec.kernels": "kernels/ops",
    "mmspec.video": "video",
    "mmspec.vlm": "vlm",
}


class CheckoutFinder:
    """Meta-path finder that resolves exactly the names in `FOLDERS`, below one checkout root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in FOLDERS:
            return None
        folder = self.root / FOLDERS[fullname]
        init = folder / "__init__.py"
        if not init.is_file():
            return None
        return spec_from_file_location(fullname, init, submodule_search_locations=[str(folder)])


def install(package_folder: str) -> None:
    """Puts the finder first when `package_folder` (that of `mmspec` itself) belongs to a source checkout."""
    package = Path(package_folder).resolve()
    root = package.parent
    inside = any((package / name.rpartition(".")[2]).exists() for name in FOLDERS)
    if inside or not (root / "pyproject.toml").is_file():
        return
    if not any(isinstance(finder, CheckoutFinder) for finder in sys.meta_path):
        # before an editable install of another checkout, whose parts would be mixed with these
        sys.meta_path.insert(0, CheckoutFinder(root))
