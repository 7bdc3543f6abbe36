"""Modules of users that describe methods: found by name or by file, imported, and checked for what they describe."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from mmspec.methods.registry import MethodInfo, methods, registered

_imported: dict[str, None] = {}


def imported() -> tuple[str, ...]:
    """The modules that `import_methods` has imported, so that another process can import them too."""
    return tuple(_imported)


def imported_files() -> list[Path]:
    """The files of the modules that `import_methods` has imported."""
    files = [name if name.endswith(".py") else sys.modules[name].__file__ for name in _imported]
    return [Path(file) for file in files if file is not None]


def import_methods(name: str) -> tuple[MethodInfo, ...]:
    """Import a module and return the methods that it describes. They can be found by name from then on.

    Args:
        name: A dotted name, looked for in the current folder too, or the path of a file that ends in .py. Modules beside the
            file can be imported by it.

    Raises:
        ValueError: There is no such module, it fails, it describes no method, or a method that has a name already.
    """
    known, before = methods(), {one.home for one in registered()}
    module = _of_file(Path(name)) if name.endswith(".py") else _of_name(name)
    own = (f"{module.__name__}:", f"{module.__name__}.")
    found = [one for one in registered() if one.home.startswith(own)]
    found += [one for one in registered() if one.home not in before and not one.home.startswith(("mmspec.", *own))]
    if not found:
        raise ValueError(f"--import: expected a module that describes a method, got none in {name!r}; decorate a class with "
                         "@method")  # fmt: skip
    for one in found:
        _check_name(one, known)
    _imported[str(Path(name).resolve()) if name.endswith(".py") else name] = None
    return tuple(found)


def _of_name(name: str) -> ModuleType:
    _extend_path(Path.cwd())
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"--import: expected a module or the path of a .py file, got {name!r}, which is not found; "
                             "correct it") from error  # fmt: skip
        raise _failure(name, error) from error


def _of_file(file: Path) -> ModuleType:
    """The module of a file, which has the name of the file."""
    if not file.is_file():
        raise ValueError(f"--import: expected a module or the path of a .py file, got {str(file)!r}, which is not found; "
                         "correct it")  # fmt: skip
    file, known = file.resolve(), sys.modules.get(file.stem)
    if known is not None:
        if getattr(known, "__file__", None) != str(file):
            raise ValueError(f"--import: expected a file whose name no module has, got {file.name!r}; rename it")
        return known
    _extend_path(file.parent)
    spec = spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[file.stem]
        raise _failure(str(file), error) from error
    return module


def _extend_path(folder: Path) -> None:
    """Have modules of a folder found, behind all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _failure(name: str, error: BaseException) -> ValueError:
    return ValueError(f"--import: expected a module that can be imported, got {type(error).__name__} ({error}) in {name!r}; "
                      "correct it")  # fmt: skip


def _check_name(own: MethodInfo, known: Iterable[MethodInfo]) -> None:
    """Refuse a method whose name another one of its kind has in one of its domains."""
    for one in known:
        if (one.name, one.kind) == (own.name, own.kind) and one.home != own.home and {*one.domains} & {*own.domains}:
            raise ValueError(f"--import: expected a name that no other {own.kind} has, got {own.name!r}, which is that of "
                             f"{one.home}; rename the method")  # fmt: skip
