"""The comparison of a bench as data: methods, settings, and suites of both."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

GREEDY, SAMPLED = ("greedy",), ("sampled",)


@dataclass(frozen=True, slots=True)
class Method:
    """A row of a bench; domains add how it drafts."""

    shown: ClassVar[tuple[str, ...]] = ()  # further fields that rows of the bench file have

    key: str  # the name for --methods
    title: str  # the name in tables
    rule: str = "exact"  # accepts its drafts
    family: str = ""  # a name for rows that differ in a single setting; --methods accepts it too
    at: tuple[str, ...] = GREEDY + SAMPLED  # the temperatures of the row ("greedy": 0, "sampled": above 0)
    part: str = ""  # the zoo must have it; the row is left out without it
    # the row whose output must be equal when exact and greedy; the first baseline where left out
    like: str = field(default="", kw_only=True)

    def serves(self, temperature: float) -> bool:
        return ("sampled" if temperature > 0 else "greedy") in self.at

    def named(self, name: str) -> bool:
        """Return whether `name` in --methods means this row."""
        return bool(name) and name in (self.key, self.family)

    def row(self) -> dict:
        """Return the fields that identify the method in its rows."""
        return {"method": self.title, "key": self.key, **{name: getattr(self, name) for name in self.shown}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A table of a bench: how requests are made and grouped. Domains add their fields."""

    batch: int  # the requests decoded at once
    temperature: float
    prompts: int  # a rest that does not fill a batch is left out
    seed: int  # of the bench

    @property
    def cases(self) -> int:
        """Return the number of whole batches among the prompts."""
        return self.prompts // self.batch

    def batches(self, requests: list) -> list[list]:
        """Return the requests in whole batches."""
        return [requests[start : start + self.batch] for start in range(0, self.cases * self.batch, self.batch)]

    def name(self) -> dict:
        """Return the row fields that distinguish this setting from the others."""
        return {"batch": self.batch, "temperature": self.temperature}

    def row(self) -> dict:
        """Return all row fields that the setting decides."""
        return self.name()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Methods and settings under one name; domains add their fields."""

    about: str  # for tables
    title: str = ""  # of its page
    methods: tuple[Method, ...]  # the rows, baselines first
    columns: tuple[str, ...]  # of the domain, in order
    prompts: int  # by default, as are the two below
    batches: tuple[int, ...]
    temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CellGroup:
    """Methods that share a setting: cells of a run that are drawn in turn on every case."""

    domain: str
    model: str
    setting: Setting
    methods: tuple[Method, ...]
    drawing: dict[str, Any]  # all fields of the setting that decide outputs, in plain JSON
    shows: str  # the kind of output

    @property
    def name(self) -> tuple[str, str]:
        return self.domain, self.model

    def cell(self, method: Method) -> dict[str, Any]:
        """Return all fields that decide a cell's output, except prompts and seeds."""
        return {"domain": self.domain, "model": self.model, "decoding": method.key, "rule": method.rule, **self.drawing}

    def key(self, method: Method) -> str:
        text = json.dumps(self.cell(method), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def fields(self, method: Method) -> dict[str, Any]:
        """Return the fields of the cell in the records of its samples."""
        return {"cell": self.key(method), "of": self.cell(method), "title": method.title, "shows": self.shows}
