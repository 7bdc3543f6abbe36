"""The lowest versions that `pyproject.toml` allows, and the tests of `make test-floor` and `make test-newest`.

`python tests/floor.py pins` prints a requirement a line, `python tests/floor.py tests` the arguments of pytest. Only the
standard library is imported, since the environment is empty at first.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
# what `make test` installs, and the extras that its tests use where they are there; `web`, `scale` and `docs` are other
# people's servers and builders, whose own floors do not meet the models
EXTRAS = ("eval", "train", "video", "dev")
_LOWEST = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^\]]*\])? *>= *(?P<version>[0-9][0-9.]*)")

TESTS = (
    # the core: cache and layers, rules, loop, drafts
    "tests/core",
    # kernels and their references
    "tests/kernels",
    # a class a family of decoders, and layers of every kind
    "tests/vlm/classes/test_classes.py",
    "tests/vlm/test_architectures.py",
    "tests/vlm/test_layer_kinds.py::test_greedy_words_are_those_of_generate_and_a_row_alone_says_the_same",
    # the cache's name, conversations and recurrent layers, which differ between versions of transformers
    "tests/vlm/test_cache_name.py",
    "tests/vlm/conversation/test_turns.py",
    "tests/vlm/test_hybrid_layouts.py",
    # drafters that read what a version of transformers keeps
    "tests/vlm/drafters/gemma4/test_parity.py",
    "tests/vlm/drafters/mtp/test_drafter.py",
    "tests/vlm/drafters/test_damaged.py::test_on_the_command_line_too",
    # rounds that are recorded and replayed, which read what torch does step by step
    "tests/vlm/graphs/test_no_host.py",
    # files of other projects that are rewritten, and methods by their text
    "tests/io/test_gguf_convert.py",
    "tests/methods/test_registry.py",
    "tests/vlm/test_drafter_text.py",
    # what takes other projects' functions, and the command line
    "tests/certify/test_adapters.py",
    "tests/cli/test_commands.py",
    "tests/cli/test_errors.py",
    # captions, pictures, vectors and films, with the shipped models where there are some
    "tests/zoo/test_versions.py",
    "tests/zoo/test_same_words.py",
    "tests/zoo/test_same_pictures.py::test_greedy_pictures_are_plain_decodings",
    "tests/imagegen/adapters/test_greedy.py",
    "tests/imagegen/continuous/test_pipeline.py",
    "tests/imagegen/continuous/test_cspd.py",
    "tests/video/test_pipeline.py",
    "tests/video/test_plain.py",
    "tests/video/wan/test_diffusers.py",
)


def requirements(project: Path = PROJECT) -> list[str]:
    """Return the requirements of the package and of `EXTRAS`, as `pyproject.toml` has them.

    Args:
        project: the file.
    """
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = table.get("optional-dependencies", {})
    return [*table["dependencies"], *(one for name in EXTRAS for one in extras.get(name, ()))]


def pins(wanted: Iterable[str]) -> list[str]:
    """Return every requirement at its lowest version, "NAME==VERSION", each name once.

    Args:
        wanted: requirements with a lowest version, such as "torch>=2.11" or "transformers>=5.13,<6".

    Raises:
        ValueError: for a requirement without a lowest version, and for a name that has two.
    """
    found: dict[str, str] = {}
    for text in wanted:
        match = _LOWEST.match(text)
        if match is None:
            raise ValueError(
                f"pyproject.toml: expected a lowest version of every dependency, got {text!r}; add >=VERSION"
            )
        name, version = f"{match['name']}{match['extras'] or ''}", match["version"]
        if found.setdefault(name, version) != version:
            raise ValueError(
                f"pyproject.toml: expected one lowest version of {name}, got {found[name]} and {version}; make them equal"
            )
    return [f"{name}=={version}" for name, version in found.items()]


def main(arguments: list[str]) -> int:
    """Print what the only argument names; the exit status."""
    lists = {"pins": lambda: pins(requirements()), "tests": lambda: list(TESTS)}
    if len(arguments) != 1 or arguments[0] not in lists:
        print(f"expected one of {', '.join(lists)}, got {arguments}", file=sys.stderr)
        return 2
    print("\n".join(lists[arguments[0]]()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
