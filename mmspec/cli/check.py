"""`mmspec check`: what to know of a model before anything else."""

from __future__ import annotations

from pathlib import Path

import typer

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, quiet_transformers, refusing, save_json, say, spinner
from mmspec.cli.options import check_choice, check_range


@command()
def check(
    model: str, *, drafter: str | None = None, fetch: bool = False, config: bool = False, tokens: int = 32,
    device: str = "auto", json: Path | None = None,
) -> None:  # fmt: skip
    """Show what to know about a model first: whether it is taken, which drafters fit, its memory, and the next command.

    Where the weights are there, it decodes a few tokens plainly and with drafts. A config alone is enough for the rest.
    Nothing is fetched unasked. The exit code is 0 for a model that is taken, and 1 for a model that is refused or whose
    tokens differ in float32.

    Args:
        model (MODEL): A folder, a config file, zoo:NAME, or a hub id in your Hugging Face cache.
        drafter (TEXT): The drafter to compare with, such as eagle@FOLDER; the best at hand when left out.
        fetch (--fetch): Fetch a hub id that is not in the cache.
        config (--config): Look at the config alone.
        tokens (N): Tokens of the comparison.
        device: auto, cpu or cuda.
    """
    check_range(1, tokens=tokens)
    check_choice(("auto", "cpu", "cuda"), device=device)
    check_writable(json)
    quiet_transformers()
    with spinner("checking the model"), refusing():
        from mmspec.check import check as check_model
        from mmspec.check import report_lines

        if device == "cuda":
            _need_gpu()
        report = check_model(model, drafter=drafter, fetch=fetch, load=not config, tokens=tokens, device=device)
    save_json(json, report.to_dict())
    for line in report_lines(report):
        say(line)
    if not report.is_sound:
        raise typer.Exit(1)


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise BadOption("--device: expected an available cuda device, got none; use --device cpu")
