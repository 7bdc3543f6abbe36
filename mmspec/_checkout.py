"""A finder of `mmspec.vlm` and its siblings in a source checkout, where they live next to `mmspec/`."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

# equal to package-dir in pyproject.toml, as a test verifies
FOLDERS = {
    "mmspec.imagegen": "imagegen",
    "mmspec.kernels": "kernels/ops",
    "mmspec.video": "video",
    "mmspec.vlm": "vlm",
}


class CheckoutFinder:
    """A meta-path finder of the names in `FOLDERS`, below one checkout root."""

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
    """Put the finder first in `sys.meta_path`, unless `package_folder`, that of `mmspec`, has its siblings inside."""
    package = Path(package_folder).resolve()
    root = package.parent
    inside = any((package / name.rpartition(".")[2]).exists() for name in FOLDERS)
    if inside or not (root / "pyproject.toml").is_file():
        return
    if not any(isinstance(finder, CheckoutFinder) for finder in sys.meta_path):
        # first, since the finder of an editable install would mix the parts of two checkouts
        sys.meta_path.insert(0, CheckoutFinder(root))
