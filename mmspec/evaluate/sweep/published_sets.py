"""Prompt sets as they are published: COCO's captions, ImageNet's labels, the benchmark called MMSpec."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mmspec.core.readers import read_json, read_json_lines, read_text
from mmspec.evaluate.engine.prompt import Prompt
from mmspec.evaluate.sweep.pictures import picture_in

CAPTION = "Describe this picture in one sentence."


def coco(file: Path, pictures: Path | None, asks: bool, count: int) -> Iterable[Prompt]:
    """Captions of `captions_*.json`, one a picture, in the order of the pictures' ids.

    asks: a model is asked to caption the pictures, whose folder must be known; else the first caption of each is drawn, and
    its picture is the real one where the folder is known.
    """
    table = read_json(file)
    try:
        names = {one["id"]: one["file_name"] for one in table["images"]}
        captions: dict[int, list[str]] = {}
        for one in sorted(table["annotations"], key=lambda note: note["id"]):
            captions.setdefault(one["image_id"], []).append(" ".join(one["caption"].split()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file}: expected COCO's caption annotations, got a file without {error}; name captions_*.json"
        ) from error
    if asks and pictures is None:
        raise ValueError(
            "--pictures: expected the folder of COCO's pictures for a model that captions them, got none, name it"
        )
    found = []
    for number in sorted(captions)[:count]:
        lines = tuple(captions[number])
        opened = None if pictures is None else picture_in(pictures, names.get(number, f"{number:012d}.jpg"), str(file))
        if asks:
            found.append(Prompt(f"coco-{number}", (CAPTION,), pictures=(opened,)))
        else:
            found.append(Prompt(f"coco-{number}", lines[:1], real=opened))
    return found


def imagenet(file: Path) -> Iterable[Prompt]:
    """Labels: a JSON object of {"0": ["n01440764", "tench"]} or {"0": "tench"}, or a text file with a name a line."""
    if file.suffix == ".json":
        table = read_json(file)
        names = [table[key] for key in sorted(table, key=_label)]
        names = [one[-1] if isinstance(one, list) and one else one for one in names]
    else:
        names = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    if not all(isinstance(one, str) for one in names):
        raise ValueError(
            f"{file}: expected a name for every label, got others; name imagenet_class_index.json or a text file"
        )
    plain = [one.split(",")[0].replace("_", " ") for one in names]
    return [Prompt(f"class-{label}", (f"a photo of a {one}",), label=label) for label, one in enumerate(plain)]


def _label(key: str) -> int:
    if not key.isdigit():
        raise ValueError(
            f"labels: expected numbers as keys, got {key!r}; name imagenet_class_index.json or a text file"
        )
    return int(key)


def mmspec_set(folder: Path) -> Iterable[Prompt]:
    """The public benchmark that is called MMSpec, which shares its name with this package and nothing else: records of id,
    image, turns and category in `mmspec.jsonl` beside a folder `images`. Turns are said one after another."""
    found = []
    for number, record in enumerate(read_json_lines(folder / "mmspec.jsonl"), 1):
        where = f"{folder / 'mmspec.jsonl'}, line {number}"
        turns, shown = record.get("turns"), record.get("image")
        if (
            not isinstance(turns, list)
            or not turns
            or not all(isinstance(one, str) for one in turns)
            or "id" not in record
        ):
            raise ValueError(
                f"{where}: expected id, image, turns and category, got {sorted(record)}; fetch the set again"
            )
        names = [] if shown is None else shown if isinstance(shown, list) else [shown]
        opened = tuple(
            picture_in(folder / "images", Path(str(one)).name if _under(one) else str(one), where) for one in names
        )
        found.append(Prompt(str(record["id"]), tuple(turns), pictures=opened, category=str(record.get("category", ""))))
    return found


def _under(name: object) -> bool:
    """Whether a picture is named with the folder it lies in."""
    return isinstance(name, str) and Path(name).parts[:1] == ("images",) and len(Path(name).parts) == 2
