"""Rows of a bench over all its tasks together, and tables and sentences about its kinds of request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from mmspec.evaluate.engine.runs import Attempt, Failure, completed
from mmspec.evaluate.engine.statistics import PARTS, middle, paired_ratios, pairs, spread
from mmspec.evaluate.report.page import Grid
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.methods import PEER, PLAIN
from mmspec.run.timed_run import TimedRun

_SAME = ("method", "key", "drafter", "point", "controlled", "batch", "temperature", "pictures", "limit", "natural_end",
         "parameters", "training_seconds")  # fmt: skip


def run_columns(results: Sequence[Sequence[Attempt]]) -> dict[str, list]:
    """Return the requests of a row as columns, case by case and repeat by repeat; None for failed requests."""
    runs = [run if isinstance(run, TimedRun) else None for case in results for run in case]

    def column(value: Callable[[TimedRun], float | None], digits: int) -> list[float | None]:
        values = [None if run is None else value(run) for run in runs]
        return [None if value is None else round(value, digits) for value in values]

    return {
        "seconds": column(lambda run: run.seconds, 5),
        "decode_seconds": column(lambda run: run.decode_seconds, 5),
        "tokens": column(lambda run: run.tokens, 0),
        "decode_tokens": column(lambda run: run.decode_tokens, 0),
        "passes": column(lambda run: run.target_passes, 0),
        "accept_length": column(lambda run: run.accept_length, 4),
    }


def ratio_fields(peer: Sequence[dict], own: Sequence[dict]) -> dict:
    """Compare the rows of a method with those of transformers, which have `runs`, task by task. `total_speedup_vs_hf`
    is the ratio of the total seconds per token. `decode_speedup_vs_hf` is the median ratio after the prefill, and
    `decode_spread_vs_hf` its 10th and 90th percentile."""
    decoding = _ratios(peer, own, "decode_")
    return {
        "total_speedup_vs_hf": _total_ratio(peer, own),
        "decode_speedup_vs_hf": middle(decoding),
        "decode_spread_vs_hf": spread(decoding),
    }


def _attempts(rows: Sequence[dict], part: str = "") -> list[list[Attempt]]:
    """Return the requests of rows from their `runs`; `part` "decode_" returns the time after the prefill only."""
    return [[_attempt(row["runs"], place, part)] for row in rows for place in range(len(row["runs"]["seconds"]))]


def _attempt(runs: Mapping[str, Sequence], place: int, part: str) -> Attempt:
    seconds, tokens = runs[f"{part}seconds"][place], runs[f"{part}tokens"][place]
    if not seconds or not tokens:
        return Failure("it is not timed")
    return TimedRun(seconds, ((),), runs["passes"][place], runs["accept_length"][place], count=tokens)


def united(config: VlmBenchConfig, rows: Sequence[dict]) -> list[dict]:
    """Return a row per method, batch and temperature over all tasks; [] for suites without them."""
    suite, together_rows = config.plan(), []
    if not suite.united:
        return together_rows
    for batch, temperature in dict.fromkeys((row["batch"], row["temperature"]) for row in rows):
        own = [row for row in rows if (row["batch"], row["temperature"]) == (batch, temperature)]
        groups = {key: [row for row in own if row["key"] == key] for key in dict.fromkeys(row["key"] for row in own)}
        together = {key: _together(suite.united, group, groups) for key, group in groups.items()}
        _against_best(together, groups)
        together_rows += together.values()
    return together_rows


def _together(name: str, group: Sequence[dict], groups: dict[str, list[dict]]) -> dict:
    first, runs = group[0], completed(_attempts(group))
    whole = {base: _ratios(groups[key], group) for base, key in (("hf", PEER), ("ar", PLAIN))}
    exact = [row["exact"] for row in group if row["exact"] is not None]
    return {
        **{field: first[field] for field in _SAME},
        "task": name,
        "exact": all(exact) if exact else None,
        "prompts": sum(row["prompts"] for row in group),
        "top1_probability": _mean(group, "top1_probability"),
        "answer_share": None,
        "tokens": middle([run.tokens / first["batch"] for run in runs], 1),
        "target_passes": middle([run.target_passes for run in runs], 1),
        "accept_length": round(fmean(run.accept_length for run in runs), 3) if runs else None,
        "seconds": middle([run.seconds for run in runs], 4),
        "speedup_vs_hf": middle(whole["hf"]),
        "spread": spread(whole["hf"]),
        "speedup_vs_ar": middle(whole["ar"]),
        "spread_vs_ar": spread(whole["ar"]),
        **ratio_fields(groups[PEER], group),
        **_shares(group, runs),
        "peak_mb": max((row["peak_mb"] for row in group if row["peak_mb"] is not None), default=None),
        "drafter_passes_per_token": _mean(group, "drafter_passes_per_token"),
        **_sameness(group),
        "failed": next((row["failed"] for row in group if row["failed"]), None),
        "requests": sum(row["requests"] for row in group),
        "failed_requests": sum(row["failed_requests"] for row in group),
    }


def _ratios(base: Sequence[dict], own: Sequence[dict], part: str = "") -> list[float]:
    """Return the paired ratios of seconds per token, of whole calls or of the time after the prefill."""
    return paired_ratios(_attempts(base, part), _attempts(own, part))


def _total_ratio(peer: Sequence[dict], own: Sequence[dict]) -> float | None:
    """Return the ratio of the seconds per token of all requests together; None without requests."""
    both = pairs(_attempts(peer), _attempts(own))
    if not both:
        return None
    a, b = ([sum(getattr(pair[side], name) for pair in both) for name in ("seconds", "tokens")] for side in (0, 1))
    return round(a[0] * b[1] / (b[0] * a[1]), 3)


def _shares(group: Sequence[dict], runs: Sequence[TimedRun]) -> dict:
    """Return the shares of the decode time and the milliseconds per round."""
    known = [(row, sum(filter(None, row["runs"]["decode_seconds"]))) for row in group if row["draft_share"] is not None]
    total, rounds = sum(seconds for _, seconds in known), sum(run.target_passes - 1 for run in runs)
    shares = {}
    for part in PARTS:
        seconds = sum(row[f"{part}_share"] * own for row, own in known)
        shares[f"{part}_share"] = round(seconds / total, 4) if known else None
        shares[f"{part}_ms"] = round(1000 * seconds / rounds, 3) if known and rounds else None
    return shares | {"prefill_ms": middle([row["prefill_ms"] for row in group if row["prefill_ms"] is not None])}


def _sameness(group: Sequence[dict]) -> dict:
    """Return whether texts equal those of transformers, and those of the prompts alone."""
    margins = [row.get("margin") for row in group]
    alone = [row.get("alone_margin") for row in group]
    return {
        "identical": _sum_of_parts(group, "identical"),
        "ties": sum(row.get("ties") or 0 for row in group),
        "margin": max((margin for margin in margins if margin is not None), default=None),
        "alone": _sum_of_parts(group, "alone"),
        "alone_ties": sum(row.get("alone_ties") or 0 for row in group),
        "alone_margin": max((margin for margin in alone if margin is not None), default=None),
    }


def _sum_of_parts(group: Sequence[dict], name: str) -> str | None:
    """Return the sum of fractions, 5/6 for 2/3 and 3/3; None where no row has any."""
    known = [row[name].split("/") for row in group if row.get(name)]
    return "/".join(str(sum(int(entry[side]) for entry in known)) for side in (0, 1)) if known else None


def _mean(group: Sequence[dict], name: str) -> float | None:
    known = [row[name] for row in group if row.get(name) is not None]
    return round(fmean(known), 3) if known else None


def against_best(title: str | None, ratios: Sequence[float]) -> dict:
    """Return the fields of a controlled row: the best fixed row, and the speed-up over it by paired ratios."""
    return {"best_fixed": title, "speedup_vs_best_fixed": middle(ratios), "spread_vs_best_fixed": spread(ratios)}


def _against_best(together: dict[str, dict], groups: dict[str, list[dict]]) -> None:
    """Add to controlled rows the comparison with the best fixed row over all tasks."""
    fixed = [
        key
        for key, row in together.items()
        if key != PEER and not row["controlled"] and row["speedup_vs_ar"] and not key.startswith("hf-")
    ]
    best = max(fixed, key=lambda key: together[key]["speedup_vs_ar"], default=None)
    for key, row in together.items():
        if row["controlled"]:
            ratios = _ratios(groups[best], groups[key]) if best else []
            row |= against_best(best and together[best]["method"], ratios)


# figures of compact tables: the field and its title
FIGURES = {"speedup_vs_hf": "x transformers", "accept_length": "accept length"}


def kind_grids(rows: Sequence[dict], together: str) -> tuple[Grid, ...]:
    """Return a table of methods by kind for each batch, temperature and field in FIGURES; its last column is the task
    `together` over all kinds."""
    grids = []
    for (batch, temperature), group in _settings(rows):
        where = f"batch {batch}, T = {temperature:g}"
        kinds = [*(task for task in dict.fromkeys(row["task"] for row in group) if task != together), together]
        cells = {(row["method"], row["task"]): row for row in group}
        methods = dict.fromkeys(row["method"] for row in group)
        for field, title in FIGURES.items():
            lines = [(method, *(_cell(cells.get((method, kind)), field) for kind in kinds)) for method in methods]
            grids.append(Grid(f"{title} by kind, {where}", ("method", *kinds), tuple(lines)))
    return tuple(grids)


def _cell(row: dict | None, field: str) -> str:
    return "-" if row is None or row[field] is None else f"{row[field]:.2f}"


def _settings(rows: Sequence[dict]) -> Iterator[tuple[tuple[int, float], list[dict]]]:
    for setting in dict.fromkeys((row["batch"], row["temperature"]) for row in rows):
        yield setting, [row for row in rows if (row["batch"], row["temperature"]) == setting]


def best_lines(rows: Sequence[dict], together: str) -> list[str]:
    """Return a sentence per batch and temperature on the fastest fixed drafter, over all kinds and of each kind."""
    lines = []
    for (batch, temperature), group in _settings(rows):
        drafted = [
            row
            for row in group
            if row["speedup_vs_hf"]
            and not row["controlled"]
            and row["key"] not in (PEER, PLAIN)
            and not row["key"].startswith("hf-")
        ]
        kinds = [together, *(task for task in dict.fromkeys(row["task"] for row in drafted) if task != together)]
        best = [
            max((row for row in drafted if row["task"] == kind), key=lambda row: row["speedup_vs_hf"], default=None)
            for kind in kinds
        ]
        drafters = ", ".join(f"{row['task']} {row['speedup_vs_hf']:.2f}x ({row['method']})" for row in best if row)
        if drafters:
            lines.append(f"fastest fixed drafter against transformers, batch {batch}, T = {temperature:g}: {drafters}")
    return lines


def parted_lines(rows: Sequence[dict], together: str) -> list[str]:
    """Return a sentence per prompt whose greedy text differs from transformers': the token, the margin and the rows."""
    places: dict[tuple, list[str]] = {}
    for row in rows:
        for parting in row.get("parted") or () if row["task"] != together else ():
            where = (parting["prompt"], row["batch"], parting["token"], _margin(parting))
            places.setdefault(where, []).append(row["method"])
    return [
        f"{prompt}, batch {batch}, token {token}: another text than that of transformers, {margin} "
        f"({', '.join(dict.fromkeys(methods))})"
        for (prompt, batch, token, margin), methods in places.items()
    ]


def _margin(parting: Mapping) -> str:
    """Return by how much transformers' token was preferred."""
    return "it only goes on or ends" if parting["margin"] is None else f"margin {parting['margin']:.2g}"
