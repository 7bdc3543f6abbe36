"""Prompt sets by name: the zoo's own, and those of files that a user has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from mmspec.core.images import open_image
from mmspec.core.readers import read_json_lines, read_text
from mmspec.evaluate.engine.prompt import Prompt
from mmspec.evaluate.engine.sweep import Sweep
from mmspec.evaluate.sweep.pictures import picture_files, picture_in
from mmspec.evaluate.sweep.plan import Plan
from mmspec.evaluate.sweep.published_sets import coco, imagenet, mmspec_set

ASKED = "Describe this picture in detail."


def prompts_for(plan: Plan, sweep: Sweep, model: str) -> list[Prompt]:
    """The first `plan.count` prompts of the set that a model is asked.

    zoo: the world's own.   coco=FILE: captions of COCO's annotations.   imagenet=FILE: labels.   folder=DIR: pictures to
    describe.   texts=DIR: a text file a prompt, as DPG-Bench has them.
    jsonl=FILE: records of the user's.   mmspec=DIR: the public benchmark that is called MMSpec.
    Raises ValueError for a set of another name, files that are none, and sets without prompts.
    """
    if plan.prompts == "zoo":
        return sweep.prompts(model, plan.count, plan.seed)
    name, _, path = plan.prompts.partition("=")
    makers: dict[str, Callable[[Path], Iterable[Prompt]]] = {
        "coco": lambda file: coco(file, plan.pictures, sweep.shows == "text", plan.count),
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


def pictures(folder: Path) -> Iterable[Prompt]:
    """Every picture of a folder, to be described."""
    return [Prompt(file.stem, (ASKED,), pictures=(partial(open_image, file),)) for file in picture_files(folder)]


def texts(folder: Path) -> Iterable[Prompt]:
    """Every .txt of a folder, named as the file is."""
    return [Prompt(file.stem, (" ".join(read_text(file).split()),)) for file in sorted(folder.glob("*.txt"))]


def jsonl(file: Path, folder: Path) -> Iterable[Prompt]:
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
        real = record.get("real")
        found.append(
            Prompt(
                str(record.get("id", f"{number - 1:05d}")),
                tuple(turns),
                label,
                tuple(picture_in(folder, name, where) for name in shown),
                str(record.get("category", "")),
                tuple(answers),
                None if real is None else picture_in(folder, real, where),
                source=record,
            )
        )
    return found
