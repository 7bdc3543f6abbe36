"""Search the supported models by family, class or hub id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from mmspec.run.supported import (
    UNTESTED,
    class_records,
    combination_records,
    greedy_table,
    image_model_records,
    image_text_records,
    model_records,
    refused_records,
)
from mmspec.run.supported_decodings import continuous_records, video_model_records

_SHORTEST = 3  # letters of a name that is looked for
_YES = {"yes": "yes", "partly": "yes, but some requests are refused", "-": "not in this class"}


@dataclass(frozen=True, slots=True)
class ModelMatch:
    """A model that a search found."""

    name: str  # its class, or its family
    facts: dict[str, str]  # sentences about it by label

    def record(self) -> dict[str, object]:
        return asdict(self)


def matching_models(text: str) -> list[ModelMatch]:
    """Return the models whose class or family holds a text: a family, a class name, a hub id, or a part of them. Of a
    longer name the longest part counts that any model has: "qwen2.5-vl" of "Qwen/Qwen2.5-VL-7B-Instruct"."""
    known = all_models()
    for part in name_parts(text):
        if matches := [make() for name, make in known.items() if part in plain_name(name)]:
            return matches
    return []


def plain_name(name: str) -> str:
    """Return the letters and digits of a name in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def name_parts(text: str) -> Iterator[str]:
    """Yield the runs of words of a name, longest first and from left to right, as `plain_name` writes them."""
    words = [plain_name(word) for word in re.split(r"[-_\s]+", text.rpartition("/")[2]) if plain_name(word)]
    for length in range(len(words), 0, -1):
        for first in range(len(words) - length + 1):
            part = "".join(words[first : first + length])
            if len(part) >= _SHORTEST:
                yield part


def all_models() -> dict[str, Callable[[], ModelMatch]]:
    """Return the function that collects the facts of each class and family."""
    classes = {record["model class"]: record for record in class_records()}
    refused = {record["model class"]: record["reason"] for record in refused_records()}
    listed = {record["image-text class"]: record for record in image_text_records()}
    models: dict[str, Callable[[], ModelMatch]] = {}
    for name in sorted({*greedy_table()["classes"], *listed, *(record["model"] for record in model_records())}):
        models[name] = lambda name=name: _class_match(name, classes.get(name), refused.get(name), listed.get(name))
    for title, head, records in (
        ("image model", "image model", image_model_records()),
        ("continuous image model", "model of vectors", continuous_records()),
        ("video model", "video model", video_model_records()),
    ):
        for name, group in groupby(records, key=lambda record: record[head]):
            rows = list(group)
            models[f"{name} ({title})"] = lambda name=name, rows=rows, title=title, head=head: ModelMatch(
                f"{name} ({title})", _row_facts(rows, head)
            )
    return models


def _class_match(name: str, record: dict | None, reason: str | None, listed: dict | None) -> ModelMatch:
    whole = next((row for row in model_records() if row["model"] == name), None)
    facts: dict[str, str] = {}
    if reason is not None:
        facts["supported"] = f"no: {reason}"
    elif record is not None:
        facts["supported"] = "yes: the suite finds the tokens of transformers.generate"
        facts["prompts"] = record["prompts hold"]
        facts["variants"] = _variants(record)
        facts["mmspec.enable"] = _YES.get(record["by enable"], record["by enable"])
    elif listed is not None:
        facts["supported"] = f"{listed['status']}: {listed['reason']}"
    if whole is not None:
        pairs = [pair for pair in combination_records() if pair["model"] == name]
        tested = [pair["drafter"] for pair in pairs if pair["greedy tested by"] != UNTESTED]
        others = [pair["drafter"] for pair in pairs if pair["greedy tested by"] == UNTESTED]
        facts["prompts"], facts["tested by"] = whole["prompts hold"], whole["tested by"]
        facts["drafters"] = f"exact: {', '.join(tested)}" + (
            f"; by the same code: {', '.join(others)}" if others else ""
        )
    elif reason is None:
        facts["drafters"] = "every drafter of `mmspec methods --kind drafter`; the class proves itself at its first use"
    return ModelMatch(name, facts)


def _variants(record: dict[str, str]) -> str:
    """Return the forms of a class that were tried beside its default form."""
    shown = {
        label: value for label, value in record.items() if label not in ("model class", "prompts hold", "by enable")
    }
    return ", ".join(f"{label} {value}" for label, value in shown.items() if value != "-") or "-"


def _row_facts(rows: Sequence[dict], head: str) -> dict[str, str]:
    """Return the fields of a family, or a line per decoding where it has several rows."""
    if len(rows) == 1:
        return {label: str(value) for label, value in rows[0].items() if label != head}
    return {str(row["decoding"]): f"{row['law']}: {row['asked by']} (tested: {row['tested by']})" for row in rows}
