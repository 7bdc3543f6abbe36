"""User modules that describe methods: located by name or by file, imported and checked."""

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
    """Return the modules that `import_methods` has imported, so that another process can import them too."""
    return tuple(_imported)


def imported_files() -> list[Path]:
    files = [name if name.endswith(".py") else sys.modules[name].__file__ for name in _imported]
    return [Path(file) for file in files if file is not None]


def import_methods(name: str) -> tuple[MethodInfo, ...]:
    """Import a module and register the methods that it describes, which `find` returns from then on. `name` is a dotted
    name, also searched in the current folder, or the path of a .py file, which can import modules beside it."""
    known, before = methods(), {info.home for info in registered()}
    module = _of_file(Path(name)) if name.endswith(".py") else _of_name(name)
    own = (f"{module.__name__}:", f"{module.__name__}.")
    described = [info for info in registered() if info.home.startswith(own)]
    described += [
        info for info in registered() if info.home not in before and not info.home.startswith(("mmspec.", *own))
    ]
    if not described:
        raise ValueError(
            f"--import: expected a module that describes a method, got none in {name!r}; decorate a class with @method"
        )
    for info in described:
        _check_name(info, known)
    _imported[str(Path(name).resolve()) if name.endswith(".py") else name] = None
    return tuple(described)


def _of_name(name: str) -> ModuleType:
    _extend_path(Path.cwd())
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"--import: expected a module or the path of a .py file, got {name!r}, which is not found; correct it"
            ) from error
        raise _failure(name, error) from error


def _of_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ValueError(
            f"--import: expected a module or the path of a .py file, got {str(file)!r}, which is not found; correct it"
        )
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
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _failure(name: str, error: BaseException) -> ValueError:
    return ValueError(
        f"--import: expected a module that can be imported, got {type(error).__name__} ({error}) in {name!r}; "
        "correct it"
    )


def _check_name(own: MethodInfo, known: Iterable[MethodInfo]) -> None:
    """Refuse a method whose name another method of its kind has in a shared domain."""
    for other in known:
        if (
            (other.name, other.kind) == (own.name, own.kind)
            and other.home != own.home
            and {*other.domains} & {*own.domains}
        ):
            raise ValueError(
                f"--import: expected a name that no other {own.kind} has, got {own.name!r}, which is that of "
                f"{other.home}; rename the method"
            )
