"""`mmspec bench vlm`: plain and drafted decoding of a vision-language model, paired and interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from mmspec.evaluate.bench import Run, interleave
from mmspec.evaluate.bench_log import BenchLog
from mmspec.evaluate.certainty import certainty
from mmspec.evaluate.drafter_costs import drafter_costs
from mmspec.evaluate.fingerprint import fingerprint
from mmspec.evaluate.machine import environment, machine, threads
from mmspec.evaluate.prompts import Prompt, check_seed, encode
from mmspec.evaluate.rows import compare, row_of, training_of
from mmspec.evaluate.same_drafts import accept_lengths
from mmspec.evaluate.shelf import Shelf, zoo_shelf
from mmspec.evaluate.suites import Suite, suite_of
from mmspec.evaluate.tasks import Task
from mmspec.evaluate.vlm_methods import PEER, PLAIN, Inputs, Method, drafter_of, ending, make_runner, sampling

SAME_DRAFTS, SAME_PROMPTS = ("traversal", "recursive", "match"), 10
MEASURED = 4  # requests a drafter is timed alone on


@dataclass(frozen=True, slots=True)
class VlmBench:
    """What to run; None takes what the suite says.

    methods: keys of the suite's rows, None for all.   saved: drafters to compare too, (name, folder).   prompts: of every
    task.   new_tokens: longest answer of every task.   threads: torch's, for every method alike.
    """

    suite: str = "methods"
    prompts: int | None = None
    new_tokens: int | None = None
    batches: tuple[int, ...] | None = None
    temperatures: tuple[float, ...] | None = None
    methods: tuple[str, ...] | None = None
    saved: tuple[tuple[str, str], ...] = ()
    repeats: int = 1
    seed: int = 0
    threads: int = 2

    def __post_init__(self) -> None:
        suite = suite_of(self.suite)
        for name in ("prompts", "temperatures"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(suite, name))
        if self.batches is None:
            object.__setattr__(self, "batches", tuple(dict.fromkeys(min(n, self.prompts) for n in suite.batches)))
        for name in ("prompts", "new_tokens", "repeats", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')}: expected at least 1, got {value}, raise it")
        if not self.batches or not all(1 <= size <= self.prompts for size in self.batches):
            raise ValueError(f"--batch: expected 1 to {self.prompts} (the prompts), got {self.batches}, change one")
        if not self.temperatures or not all(0 <= value < float("inf") for value in self.temperatures):
            raise ValueError(f"--temperature: expected values of at least 0, got {self.temperatures}, change them")
        check_seed(self.seed)
        known = [method.key for method in suite.rows(self.saved)]
        twice = sorted({key for key in known if known.count(key) > 1})
        if twice:
            raise ValueError(f"--drafter-path: expected names that no row has yet, got {', '.join(twice)}, rename")
        for key in self.methods or ():
            if key not in known:
                raise ValueError(f"--methods: expected some of {', '.join(known)}, got {key!r}, pick from these")

    @property
    def rows(self) -> tuple[Method, ...]:
        """The methods asked for, always with the two that ratios are taken against."""
        made = suite_of(self.suite).rows(self.saved)
        wanted = {*(self.methods or [method.key for method in made]), PEER, PLAIN}
        return tuple(method for method in made if method.key in wanted)

    def serving(self, temperature: float) -> list[Method]:
        """The methods that exist at a temperature."""
        return [method for method in self.rows if method.serves(temperature)]

    def requests(self) -> int:
        """Requests in all, warm-ups among them: what a progress bar counts."""
        served = sum(len(self.serving(t)) for t in self.temperatures)
        counts = [self.prompts * task.times for task in suite_of(self.suite).tasks]
        return served * sum(count // size * self.repeats + 1 for count in counts for size in self.batches)


def bench_vlm(
    config: VlmBench = VlmBench(),
    shelf: Shelf | None = None,
    on_run: Callable[[str], None] = lambda text: None,
    log: Path | None = None,
) -> dict:
    """{"env": ..., "rows": [...]}: one row per method, task, batch size and temperature.

    Where a task's answers do not end by themselves, every method generates the same number of tokens: the end-of-text
    token is suppressed, so that the text goes on as text where an answer would have ended. on_run is told what ran. A
    method that fails gets a row with the reason instead of figures. log: where finished settings are kept, and found
    again, see `BenchLog`.
    """
    suite = suite_of(config.suite)
    shelf = shelf or zoo_shelf()
    with threads(config.threads), _log(log, config, shelf) as kept:
        rows: list[dict] = []
        for task in suite.tasks:
            prompts = task.make(config.prompts * task.times, config.seed)
            for size in config.batches:
                groups = [prompts[i : i + size] for i in range(0, len(prompts) - size + 1, size)]
                for temperature in config.temperatures:
                    part = {"task": task.name, "batch": size, "temperature": temperature}
                    setting = (config, suite, shelf, task, groups, temperature, on_run)
                    rows += kept.once(part, partial(_setting, *setting), partial(_skip, *setting))
        same = [
            kept.once({"same drafts": t}, partial(_same_drafts, config, suite, shelf, t))
            for t in config.temperatures
            if t > 0 and _compares(config)
        ]
        return {"env": _env(config, shelf), "rows": rows, "same_drafts": same}


def _log(file: Path | None, config: VlmBench, shelf: Shelf) -> BenchLog:
    if file is None:
        return BenchLog(None, {})
    saved = [Path(folder) for _, folder in config.saved]
    methods = [method.key for method in config.rows]
    about = {"bench": "vlm", "settings": asdict(config), "methods": methods, "model": shelf.name}
    return BenchLog(file, {**about, "code": fingerprint(saved), "machine": machine()})


def _setting(
    config: VlmBench,
    suite: Suite,
    shelf: Shelf,
    task: Task,
    groups: Sequence[Sequence[Prompt]],
    temperature: float,
    on_run: Callable[[str], None],
) -> list[dict]:
    """The rows of one task, batch size and temperature."""
    size = len(groups[0])
    generation = _generation(config, shelf, task, temperature)
    methods = config.serving(temperature)
    cases = [encode(shelf.processor, group) for group in groups]
    results = interleave(
        cases,
        {method.key: _runner_or_failure(method, shelf, generation) for method in methods},
        repeats=config.repeats,
        seed=config.seed,
        on_run=lambda key: on_run(f"{task.name}, batch {size}, T = {temperature:g}, {key}"),
    )
    shared = {"task": task.name, "pictures": task.pictures, "batch": size, "temperature": temperature}
    shared |= {"prompts": len(groups) * size, "limit": generation["max_new_tokens"], "natural_end": task.natural}
    shared |= certainty(shelf.model, cases, results[PEER], task.natural)
    rows = {method.key: row_of(method, results, shared, temperature == 0) for method in methods}
    for method in methods:
        if rows[method.key]["exact"] is not None:
            rows[method.key] |= training_of(method, shelf)
            rows[method.key] |= _costs(method, shelf, cases[:MEASURED], generation) if suite.measured else {}
    compare(methods, rows, results, suite.reference)
    return list(rows.values())


def _skip(
    config: VlmBench,
    suite: Suite,
    shelf: Shelf,
    task: Task,
    groups: Sequence[Sequence[Prompt]],
    temperature: float,
    on_run: Callable[[str], None],
) -> None:
    """Tells of the requests of a setting whose rows are kept."""
    for _ in range(len(config.serving(temperature)) * (len(groups) * config.repeats + 1)):
        on_run(f"{task.name}, batch {len(groups[0])}, T = {temperature:g}, kept")


def _generation(config: VlmBench, shelf: Shelf, task: Task, temperature: float) -> dict:
    longest = config.new_tokens or task.new_tokens
    return {"max_new_tokens": longest, **ending(shelf.model, task.natural), **sampling(temperature)}


def _costs(method: Method, shelf: Shelf, cases: Sequence[Inputs], generation: dict) -> dict:
    """A trained drafter timed alone; nothing for others, nor for what wraps one."""
    if method.drafter == "none" or not hasattr(drafter := drafter_of(method, shelf), "shape_for"):
        return {}
    return drafter_costs(shelf.model, drafter, cases, **generation)


def _runner_or_failure(method: Method, shelf: Shelf, generation: dict) -> Callable[[Inputs, int], Run]:
    """The method's runner; one that raises the reason where its parts are missing."""
    try:
        return make_runner(method, shelf, **generation)
    except ValueError as error:
        reason = error

        def fails(inputs: Inputs, seed: int) -> Run:
            raise reason

        return fails


def _compares(config: VlmBench) -> bool:
    """Whether rules are compared on trees drawn by EAGLE: all of them are among the methods."""
    return {f"eagle-{rule}" for rule in SAME_DRAFTS} <= {method.key for method in config.rows}


def _same_drafts(config: VlmBench, suite: Suite, shelf: Shelf, temperature: float) -> dict:
    """Accept lengths of the rules for sampled trees on identical drafts; the reason where the drafter is missing."""
    task = suite.tasks[0]
    prompts = task.make(min(config.prompts, SAME_PROMPTS), config.seed)
    record: dict = {"temperature": temperature, "prompts": len(prompts), "accept_length": None}
    method = next(method for method in config.rows if method.key == f"eagle-{SAME_DRAFTS[0]}")
    try:
        drafter = drafter_of(method, shelf)
    except ValueError as error:
        return {**record, "failed": str(error)}
    cases = [encode(shelf.processor, [prompt]) for prompt in prompts]
    generation = _generation(config, shelf, task, temperature)
    lengths = accept_lengths(shelf.model, drafter, cases, SAME_DRAFTS, **generation)
    return {**record, "accept_length": {name: round(value, 4) for name, value in lengths.items()}}


def _env(config: VlmBench, shelf: Shelf) -> dict:
    return environment(
        suite=config.suite,
        model=shelf.name,
        dtype=str(shelf.model.dtype).removeprefix("torch."),
        prompts=config.prompts,
        repeats=config.repeats,
        seed=config.seed,
        timing="whole calls with vision tower and prefill; medians of paired ratios of seconds per emitted token; spread: "
        "10th and 90th percentile",
    )


def verdict(result: dict) -> list[str]:
    """What is wrong with a finished bench: exact rows unlike transformers at T = 0, and methods of ours that failed."""
    wrong = []
    for row in result["rows"]:
        where = f"{row['method']} ({row['task']}, batch {row['batch']}, T = {row['temperature']:g})"
        same, _, of = (row["identical"] or "0/0").partition("/")
        if row["exact"] and same != of:
            wrong.append(f"{where}: expected the tokens of transformers, got them in {same} of {of} requests")
        if row["failed"] and not row["key"].startswith("hf-"):
            wrong.append(f"{where}: {row['failed']}")
    return wrong
