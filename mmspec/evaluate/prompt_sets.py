"""Prompt sets by name: the zoo's, published ones (COCO, ImageNet, MMSpec), and files of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from PIL.Image import Image

from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.io.images import open_image
from mmspec.io.readers import read_json, read_json_lines, read_text

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def picture_files(folder: Path) -> list[Path]:
    """The pictures of a folder by name.   Raises ValueError where there is no folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with pictures, got none there; check the path")
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def picture_in(folder: Path, name: str, where: str) -> Callable[[], Image]:
    """A picture of a set, opened through the gate.   Raises ValueError for a name that leads out of the folder."""
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{where}: expected a picture inside {folder}, got {name!r}; name one that lies there")
    return partial(open_image, file)


CAPTION_REQUEST = "Describe this picture in one sentence."


def coco(file: Path, pictures: Path | None, asks: bool, count: int) -> Iterable[EvaluationPrompt]:
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
            found.append(EvaluationPrompt(f"coco-{number}", (CAPTION_REQUEST,), pictures=(opened,)))
        else:
            found.append(EvaluationPrompt(f"coco-{number}", lines[:1], real=opened))
    return found


def imagenet(file: Path) -> Iterable[EvaluationPrompt]:
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
    return [
        EvaluationPrompt(f"class-{label}", (f"a photo of a {one}",), label=label) for label, one in enumerate(plain)
    ]


def _label(key: str) -> int:
    if not key.isdigit():
        raise ValueError(
            f"labels: expected numbers as keys, got {key!r}; name imagenet_class_index.json or a text file"
        )
    return int(key)


def mmspec_set(folder: Path) -> Iterable[EvaluationPrompt]:
    """The public benchmark that is called MMSpec, which shares its name with this package and nothing else: records of id,
    image, turns and category in `mmspec.jsonl` beside a folder `images`. Turns are said one after another."""
    found = []
    for number, record in enumerate(read_json_lines(folder / "mmspec.jsonl"), 1):
        where = f"{folder / 'mmspec.jsonl'}, line {number}"
        turns, shown = record.get("turns"), record.get("image")
        is_spoken = isinstance(turns, list) and turns and all(isinstance(one, str) for one in turns)
        if not is_spoken or "id" not in record:
            raise ValueError(
                f"{where}: expected id, image, turns and category, got {sorted(record)}; fetch the set again"
            )
        names = [] if shown is None else shown if isinstance(shown, list) else [shown]
        names = [Path(str(one)).name if _under(one) else str(one) for one in names]
        opened, category = tuple(picture_in(folder / "images", one, where) for one in names), record.get("category", "")
        found.append(EvaluationPrompt(str(record["id"]), tuple(turns), pictures=opened, category=str(category)))
    return found


def _under(name: object) -> bool:
    """Whether a picture is named with the folder it lies in."""
    return isinstance(name, str) and Path(name).parts[:1] == ("images",) and len(Path(name).parts) == 2


DESCRIBE = "Describe this picture in detail."


def prompts_for(plan: SweepPlan, domain: Domain, model: str) -> list[EvaluationPrompt]:
    """The first `plan.count` prompts of the set that a model is asked.

    zoo: the world's own.   coco=FILE: captions of COCO's annotations.   imagenet=FILE: labels.   folder=DIR: pictures to
    describe.   texts=DIR: a text file a prompt, as DPG-Bench has them.
    jsonl=FILE: records of the user's.   mmspec=DIR: the public benchmark that is called MMSpec.
    Raises ValueError for a set of another name, files that are none, and sets without prompts.
    """
    if plan.prompts == "zoo":
        return domain.prompts(model, plan.count, plan.seed)
    name, _, path = plan.prompts.partition("=")
    makers: dict[str, Callable[[Path], Iterable[EvaluationPrompt]]] = {
        "coco": lambda file: coco(file, plan.pictures, domain.shows == "text", plan.count),
        "imagenet": imagenet,
        "folder": pictures,
        "texts": texts,
        "jsonl": lambda file: jsonl(file, plan.pictures or file.parent),
        "mmspec": mmspec_set,
    }
    if name not in makers or not path:
        raise ValueError(
            f"--prompts: expected zoo, or one of {', '.join(makers)} as NAME=PATH, got {plan.prompts!r}, correct it"
        )
    found = list(makers[name](Path(path)))[: plan.count]
    if not found:
        raise ValueError(f"--prompts: expected at least one prompt, got none in {path!r}, name another set")
    keys = [one.key for one in found]
    if len(set(keys)) < len(keys):
        raise ValueError(f"--prompts: expected every id once, got some twice in {path!r}, rename them")
    return found


def pictures(folder: Path) -> Iterable[EvaluationPrompt]:
    """Every picture of a folder, to be described."""
    return [
        EvaluationPrompt(file.stem, (DESCRIBE,), pictures=(partial(open_image, file),))
        for file in picture_files(folder)
    ]


def texts(folder: Path) -> Iterable[EvaluationPrompt]:
    """Every .txt of a folder, named as the file is."""
    return [EvaluationPrompt(file.stem, (" ".join(read_text(file).split()),)) for file in sorted(folder.glob("*.txt"))]


def jsonl(file: Path, folder: Path) -> Iterable[EvaluationPrompt]:
    """Records {"id", "text" (or "prompt") or "turns", "label", "image" or "images", "category", "answers", "real"}:
    all optional, as long as there is a text or a label; GenEval's metadata is of this kind. Pictures lie in `folder`."""
    found = []
    for number, record in enumerate(read_json_lines(file), 1):
        where = f"{file}, line {number}"
        said = record.get("text", record.get("prompt"))
        turns = record.get("turns") or ([] if said is None else [said])
        label = record.get("label")
        if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
            raise ValueError(f"{where}: expected a whole number as label, got {label!r}; correct it")
        if label is not None and not turns:
            turns = [f"class {label}"]
        texts = isinstance(turns, list) and turns and all(isinstance(one, str) and one.strip() for one in turns)
        if not texts:
            raise ValueError(f"{where}: expected a text, turns or a label, got {sorted(record)}; complete it")
        shown = record.get("images", [record["image"]] if "image" in record else [])
        answers = record.get("answers", [])
        if not all(isinstance(one, str) for one in (*shown, *answers)):
            raise ValueError(f"{where}: expected names of pictures and answers as texts, got others; correct them")
        name, category = str(record.get("id", f"{number - 1:05d}")), str(record.get("category", ""))
        seen = tuple(picture_in(folder, one, where) for one in shown)
        real = picture_in(folder, record["real"], where) if record.get("real") is not None else None
        found.append(EvaluationPrompt(name, tuple(turns), label, seen, category, tuple(answers), real, source=record))
    return found
