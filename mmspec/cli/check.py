"""`mmspec check`: a first look at a model."""

from __future__ import annotations

from pathlib import Path

import typer

from mmspec.cli.command import command
from mmspec.cli.console import check_writable, progress, quiet_transformers, refusing, save_json, say, screen
from mmspec.cli.options import check_range, placement_of


@command()
def check(
    model: str,
    *,
    drafter: str | None = None,
    fetch: bool = False,
    config: bool = False,
    tokens: int = 32,
    device: str = "auto",
    memory: str | None = None,
    row: int = 4096,
    json: Path | None = None,
) -> None:
    """Look at a model first: whether it is supported, which drafters fit, its memory, and the next command.

    With weights, a few tokens are decoded plainly and with drafts. A config alone is enough for the rest. Nothing is
    downloaded without --fetch. The exit code is 0 for a supported model, and 1 for a refused model or for tokens that differ
    in float32.

    Args:
        model (MODEL): Model: a folder, a config file, zoo:NAME, or a hub id in your Hugging Face cache.
        drafter (TEXT): Drafter to compare with, such as eagle@FOLDER; the best available drafter when left out.
        fetch (--fetch): Download a hub id that is not in the cache.
        config (--config): Read the config alone.
        tokens (N): Number of tokens of the comparison.
        memory (SIZE): Memory budget such as 8GB, for which the longest drafts are named; a budget without room is refused.
        row (N): Tokens of a row within that budget, half of them generated.

    Examples:
        mmspec check zoo:vlm
        mmspec check my-model --drafter lookup
        mmspec check my-model --config --memory 8GB --row 8192
        mmspec check Qwen/Qwen2.5-VL-3B-Instruct --fetch --config
    """
    check_range(1, tokens=tokens)
    check_range(2, row=row)
    check_writable(json)
    device = placement_of(device).device
    quiet_transformers()
    with progress() as bar, refusing():
        from mmspec.check import check as check_model
        from mmspec.check import report_lines
        from mmspec.check.examine import STEPS

        task = bar.add_task(STEPS[0], total=len(STEPS))
        report = check_model(
            model,
            drafter=drafter,
            fetch=fetch,
            load=not config,
            tokens=tokens,
            device=device,
            memory=memory,
            row=row,
            on_step=lambda step: bar.update(task, description=step, completed=STEPS.index(step)),
        )
    save_json(json, report.to_dict())
    for line in report_lines(report, screen().width):
        say(line)
    if not report.is_sound:
        raise typer.Exit(1)
