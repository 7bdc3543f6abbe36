"""Extension of griffe: lines `name: what it is` of a docstring become a list, so that the reference shows one a line."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"((?:[a-z_]\w*, )*[a-z_]\w*): ")
# within a line, three spaces part one field from the next
_GAP = re.compile(r"(?<=\S) {3,}(?=\S)")
_APART = re.compile(r"(Returns|Raises|Exact|Relaxed)\b")
_DRAWN = ("- ", "* ", "| ", "```", ">>>", "    ")


def listed(docstring: str) -> str:
    """A docstring as Markdown: fields as a list, what is returned and raised as paragraphs, all else as it stands."""
    lines: list[str] = []
    inside = False  # a field
    for line in docstring.splitlines():
        if line.startswith(_DRAWN[:-1]) or (line.startswith(_DRAWN[-1]) and not inside):
            lines.append(line)
            continue
        for part in _GAP.split(line):
            field, apart = _FIELD.match(part), _APART.match(part)
            if field:
                names = ", ".join(f"`{name}`" for name in field[1].split(", "))
                lines += [*([] if inside else [""]), f"- {names}: {part[field.end() :]}"]
            elif apart and lines:
                lines += ["", part]
            else:
                lines.append(f"  {part.strip()}" if inside and part.strip() else part)
            inside = bool(field) or (inside and bool(part.strip()) and not apart)
    return "\n".join(lines)


class Fields(griffe.Extension):
    """Lists the fields of every docstring that is read."""

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
