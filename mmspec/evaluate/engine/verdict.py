"""What is wrong with a finished bench."""

from __future__ import annotations

from mmspec.evaluate.engine.domain import Domain


def verdict(domain: Domain, result: dict) -> list[str]:
    """A sentence per exact row whose greedy output is another, but for ties, and per failure that is ours."""
    wrong = []
    for row in result["rows"]:
        where = f"{row['method']} ({domain.describe(row)})"
        same, _, of = (row.get("identical") or "0/0").partition("/")
        if row["exact"] and int(same) + row.get("ties", 0) != int(of):
            apart = "" if row.get("margin") is None else f"; the margin at the first difference is {row['margin']:.2g}"
            wrong.append(f"{where}: expected the {domain.output}, got them in {same} of {of} requests{apart}")
        if row["failed"] and not domain.may_fail(row):
            wrong.append(f"{where}: {row['failed']}")
    return wrong
