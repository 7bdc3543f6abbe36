"""`mmspec supported`: which models, which drafters, how exact, how tested."""

from __future__ import annotations

from mmspec.cli.console import check_writable, save_json, screen, told
from mmspec.cli.options import Json


@told
def supported(json: Json = None) -> None:
    """Model classes, the drafters that work with them, and whether the result keeps the model's law."""
    check_writable(json)
    from mmspec.evaluate.supported import drafter_records, model_records

    models, drafters = model_records(), drafter_records()
    save_json(json, {"models": models, "drafters": drafters})
    out = screen()
    out.print(_table("models: what each drafter's output is, greedy and sampled", models))
    out.print(_table("drafters", drafters))
    out.print(
        "Other decoder-only *ForCausalLM classes with full attention are taken too, untested.\n"
        "Exact: sampled output has the model's law, greedy output its tokens (in fp32; at lower precision two nearly "
        "equal logits can change places).",
        soft_wrap=True,
    )


def _table(title: str, records: list[dict]) -> object:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in records[0]:
        table.add_column(name)
    for record in records:
        table.add_row(*map(str, record.values()))
    return table
