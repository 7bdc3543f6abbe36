"""`mmspec supported`: which models, which drafters, how exact, how tested."""

from __future__ import annotations

from pathlib import Path

from mmspec.cli.command import command
from mmspec.cli.console import check_writable, print_table, save_json, say


@command()
def supported(*, json: Path | None = None) -> None:
    """Model classes, the drafters that work with them, whether the result keeps the model's law, and how that is tested."""
    check_writable(json)
    from mmspec.evaluate.supported import RULES_BY, UNTESTED
    from mmspec.evaluate.supported import supported as matrix

    found = matrix()
    save_json(json, found)
    models, pairs, table = found["models"], found["combinations"], found["greedy table"]
    untested = {(one["model"], one["drafter"]) for one in pairs if one["greedy tested by"] == UNTESTED}
    sampled = dict.fromkeys(one["sampled tested by"] for one in pairs)
    laws = [_marked(one, {drafter for model, drafter in untested if model == one["model"]}) for one in models]
    for title, records in (
        ("models: the law of each drafter's output, greedy and sampled", laws),
        (f"every image-text class of transformers {table['transformers']}", found["image-text classes"]),
        (f"every causal and image-text class of transformers {table['transformers']}: taken", found["classes"]),
        ("refused, with a sentence and before any token", found["refused classes"]),
        ("image models, beside LlamaGen", found["image models"]),
        ("image models of continuous tokens: the law of each decoding", found["models of vectors"]),
        ("video models that draw blocks, any two of the same latents together", found["video models"]),
        ("videos: the law of each decoding", found["videos"]),
        ("drafters", found["drafters"]),
        ("rules for sampled requests; greedy ones are verified by target-match", found["rules"]),
    ):
        print_table(title, records[0], (one.values() for one in records))
    say(
        f"Greedy output is tested by: {models[0]['tested by']}; ~ marks pairs that are {UNTESTED}.\n"
        f"Rules are tested by {RULES_BY}; sampled output by {', and by '.join(sampled)}.\n"
        f"Classes: tiny random models of {len(table['classes'])} classes, greedily with and without drafts, against "
        "transformers.generate;\nyes: the same tokens, partly: some requests are refused. A class that is not in the first "
        "table proves itself when it is first used; by enable: the first use of a fresh model through mmspec.enable.\n"
        "Exact: sampled output has the model's law, greedy output its tokens (in fp32; at lower precision two nearly "
        "equal logits can change places)."
    )


def _marked(record: dict, untested: set[str]) -> dict:
    """A model's record for the screen."""
    shown = {name: f"{value}~" if name in untested else value for name, value in record.items()}
    shown.pop("tested by")
    return shown
