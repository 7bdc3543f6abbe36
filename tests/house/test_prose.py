"""The prose of the product is plain: the lint finds a planted example of each pattern, and nothing in the product."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import prose

PLANTED = {
    "what": '"""What a cache holds."""',
    "one": '"""A drafter with weights.\n\nA request that has a drafter is faster than the one that has none.\n"""',
    "packed": '@method("f")\ndef f(a, b):\n    """Add.\n\n    Args:\n        a: int [B].   b: int [B].\n    """',
    "inline": '@method("f")\ndef f(a):\n    """Add.\n\n    Raises ValueError for nothing.\n    """',
    "unsectioned": 'def f(a):\n    """Add.\n\n    a: int [B].\n    """',
    "section": 'def f(a):\n    """Add.\n\n    Args:\n        a: int [B].\n    """',
    "repeated": '@method("f")\ndef f(recipe):\n    """Add.\n\n    Args:\n        recipe: The recipe.\n    """',
    "name": "def f(a):\n    found = a\n    return found",
}
PLAIN = '''"""Tokens of a draft."""


@method("record")
class Record:
    """A row of a table.

    Attributes:
        kept: The accepted tokens, a name that readers of the file know.
    """

    kept: int

    @property
    def asked(self) -> int:
        """Return the number of requests."""
        return self.kept


@method("accept")
def accept(tokens, count):
    """Return the accepted tokens, at least one token a row.

    Args:
        tokens: int64 [B, N].
        count: int64 [B].

    Raises:
        ValueError: The shapes differ, as in `what  is`.
    """
    return tokens[:count]
'''


@pytest.mark.parametrize("pattern", PLANTED)
def test_the_lint_finds_a_planted_pattern(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "planted.py"
    path.write_text(PLANTED[pattern])
    assert [name for name, _, _ in prose.hits(path)] == [pattern]


def test_plain_prose_passes(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    assert list(prose.hits(path)) == []


def test_a_comment_is_read_as_prose(tmp_path: Path) -> None:
    path = tmp_path / "comment.py"
    path.write_text("x = 1  # what is left of it\n")
    assert [name for name, _, _ in prose.hits(path)] == ["what"]
