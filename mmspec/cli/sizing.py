"""`mmspec bench sizing`: the size of a drafter that pays, from finished benches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, refusing, save_json, say
from mmspec.cli.options import check_range, split_names, split_numbers
from mmspec.cli.tables import print_table

_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # the compared sizes, in units of the smallest and the largest measured size


@command()
def sizing(
    files: list[Path],
    *,
    sizes: str | None = None,
    methods: str | None = None,
    data: float | None = None,
    temperature: float = 0.0,
    batch: int = 1,
    json: Path | None = None,
) -> None:
    """Show the fastest size of a drafter: a fit of the accept length to the logarithms of size and training.

    It reads the rows of finished benches with trained drafters of one kind and several sizes. Nothing is decoded. Sizes more
    than 4 times beyond the measured sizes are refused.

    Args:
        files (FILE): JSON file of a bench; several are read together.
        sizes (N,N,...): Numbers of parameters to compare; the measured range and up to 4 times beyond it when left out.
        methods (NAMES): Methods of the rows to fit, separated by commas; all trained drafters when left out.
        data (X): Seconds of training of the compared sizes; the longest measured training when left out.
        temperature (T): Temperature of the rows to fit.
        batch (N): Requests at once in the rows to fit.

    Examples:
        mmspec bench sizing small.json large.json
        mmspec bench sizing drafters.json --methods eagle,eagle-wide --sizes 1e6,4e6
    """
    check_range(1, batch=batch)
    check_writable(json)
    wanted = split_numbers("--sizes", sizes, float)
    from mmspec.evaluate.sizing import drafters_of_bench, fit_sizes, round_times, rows_alike

    with refusing():
        rows = rows_alike(map(_bench_of, files), temperature=temperature, batch=batch)
        if methods is not None:
            names = split_names("--methods", methods)
            rows = [row for row in rows if row.get("method") in names]
        drafters = drafters_of_bench({"rows": rows})
        fit, times = fit_sizes(drafters), round_times(rows)
        amount = fit.data[1] if data is None else data
        compared = wanted or tuple(sorted({size * factor for size in fit.sizes for factor in _STEPS}))
        best, rate = fit.best_size(compared, amount, target=times.target, draft=times.draft, length=1)
        lengths = [fit.accept_length(size, amount) for size in compared]
    record = _record(fit, times, amount, compared, lengths, best, len(drafters))
    names = {"base": "constant", "by_data": "ln(training seconds)", "by_size": "ln(parameters)"}
    lines = [(names[key], f"{getattr(fit, key):.4g}", *(f"{edge:.4g}" for edge in fit.intervals[key])) for key in names]
    heads = ("term", "accept length", "2.5 %", "97.5 %")
    print_table(f"fit to {len(drafters)} drafters", heads, lines, right=heads[1:])
    shown = [
        (
            f"{entry['parameters']:,.0f}",
            f"{entry['accept_length']:.3f}",
            f"{entry['tokens_per_second']:.1f}",
            "fastest" if entry["parameters"] == best else "",
        )
        for entry in record["sizes"]
    ]
    heads = ("parameters", "accept length", "tokens / s", "")
    print_table(f"sizes after {amount:,.0f} s of training, estimates", heads, shown, right=heads[:3])
    save_json(json, record)
    say(f"fastest size: {best:,.0f} parameters, {rate:.1f} tokens a second (estimate)")


def _bench_of(file: Path) -> dict[str, Any]:
    from mmspec.io.readers import read_json

    bench = read_json(file)
    if not isinstance(bench, dict) or not isinstance(bench.get("rows"), list):
        raise BadOption(f"FILES: expected the JSON file of a finished bench, got {str(file)!r}, name another")
    return bench


def _record(
    fit: Any, times: Any, data: float, sizes: tuple[float, ...], lengths: list[float], best: float, count: int
) -> dict[str, Any]:
    rates = [length / (times.target + times.draft(size)) for size, length in zip(sizes, lengths, strict=True)]
    keys = ("parameters", "accept_length", "tokens_per_second")
    return {
        "drafters": count,
        "fit": {name: getattr(fit, name) for name in ("base", "by_data", "by_size")},
        "intervals": {name: list(interval) for name, interval in fit.intervals.items()},
        "training_seconds": data,
        "sizes": [dict(zip(keys, entry, strict=True)) for entry in zip(sizes, lengths, rates, strict=True)],
        "fastest": best,
    }
