"""What a bench compares, as data: methods, the settings they meet in, and suites of both."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

GREEDY, SAMPLED = ("greedy",), ("sampled",)
PLAIN = "ar"  # plain decoding, in every sweep and in benches of drawn output


@dataclass(frozen=True, slots=True)
class Method:
    """One row of a bench, as data; domains add how it drafts.

    key: what --methods takes.   title: what tables print.   rule: that accepts its drafts.   family: rows that differ in
    one setting, which --methods takes too.   at: the temperatures it is run at ("greedy": 0, "sampled": above 0).
    part: what the zoo must have for it; where the zoo does not know that, there is no such row.
    like: the row whose output this one's must equal when exact and greedy; the first baseline's where left out.
    shown: fields that rows of the bench file have beside title and key.
    """

    shown: ClassVar[tuple[str, ...]] = ()

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
        return {"method": self.title, "key": self.key, **{name: getattr(self, name) for name in self.shown}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One table of a bench: how requests are made and grouped. Domains add theirs.

    batch: requests decoded at once.   prompts: how many are asked, in cases of `batch`; what is left over is not asked.
    seed: of the bench.
    """

    batch: int
    temperature: float
    prompts: int
    seed: int

    @property
    def cases(self) -> int:
        """Whole batches among the prompts."""
        return self.prompts // self.batch

    def batches(self, requests: list) -> list[list]:
        """The requests in whole batches."""
        return [requests[start : start + self.batch] for start in range(0, self.cases * self.batch, self.batch)]

    def name(self) -> dict:
        """The fields of rows that tell this setting from the others."""
        return {"batch": self.batch, "temperature": self.temperature}

    def row(self) -> dict:
        """All fields of rows that the setting decides."""
        return self.name()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Methods and settings under one name, as data; domains add theirs.

    about: what meets what, for tables.   title: of its page.   methods: the rows, baselines first.   columns: of the
    domain's, in order. The rest unless asked for otherwise.
    """

    about: str
    title: str = ""
    methods: tuple[Method, ...]
    columns: tuple[str, ...]
    prompts: int
    batches: tuple[int, ...]
    temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CellGroup:
    """Methods that meet in one setting: the cells of a run that are taken in turn on every case.

    domain, model: by name.   drawing: all of the setting that decides outputs, in plain JSON.   shows: what is generated.
    """

    domain: str
    model: str
    setting: Setting
    methods: tuple[Method, ...]
    drawing: dict[str, Any]
    shows: str

    @property
    def name(self) -> tuple[str, str]:
        """(domain, model)."""
        return self.domain, self.model

    def cell(self, method: Method) -> dict[str, Any]:
        """All that decides a cell's output beside prompts and seeds."""
        return {"domain": self.domain, "model": self.model, "decoding": method.key, "rule": method.rule, **self.drawing}

    def key(self, method: Method) -> str:
        """A short hash of the cell."""
        text = json.dumps(self.cell(method), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def fields(self, method: Method) -> dict[str, Any]:
        """What records of samples say of their cell."""
        return {"cell": self.key(method), "of": self.cell(method), "title": method.title, "shows": self.shows}
