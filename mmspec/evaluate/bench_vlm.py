"""`mmspec bench vlm`: plain and drafted decoding of a vision-language model, paired and interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mmspec.evaluate.bench import (
    Attempt,
    Run,
    completed,
    failures,
    interleave,
    middle,
    paired_ratios,
    spread,
)
from mmspec.evaluate.machine import environment, threads
from mmspec.evaluate.prompts import Prompt, check_seed, encode, held_out
from mmspec.evaluate.same_drafts import accept_lengths
from mmspec.evaluate.shelf import Shelf, zoo_shelf
from mmspec.evaluate.vlm_methods import (
    PEER,
    PLAIN,
    Inputs,
    Method,
    chosen,
    end_tokens,
    make_runner,
    sampling,
    without_end,
)

PARTS = ("draft", "target", "verify", "other")
SAME_DRAFTS, SAME_PROMPTS = ("traversal", "recursive", "match"), 10


@dataclass(frozen=True, slots=True)
class VlmBench:
    """What to run. methods: keys of METHODS, None for all.   threads: torch's, for every method alike."""

    prompts: int = 30
    new_tokens: int = 128
    batches: tuple[int, ...] = (1, 4)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    methods: tuple[str, ...] | None = None
    repeats: int = 1
    seed: int = 0
    threads: int = 2

    def __post_init__(self) -> None:
        for name in ("prompts", "new_tokens", "repeats", "threads"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag}: expected at least 1, got {getattr(self, name)}, raise it")
        if not self.batches or not all(1 <= size <= self.prompts for size in self.batches):
            raise ValueError(f"--batch: expected 1 to {self.prompts} (the prompts), got {self.batches}, change one")
        if not self.temperatures or not all(0 <= value < float("inf") for value in self.temperatures):
            raise ValueError(f"--temperature: expected values of at least 0, got {self.temperatures}, change them")
        check_seed(self.seed)
        chosen(self.methods)

    def requests(self) -> int:
        """Requests in all, warm-ups among them: what a progress bar counts."""
        served = [sum(m.serves(t) for m in chosen(self.methods)) for t in self.temperatures]
        return sum(served) * sum(self.prompts // size * self.repeats + 1 for size in self.batches)


def bench_vlm(
    config: VlmBench = VlmBench(), shelf: Shelf | None = None, on_run: Callable[[str], None] = lambda text: None
) -> dict:
    """{"env": ..., "rows": [...]}: one row per method, batch size and temperature.

    Every method generates the same number of tokens: the end-of-text token is suppressed, so that the text goes on as
    text where an answer would have ended. on_run is told what ran. A method that fails gets a row with the reason
    instead of figures.
    """
    with threads(config.threads):
        shelf = shelf or zoo_shelf()
        prompts = held_out(config.prompts, config.seed)
        rows: list[dict] = []
        for size in config.batches:
            groups = [prompts[i : i + size] for i in range(0, len(prompts) - size + 1, size)]
            for temperature in config.temperatures:
                rows += _setting(config, shelf, groups, temperature, on_run)
        same = [_same_drafts(config, shelf, prompts, t) for t in config.temperatures if t > 0 and _compares(config)]
        return {"env": _env(config, shelf), "rows": rows, "same_drafts": same}


def _compares(config: VlmBench) -> bool:
    """Whether rules are compared on trees drawn by EAGLE: all of them are among the methods."""
    return {f"eagle-{rule}" for rule in SAME_DRAFTS} <= {method.key for method in chosen(config.methods)}


def _same_drafts(config: VlmBench, shelf: Shelf, prompts: Sequence[Prompt], temperature: float) -> dict:
    """Accept lengths of the rules for sampled trees on identical drafts; the reason where the drafter is missing."""
    record: dict = {"temperature": temperature, "prompts": len(prompts[:SAME_PROMPTS]), "accept_length": None}
    try:
        drafter = shelf.drafter("eagle-static")
    except ValueError as error:
        return {**record, "failed": str(error)}
    cases = [encode(shelf.processor, [prompt]) for prompt in prompts[:SAME_PROMPTS]]
    generation = {"max_new_tokens": config.new_tokens, **without_end(shelf.model), **sampling(temperature)}
    lengths = accept_lengths(shelf.model, drafter, cases, SAME_DRAFTS, **generation)
    return {**record, "accept_length": {name: round(value, 4) for name, value in lengths.items()}}


def _env(config: VlmBench, shelf: Shelf) -> dict:
    return environment(
        model=shelf.name,
        dtype=str(shelf.model.dtype).removeprefix("torch."),
        prompts=config.prompts,
        new_tokens=config.new_tokens,
        repeats=config.repeats,
        seed=config.seed,
        timing="whole calls with vision tower and prefill; medians of paired ratios; spread: 10th and 90th percentile",
    )


def _setting(
    config: VlmBench,
    shelf: Shelf,
    groups: Sequence[Sequence[Prompt]],
    temperature: float,
    on_run: Callable[[str], None],
) -> list[dict]:
    """The rows of one batch size and temperature."""
    size = len(groups[0])
    generation = {"max_new_tokens": config.new_tokens, **without_end(shelf.model), **sampling(temperature)}
    methods = [method for method in chosen(config.methods) if method.serves(temperature)]
    cases = [encode(shelf.processor, group) for group in groups]
    runners = {method.key: _runner_or_failure(method, shelf, generation) for method in methods}
    results = interleave(
        cases,
        runners,
        repeats=config.repeats,
        seed=config.seed,
        on_run=lambda key: on_run(f"batch {size}, T = {temperature:g}, {key}"),
    )
    shared = {"batch": size, "temperature": temperature, "prompts": len(groups) * size, "tokens": config.new_tokens}
    shared |= _certainty(shelf, cases, results[PEER])
    return [_row(method, results, shared, temperature == 0) for method in methods]


def _runner_or_failure(method: Method, shelf: Shelf, generation: dict) -> Callable[[Inputs, int], Run]:
    """The method's runner; one that raises the reason where its parts are missing."""
    try:
        return make_runner(method, shelf, **generation)
    except ValueError as error:
        reason = error

        def fails(inputs: Inputs, seed: int) -> Run:
            raise reason

        return fails


def _row(method: Method, results: dict[str, list[list[Attempt]]], shared: dict, greedy: bool) -> dict:
    own = results[method.key]
    runs, failed = completed(own), failures(own)
    against = {name: paired_ratios(results[key], own) for name, key in (("hf", PEER), ("ar", PLAIN))}
    return {
        "method": method.title,
        "key": method.key,
        "exact": runs[0].exact if runs else None,
        **shared,
        "target_passes": middle([run.target_passes for run in runs], 1),
        "accept_length": _mean([run.accept_length for run in runs]),
        "seconds": middle([run.seconds for run in runs], 4),
        "speedup_vs_ar": middle(against["ar"]),
        "speedup_vs_hf": middle(against["hf"]),
        "spread_vs_ar": spread(against["ar"]),
        "spread": spread(against["hf"]),
        **_time_split(runs),
        "identical": _identical(results[PEER], own) if greedy else None,
        "failed": failed[0].reason if failed else None,
        "requests": len(runs) + len(failed),
        "failed_requests": len(failed),
    }


def _time_split(runs: Sequence[Run]) -> dict:
    """Shares of the decode time (the call less the prefill) and milliseconds per round, by part."""
    split = [run for run in runs if run.parts is not None and run.target_passes > 1]
    row: dict = {}
    total = sum(run.seconds - run.parts["prefill"] for run in split)
    rounds = sum(run.target_passes - 1 for run in split)
    for part in PARTS:
        seconds = sum(run.parts[part] for run in split)
        row[f"{part}_share"] = round(seconds / total, 4) if split else None
        row[f"{part}_ms"] = round(1000 * seconds / rounds, 3) if split else None
    row["prefill_ms"] = middle([1000 * run.parts["prefill"] for run in split], 3)
    return row


def _identical(peer: list[list[Attempt]], own: list[list[Attempt]]) -> str | None:
    """How many requests gave the peer's tokens, as "29/30"."""
    pairs = [pair for case in zip(peer, own, strict=True) for pair in zip(*case, strict=True)]
    both = [(a, b) for a, b in pairs if isinstance(a, Run) and isinstance(b, Run)]
    return f"{sum(a.output == b.output for a, b in both)}/{len(both)}" if both else None


@torch.no_grad()
def _certainty(shelf: Shelf, cases: Sequence[Inputs], peer: list[list[Attempt]]) -> dict:
    """How easy the text is, over the tokens the peer generated.

    top1_probability: the target's mean largest probability at temperature 1.   answer_share: tokens up to the first
    place where the target would most probably have ended its answer.
    """
    top1, inside = [], []
    for inputs, run in zip(cases, _first_runs(peer), strict=True):
        if run is None:
            continue
        new = torch.tensor(run.output)
        # in two passes: a sampled placeholder id would ask the first one for a picture
        first = shelf.model(**inputs, use_cache=True, logits_to_keep=1)
        mask = torch.cat([inputs["attention_mask"], torch.ones_like(new)], 1)
        rest = shelf.model(input_ids=new, attention_mask=mask, past_key_values=first.past_key_values)
        logits = torch.cat([first.logits, rest.logits[:, :-1]], 1).float()
        ends = torch.tensor(end_tokens(shelf.model), dtype=torch.long)
        inside.append((torch.isin(logits.argmax(-1), ends).cumsum(-1) == 0).flatten())
        top1.append(logits.index_fill(-1, ends, float("-inf")).softmax(-1).amax(-1).flatten())
    if not top1:
        return {"top1_probability": None, "answer_share": None}
    return {
        name: round(float(torch.cat(x).float().mean()), 3)
        for name, x in (("top1_probability", top1), ("answer_share", inside))
    }


def _first_runs(attempts: Sequence[Sequence[Attempt]]) -> list[Run | None]:
    """Per case its first completed run."""
    return [next((one for one in case if isinstance(one, Run)), None) for case in attempts]


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def verdict(result: dict) -> list[str]:
    """What is wrong with a finished bench: exact rows unlike transformers at T = 0, and methods of ours that failed."""
    wrong = []
    for row in result["rows"]:
        where = f"{row['method']} (batch {row['batch']}, T = {row['temperature']:g})"
        same, _, of = (row["identical"] or "0/0").partition("/")
        if row["exact"] and same != of:
            wrong.append(f"{where}: expected the tokens of transformers, got them in {same} of {of} requests")
        if row["failed"] and not row["key"].startswith("hf-"):
            wrong.append(f"{where}: {row['failed']}")
    return wrong
