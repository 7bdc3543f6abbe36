"""Which model a command runs: the zoo's, a folder's, or one the user names by its hub id."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.console import BadOption, quiet_transformers, waiting

if TYPE_CHECKING:
    from mmspec.evaluate.vlm.resources import VlmResources

ZOO = "zoo"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def open_resources(spec: str, option: str = "--model") -> VlmResources:
    """The model called `spec` with its processor. Only a hub id uses the network. option: whose value it is, for errors.

    Raises BadOption when there is no such model, or it is none that takes pictures and text.
    """
    with waiting("loading the model"):
        quiet_transformers()
        from mmspec.evaluate.vlm.resources import zoo_resources

        return zoo_resources() if spec == ZOO else _published(spec, option)


@contextmanager
def reading(spec: str, what: str, option: str = "--model") -> Iterator[None]:
    """Makes whatever is raised over the files of `spec` a BadOption that names the option. what: expected there."""
    try:
        yield
    except Exception as error:  # no end to what readers raise over a config or weights of another shape
        if str(error).startswith(f"{option}: "):
            raise BadOption(str(error)) from error
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        raise BadOption(f"{option}: expected {what}, got {spec!r} ({kind}{error}), check it") from error


def _published(spec: str, option: str) -> VlmResources:
    from mmspec.evaluate.vlm.resources import published_resources

    local = Path(spec).is_dir()
    if not local and not _HUB_ID.fullmatch(spec):
        raise BadOption(f"{option}: expected 'zoo', a folder or a hub id 'owner/name', got {spec!r}, correct it")
    with reading(spec, "a safetensors model that takes pictures and text", option):
        return published_resources(spec, local)
