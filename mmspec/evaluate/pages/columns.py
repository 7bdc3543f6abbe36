"""Cells of bench tables: the text that a row shows of its own figures."""

from __future__ import annotations

from collections.abc import Callable

Cell = Callable[[dict], str]


def figure(name: str) -> Cell:
    """A field as it is, "-" for None."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]}"


def grouped(name: str) -> Cell:
    """A large number."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]:,}"


def ratio(name: str, spread: str) -> Cell:
    """A field with the interval that another one holds."""

    def cell(row: dict) -> str:
        if row.get(name) is None:
            return "-"
        low, high = row[spread]
        return f"{row[name]} ({low}-{high})"

    return cell


def law(row: dict) -> str:
    """What the row keeps of the target's law."""
    return {True: "exact", False: "relaxed", None: "failed"}[row["exact"]]


def shares(row: dict) -> str:
    """Of the decode time."""
    parts = [row.get(f"{part}_share") for part in ("draft", "target", "verify")]
    return "-" if parts[0] is None else " + ".join(f"{part:.2f}" for part in parts)


def same(row: dict) -> str:
    """How many requests gave the baseline's output; of the others how many at a tie, and the largest margin they parted at."""
    if row.get("identical") is None:
        return "-"
    tied = f" and {row['ties']} at a tie" if row.get("ties") else ""
    return row["identical"] + tied + ("" if row.get("margin") is None else f", margin {row['margin']:.2g}")


# columns of every domain; a domain adds its own
COLUMNS: dict[str, Cell] = {
    "method": lambda row: row["method"],
    "law": law,
    "passes": figure("target_passes"),
    "accept length": figure("accept_length"),
    "seconds": figure("seconds"),
    "x plain (10-90 %)": ratio("speedup_vs_ar", "spread"),
    "draft + target + verify share": shares,
    "identical": same,
}

# of domains whose output is judged as pictures
PICTURES: dict[str, Cell] = {
    "Frechet (90 %)": ratio("frechet", "frechet_interval"),
    "of plain's own (90 %)": ratio("frechet_ratio", "frechet_ratio_interval"),
    "CLIP score": figure("clip_score"),
    "retrieval": figure("retrieval"),
    "judge": figure("judge"),
}


def chosen(columns: dict[str, Cell], heads: tuple[str, ...]) -> dict[str, Cell]:
    """The columns of these heads, in their order."""
    return {head: columns[head] for head in heads}
