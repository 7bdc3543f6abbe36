"""Prompt sets are read as they are published; what they name outside their folder is refused."""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path

import pytest

from mmspec.evaluate.base.prompt import EvaluationPrompt, set_digest
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.prompt_sets import prompts_for
from mmspec.evaluate.image.domain import DOMAIN as PICTURES
from tests.evaluate.tiny_run import noise

TEXTS = copy(PICTURES)
TEXTS.shows = "text"


def read(prompts: str, domain=PICTURES, **changed: object) -> list[EvaluationPrompt]:
    return prompts_for(SweepPlan(folder=Path("run"), models=("t2i",), prompts=prompts, **changed), domain, "t2i")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for name in ("000000000009.jpg", "7.jpg", "a.png"):
        noise(1).save(tmp_path / "images" / name)
    return tmp_path


def test_the_zoos_prompts_are_held_out_seeded_and_have_real_pictures() -> None:
    first, same, other = (read("zoo", seed=seed, count=3) for seed in (0, 0, 1))
    assert [prompt.text for prompt in first] == [prompt.text for prompt in same] != [prompt.text for prompt in other]
    assert first[0].real().size == (64, 64) and len({one.key for one in (*first, *other)}) == 6


def test_coco_is_drawn_from_its_first_captions_and_captioned_from_its_pictures(folder: Path) -> None:
    table = {
        "images": [{"id": 9, "file_name": "000000000009.jpg"}, {"id": 7, "file_name": "7.jpg"}],
        "annotations": [
            {"id": 5, "image_id": 9, "caption": "a second\n caption"},
            {"id": 2, "image_id": 9, "caption": "a cat "},
            {"id": 3, "image_id": 7, "caption": "a dog"},
        ],
    }
    (folder / "captions.json").write_text(json.dumps(table))
    drawn = read(f"coco={folder / 'captions.json'}", pictures=folder / "images")
    assert [(sample.key, sample.text) for sample in drawn] == [("coco-7", "a dog"), ("coco-9", "a cat")]
    assert drawn[0].real().size == (16, 16)
    asked = read(f"coco={folder / 'captions.json'}", TEXTS, pictures=folder / "images")
    assert [len(prompt.pictures) for prompt in asked] == [1, 1] and "Describe" in asked[0].text
    with pytest.raises(ValueError, match="--pictures: expected the folder of COCO's pictures"):
        read(f"coco={folder / 'captions.json'}", TEXTS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("index.json", json.dumps({"0": ["n01440764", "tench"], "10": ["n1", "snow_bunting"], "2": ["n2", "shark"]})),
        ("names.json", json.dumps({"0": "tench, Tinca tinca", "2": "shark", "10": "snow bunting"})),
        ("names.txt", "tench, Tinca tinca\nshark\n\nsnow bunting\n"),
    ],
)
def test_imagenet_labels_in_the_order_of_their_numbers(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = read(f"imagenet={tmp_path / name}")
    assert [(entry.label, entry.text) for entry in found] == [
        (n, f"a photo of a {word}") for n, word in enumerate(("tench", "shark", "snow bunting"))
    ]


def test_a_folder_of_pictures_is_described(folder: Path) -> None:
    (folder / "images" / "notes.txt").write_text("no picture")
    found = read(f"folder={folder / 'images'}")
    assert [entry.key for entry in found] == ["000000000009", "7", "a"] and found[0].pictures[0]().size == (16, 16)


def test_text_files_are_prompts_named_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "partiprompts0.txt").write_text("a red\n cube\n")
    assert [(entry.key, entry.text) for entry in read(f"texts={tmp_path}")] == [("partiprompts0", "a red cube")]


def test_the_benchmark_called_mmspec_is_a_conversation_about_a_picture(folder: Path) -> None:
    lines = [
        {"id": 1, "image": "a.png", "turns": ["What is it?", "And why?"], "category": "ocr"},
        {"id": 2, "image": "images/a.png", "turns": ["Count."], "category": "math"},
    ]
    (folder / "mmspec.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = read(f"mmspec={folder}", TEXTS)
    assert first.turns == ("What is it?", "And why?") and first.category == "ocr"
    assert first.pictures[0]().size == second.pictures[0]().size == (16, 16)


def test_records_of_a_user_keep_their_source_fields(folder: Path) -> None:
    lines = [
        {"id": "x", "text": "what?", "image": "a.png", "answers": ["yes"], "category": "c"},
        {"prompt": "a photo of a bench", "tag": "single_object", "include": [{"class": "bench", "count": 1}]},
        {"id": "y", "label": 3},
    ]
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read(f"jsonl={folder / 'set.jsonl'}", pictures=folder / "images")
    assert [entry.key for entry in found] == ["x", "00001", "y"] and found[0].answers == ("yes",)
    assert found[1].source == lines[1] and found[2].label == 3 and found[2].text == "class 3"


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "images/../../secret.png"])
@pytest.mark.parametrize("kind", ["jsonl", "mmspec", "coco"])
def test_a_picture_outside_the_set_is_refused(kind: str, name: str, folder: Path) -> None:
    inner = folder / "set"
    inner.mkdir()
    (inner / "images").mkdir()
    if kind == "coco":
        table = {"images": [{"id": 1, "file_name": name}], "annotations": [{"id": 1, "image_id": 1, "caption": "c"}]}
        (inner / "c.json").write_text(json.dumps(table))
        where, more = f"coco={inner / 'c.json'}", {"pictures": inner}
    else:
        record = {"id": 1, "text": "t", "turns": ["t"], "image": name, "category": ""}
        (inner / "mmspec.jsonl").write_text(json.dumps(record) + "\n")
        where, more = (f"mmspec={inner}" if kind == "mmspec" else f"jsonl={inner / 'mmspec.jsonl'}"), {}
    with pytest.raises(ValueError, match="expected a picture inside"):
        read(where, TEXTS, **more)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("magic", "--prompts: expected zoo, or one of coco"),
        ("coco=", "--prompts: expected zoo, or one of coco"),
        ("folder=/nowhere", "expected a folder with pictures"),
        ("jsonl=/nowhere.jsonl", "expected a text file"),
        ("coco={}/bad.json", "expected COCO's caption annotations"),
        ("jsonl={}/bad.jsonl", "expected a text, turns or a label"),
        ("jsonl={}/label.jsonl", "expected a whole number as label, got '3'"),
        ("jsonl={}/twice.jsonl", "expected every id once"),
        ("jsonl={}/none.jsonl", "expected at least one prompt"),
        ("mmspec={}", "expected id, image, turns and category"),
        ("imagenet={}/bad.json", "expected numbers as keys"),
    ],
)
def test_an_invalid_prompt_set_reports_one_error(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"images": []}')
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "label.jsonl").write_text('{"id": 1, "label": "3"}\n')
    (tmp_path / "twice.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "mmspec.jsonl").write_text('{"id": 1, "image": "a.png"}\n')
    with pytest.raises(ValueError, match=said) as caught:
        read(text.format(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_digest_is_of_all_that_a_model_sees() -> None:
    base = EvaluationPrompt("a", ("x",), pictures=(lambda: noise(1),))
    same = EvaluationPrompt("b", ("x",), pictures=(lambda: noise(1),), category="other")
    others = [
        EvaluationPrompt("a", ("y",), pictures=base.pictures),
        EvaluationPrompt("a", ("x", "x"), pictures=base.pictures),
        EvaluationPrompt("a", ("x",), 1, base.pictures),
        EvaluationPrompt("a", ("x",), pictures=(lambda: noise(2),)),
        EvaluationPrompt("a", ("x",)),
    ]
    assert base.digest() == same.digest() and len({one.digest() for one in (base, *others)}) == 6
    assert set_digest(["a", "b"]) != set_digest(["b", "a"])


def test_a_text_for_several_models_is_one_model() -> None:
    plan = SweepPlan(folder=Path("run"), models="t2i", decodings="sjd:window=8", rules="exact")
    assert (plan.models, plan.decodings, plan.rules) == (("t2i",), ("sjd:window=8",), ("exact",))
    base = EvaluationPrompt("a", ("x",), answers=("yes",))
    assert base.digest() != EvaluationPrompt("a", ("x",), answers=("no",)).digest()  # scores depend on the answers
