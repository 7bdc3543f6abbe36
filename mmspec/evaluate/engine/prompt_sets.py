"""Prompt sets by name: the zoo's, published sets (COCO, ImageNet, MMSpec), and the user's files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from warnings import warn

from PIL.Image import Image

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.io.images import open_image
from mmspec.io.readers import read_json, read_placed_lines, read_text
from mmspec.io.records import NOTES, answer_in, check_names, images_in, read_records, request_in, texts_in

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_UNREAD = (".bmp", ".dib", ".tif", ".tiff", ".gif", ".jfif", ".jpe", ".apng", ".heic", ".heif", ".avif", ".jp2", ".jxl",
           ".ppm", ".pgm", ".tga", ".ico", ".svg", ".psd")  # fmt: skip


def picture_files(folder: Path) -> list[Path]:
    """Return the pictures of a folder by name, and warn of pictures in formats that are not read."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with pictures, got none there; check the path")
    # macOS writes hidden companions, "._a.jpg", beside the files that it copies
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    if unread := [file.name for file in files if file.suffix.lower() in _UNREAD]:
        more = f" and {len(unread) - 5} more" if len(unread) > 5 else ""
        warn(
            f"{folder}: expected pictures in PNG, JPEG or WebP, got {', '.join(unread[:5])}{more}; they are left out, save "
            "them as PNG",
            stacklevel=2,
        )
    return [file for file in files if file.suffix.lower() in SUFFIXES]


def picture_in(folder: Path, name: str, where: str) -> Callable[[], Image]:
    """Return a function that opens a picture of a set with the checks of `open_image`; the name may not lead out of the
    folder."""
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{where}: expected a picture inside {folder}, got {name!r}; name a picture in that folder")
    return partial(open_image, file)


CAPTION_REQUEST = "Describe this picture in one sentence."


def coco(file: Path, pictures: Path | None, asks: bool, count: int) -> Iterable[EvaluationPrompt]:
    """Return captions of `captions_*.json`, one per picture, in the order of the pictures' ids. If `asks`, the model
    captions the pictures, which needs their folder. Otherwise the first caption of each picture is drawn, and the
    picture is its real picture."""
    table = read_json(file)
    try:
        names = {image["id"]: image["file_name"] for image in table["images"]}
        captions: dict[int, list[str]] = {}
        for note in sorted(table["annotations"], key=lambda note: note["id"]):
            captions.setdefault(note["image_id"], []).append(" ".join(note["caption"].split()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file}: expected COCO's caption annotations, got a file without {error}; name captions_*.json"
        ) from error
    if asks and pictures is None:
        raise ValueError(
            "--pictures: expected the folder of COCO's pictures for a model that captions them, got none, name it"
        )
    prompts = []
    for number in sorted(captions)[:count]:
        lines = tuple(captions[number])
        opened = None if pictures is None else picture_in(pictures, names.get(number, f"{number:012d}.jpg"), str(file))
        if asks:
            prompts.append(EvaluationPrompt(f"coco-{number}", (CAPTION_REQUEST,), pictures=(opened,)))
        else:
            prompts.append(EvaluationPrompt(f"coco-{number}", lines[:1], real=opened))
    return prompts


def imagenet(file: Path) -> Iterable[EvaluationPrompt]:
    """Return a prompt per label of a JSON object, {"0": ["n01440764", "tench"]} or {"0": "tench"}, or of a text file
    with a name per line."""
    if file.suffix == ".json":
        table = read_json(file)
        names = [table[key] for key in sorted(table, key=_label)]
        names = [name[-1] if isinstance(name, list) and name else name for name in names]
    else:
        names = [line.strip() for line in read_text(file).split("\n") if line.strip()]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{file}: expected a name for every label, got others; name imagenet_class_index.json or a text file"
        )
    plain = [name.split(",")[0].replace("_", " ") for name in names]
    return [
        EvaluationPrompt(f"class-{label}", (f"a photo of a {name}",), label=label) for label, name in enumerate(plain)
    ]


def _label(key: str) -> int:
    if not key.isdigit():
        raise ValueError(
            f"labels: expected numbers as keys, got {key!r}; name imagenet_class_index.json or a text file"
        )
    return int(key)


def mmspec_set(folder: Path) -> Iterable[EvaluationPrompt]:
    """Return the prompts of the public benchmark MMSpec, which only shares its name with this package. Its records of
    id, image, turns and category are in `mmspec.jsonl` beside a folder `images`."""
    prompts = []
    for where, record in read_placed_lines(folder / "mmspec.jsonl"):
        turns, shown = record.get("turns"), record.get("image")
        is_spoken = isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns)
        if not is_spoken or "id" not in record:
            raise ValueError(
                f"{where}: expected id, image, turns and category, got {sorted(record)}; fetch the set again"
            )
        names = [] if shown is None else shown if isinstance(shown, list) else [shown]
        names = [Path(str(name)).name if _under(name) else str(name) for name in names]
        opened, category = (
            tuple(picture_in(folder / "images", name, where) for name in names),
            record.get("category", ""),
        )
        prompts.append(EvaluationPrompt(str(record["id"]), tuple(turns), pictures=opened, category=str(category)))
    return prompts


def _under(name: object) -> bool:
    """Return whether a picture is named with its folder."""
    return isinstance(name, str) and Path(name).parts[:1] == ("images",) and len(Path(name).parts) == 2


DESCRIBE = "Describe this picture in detail."


def prompts_for(plan: SweepPlan, domain: Domain, model: str) -> list[EvaluationPrompt]:
    """Return the first `plan.count` prompts of the plan's set for a model. The sets are "zoo", the world's own prompts;
    "coco=FILE", captions of COCO's annotations; "imagenet=FILE", labels; "folder=DIR", pictures to describe;
    "texts=DIR", a text file per prompt as in DPG-Bench; "jsonl=FILE", the user's records; and "mmspec=DIR", the public
    benchmark MMSpec."""
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
    prompts = list(makers[name](Path(path)))[: plan.count]
    if not prompts:
        raise ValueError(f"--prompts: expected at least one prompt, got none in {path!r}, name another set")
    keys = [prompt.key for prompt in prompts]
    if len(set(keys)) < len(keys):
        raise ValueError(f"--prompts: expected every id once, got some twice in {path!r}, rename them")
    return prompts


def pictures(folder: Path) -> Iterable[EvaluationPrompt]:
    """Return a prompt to describe each picture of a folder."""
    return [
        EvaluationPrompt(file.stem, (DESCRIBE,), pictures=(partial(open_image, file),))
        for file in picture_files(folder)
    ]


def texts(folder: Path) -> Iterable[EvaluationPrompt]:
    """Return every .txt file of a folder, named after the file."""
    return [EvaluationPrompt(file.stem, (" ".join(read_text(file).split()),)) for file in sorted(folder.glob("*.txt"))]


_GENEVAL = ("tag", "include", "exclude")  # read by its own judge, from the record
_FIELDS = ("id", "key", "text", "prompt", "turns", "messages", "conversations", "label", "image", "images", "category",
           "answer", "answers", "real", *_GENEVAL, *NOTES)  # fmt: skip


def jsonl(file: Path, folder: Path) -> Iterable[EvaluationPrompt]:
    """Return the prompts of a file of JSON records.

    Their fields are "id" (or "key"), "text" (or "prompt") or "turns" or a conversation of a question and perhaps its answer
    ("messages", LLaVA's "conversations"), "label", "image" or "images", "category", "answers" (or "answer") and "real". All
    are optional, but a text or a label is needed; GenEval's metadata has this form. Other fields are refused, except notes
    such as "source". Pictures are in `folder`.
    """
    prompts = []
    for number, (where, record) in enumerate(read_records(file)):
        check_names(where, record, _FIELDS)
        label = record.get("label")
        if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
            raise ValueError(f"{where}: expected a whole number as label, got {label!r}; correct it")
        turns, shown, answers = _request_parts(where, record, label)
        if not turns or not all(turn.strip() for turn in turns):
            raise ValueError(f"{where}: expected a text, turns or a label, got {sorted(record)}; complete it")
        seen = tuple(picture_in(folder, name, where) for name in shown)
        reals = texts_in(where, "real", record.get("real"))
        if len(reals) > 1:
            raise ValueError(f"{where}: expected a single picture as real, got {len(reals)}; keep one of them")
        real = picture_in(folder, reals[0], where) if reals else None
        key, category = str(record.get("id", record.get("key", f"{number:05d}"))), str(record.get("category", ""))
        prompts.append(EvaluationPrompt(key, turns, label, seen, category, answers, real, source=record))
    return prompts


def _request_parts(
    where: str, record: dict[str, Any], label: int | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return a record's turns, the names of its pictures, and its answers."""
    several = record.get("answers")
    items = several if isinstance(several, list) else [several]
    answers = tuple(text for item in items if (text := answer_in(where, "answers", item)) is not None)
    forms = [name for name in ("text", "prompt", "messages", "conversations") if record.get(name) is not None]
    if record.get("turns") or not forms:
        turns = texts_in(where, "turns", record.get("turns")) or (() if label is None else (f"class {label}",))
        if forms and [record[form] for form in forms] != [turns[0]]:
            raise ValueError(f"{where}: expected a text or turns, got turns and {forms[0]}; keep one of them")
        own = answer_in(where, "answer", record.get("answer"))
        shown = images_in(where, record)
    else:
        request = request_in(where, record)
        if len(request.turns) > 1:
            raise ValueError(
                f"{where}: expected a question and its answer in {forms[0]}, got {len(request.turns)} turns "
                "before the answer; write the user's texts as turns, which the model answers"
            )
        turns, shown, own = (request.turns[0][1],), request.images, request.answer
    if own is not None and answers:
        raise ValueError(f"{where}: expected one of answer and answers, got two answers; keep one of them")
    return turns, shown, answers or (() if own is None else (own,))
