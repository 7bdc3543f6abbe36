"""The card of an embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmspec.core.files import write_json_atomic


def write_card(out: Path, card: dict[str, Any]) -> None:
    """Write `card.json`, by rename."""
    write_json_atomic(out / "card.json", card)
