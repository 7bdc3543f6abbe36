"""What every method of every bench has."""

from __future__ import annotations

from dataclasses import dataclass, field

GREEDY, SAMPLED = ("greedy",), ("sampled",)


@dataclass(frozen=True, slots=True)
class Method:
    """One row of a bench, as data; domains add how it drafts.

    key: what --methods takes.   title: what tables print.   rule: that accepts its drafts.   family: rows that differ in
    one setting, which --methods takes too.   at: the temperatures it is run at ("greedy": 0, "sampled": above 0).
    part: what the zoo must have for it; where the zoo does not know that, there is no such row.
    like: the row whose output this one's must equal when exact and greedy; the first baseline's where left out.
    """

    key: str
    title: str
    rule: str = "exact"
    family: str = ""
    at: tuple[str, ...] = GREEDY + SAMPLED
    part: str = ""
    like: str = field(default="", kw_only=True)

    def serves(self, temperature: float) -> bool:
        """Whether the row exists at this temperature."""
        return ("sampled" if temperature > 0 else "greedy") in self.at

    def named(self, name: str) -> bool:
        """Whether --methods means this row by `name`."""
        return bool(name) and name in (self.key, self.family)

    def row(self) -> dict:
        """The fields of its rows that say what it is."""
        return {"method": self.title, "key": self.key}
