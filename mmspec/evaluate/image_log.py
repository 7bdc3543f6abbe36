"""Rows as they come, one JSON object a line, so that a long bench goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

NAMED_BY = ("model", "key", "batch", "guidance", "top_k", "temperature", "images", "seed")


class RowLog:
    """The rows in `file`, and new ones behind them; without a file nothing is kept.   Raises ValueError for other contents."""

    def __init__(self, file: Path | None):
        self.file, self.rows = file, {}
        if file is None or not file.is_file():
            return
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                self.rows[self._name(row)] = row
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines) and isinstance(error, json.JSONDecodeError):
                    self._drop_last(lines)  # a bench was killed while it wrote
                    return
                raise ValueError(f"{file}, line {number}: expected a row of this bench, got {line[:60]!r}, name another "
                                 "file") from error  # fmt: skip

    def find(self, fields: dict) -> dict | None:
        """The row of these fields that has figures, None where there is none yet."""
        row = self.rows.get(self._name(fields))
        return None if row is None or row["failed"] else row

    def add(self, row: dict) -> None:
        """Keeps a row, on the disk too."""
        self.rows[self._name(row)] = row
        if self.file is not None:
            with open(self.file, "a", encoding="utf-8") as handle:
                handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

    def _drop_last(self, lines: list[str]) -> None:
        from mmspec.core.files import write_text_atomic

        write_text_atomic(self.file, "".join(line + "\n" for line in lines[:-1]))

    @staticmethod
    def _name(row: dict) -> tuple:
        return tuple(row[field] for field in NAMED_BY)
