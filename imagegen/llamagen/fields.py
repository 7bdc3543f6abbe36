"""Published config files into config classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

Config = TypeVar("Config")


def from_fields(cls: type[Config], config: Config | Mapping[str, Any], left_out: Sequence[str], what: str) -> Config:
    """A config as it is, or made of a mapping of field names without those in `left_out`, which only training reads.

    Raises ValueError for unknown fields; `what` the config is of is said there.
    """
    if isinstance(config, cls):
        return config
    given = {name: value for name, value in config.items() if name not in left_out}
    if unknown := sorted(set(given) - {field.name for field in fields(cls)}):
        raise ValueError(f"config: expected fields of {what}, got {unknown}; remove them")
    return cls(**given)
