"""Records of requests: common forms are read, and a field that nobody reads is refused by its name."""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.prompt_sets import prompts_for
from mmspec.evaluate.image.domain import DOMAIN as PICTURES
from mmspec.vlm.training.data import contents_of, load_training_data
from mmspec.vlm.training.examples import Example, JsonExamples, encode, reference_answer_ids
from tests.evaluate.tiny_zoo import byte_processor

ASKED = "What is it?"
HUMAN = {"from": "human", "value": f"<image>\n{ASKED}"}
GPT = {"from": "gpt", "value": "A dog."}
USER, REPLY = {"role": "user", "content": ASKED}, {"role": "assistant", "content": "A dog."}
SYSTEM = {"role": "system", "content": "Be brief."}


def parts(*items: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": i} if isinstance(i, str) else i for i in items]}


# records with the same request: the picture a.png, the question, and the answer
SAME = {
    "images": {"text": ASKED, "images": ["a.png"], "answer": "A dog."},
    "image": {"text": ASKED, "image": "a.png", "answer": "A dog."},
    "image in a list": {"text": ASKED, "image": ["a.png"], "answer": "A dog."},
    "images as a text": {"prompt": ASKED, "images": "a.png", "answer": "A dog."},
    "a mark": {"text": f"<image>\n{ASKED}", "image": "a.png", "answer": "A dog."},
    "LLaVA": {"id": "7", "image": "a.png", "conversations": [HUMAN, GPT]},
    "LLaVA, picture last": {
        "image": "a.png",
        "model": "",
        "conversations": [{"from": "human", "value": f"{ASKED}\n<image>"}, GPT],
    },
    "messages": {"messages": [USER, REPLY], "images": ["a.png"]},
    "messages with a mark": {"messages": [{"role": "user", "content": f"<image>{ASKED}"}, REPLY], "images": ["a.png"]},
    "parts": {"messages": [parts({"type": "image"}, ASKED), REPLY], "images": ["a.png"]},
    "parts with names": {"messages": [parts({"type": "image", "image": "a.png"}, ASKED), REPLY]},
    "parts with addresses": {"messages": [parts(ASKED, {"type": "image_url", "image_url": {"url": "a.png"}}), REPLY]},
    "an answer beside": {"messages": [USER], "image": "a.png", "answer": "A dog."},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, shade in (("a.png", "navy"), ("b.png", "red")):
        Image.new("RGB", (8, 8), shade).save(tmp_path / name)
    return tmp_path


def written(folder: Path, *records: dict, text: str | None = None) -> Path:
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records) if text is None else text, "utf-8")
    return file


def evaluated(file: Path) -> list[EvaluationPrompt]:
    domain = copy(PICTURES)
    domain.shows = "text"
    return prompts_for(SweepPlan(folder=Path("run"), models=("t2i",), prompts=f"jsonl={file}"), domain, "t2i")


@pytest.mark.parametrize("form", SAME)
def test_common_forms_are_the_same_request(form: str, folder: Path) -> None:
    file = written(folder, SAME[form])
    example, (prompt,) = JsonExamples(file)[0], evaluated(file)
    assert (example.text, example.answer, example.history, len(example.images)) == (ASKED, "A dog.", (), 1)
    assert example.images[0].getpixel((0, 0)) == (0, 0, 128)
    assert (prompt.turns, prompt.answers, len(prompt.pictures)) == ((ASKED,), ("A dog.",), 1)


def test_a_list_of_records_is_read_like_lines(folder: Path) -> None:
    records = [{"image": "a.png", "conversations": [HUMAN, GPT]}, {"text": "And now?"}]
    file = written(folder, text=json.dumps(records, indent=1))
    assert [example.text for example in (JsonExamples(file)[0], JsonExamples(file)[1])] == [ASKED, "And now?"]
    assert [prompt.text for prompt in evaluated(file)] == [ASKED, "And now?"]


def test_the_last_answer_is_the_answer_and_earlier_turns_are_the_history(folder: Path) -> None:
    turns = [SYSTEM, USER, REPLY, {"role": "user", "content": "Its colour?"}, {"role": "assistant", "content": "Red."}]
    example = JsonExamples(written(folder, {"messages": turns, "image": "a.png"}))[0]
    history = (("system", "Be brief."), ("user", ASKED), ("assistant", "A dog."))
    assert (example.history, example.text, example.answer) == (history, "Its colour?", "Red.")
    processor = byte_processor()
    ids = encode(processor, [example])["input_ids"][0].tolist()
    text = processor.decode(ids)
    assert text.index("Be brief.") < text.index("<image>") < text.index(ASKED) < text.index("Its colour?")
    assert processor.decode(reference_answer_ids(processor, example), skip_special_tokens=True).strip() == "Red."
    with pytest.raises(ValueError, match="line 1: expected a question and its answer in messages, got 4 turns"):
        evaluated(folder / "data.jsonl")


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "one\u2028two"}\n',
        '{"text": "one\u2029t\u0085wo\u000b"}\n'.replace("\u000b", ""),
        '\ufeff{"text": "a"}\n',
        '{"text": "a"}\n\n  \n{"text": "b"}\n\n',
        '{"text": "a"}\r\n{"text": "b"}\r\n',
        '{"text": "a"}',
    ],
)
def test_separators_in_texts_empty_lines_and_marks_of_byte_order_are_no_errors(text: str, folder: Path) -> None:
    file = folder / "data.jsonl"
    file.write_bytes(text.encode())
    wanted = [json.loads(line)["text"] for line in text.removeprefix("\ufeff").split("\n") if line.strip()]
    assert [example.text for example in (JsonExamples(file)[i] for i in range(len(wanted)))] == wanted
    assert [prompt.text for prompt in evaluated(file)] == wanted


UNREAD = {
    "imag": {"text": "a", "imag": "a.png"},
    "question": {"text": "a", "question": "b"},
    "video": {"messages": [USER], "video": "a.mp4"},
    "image and images": {"text": "a", "image": "a.png", "images": ["a.png"]},
    "text and messages": {"text": "a", "messages": [USER]},
    "no text": {"image": "a.png"},
    "picture missing": {"text": "<image>\na"},
    "two marks": {"text": "<image><image>\na", "image": "a.png"},
    "within": {"text": "a <image> b", "image": "a.png"},
    "later": {"messages": [USER, REPLY, {"role": "user", "content": "<image> And?"}], "image": "a.png"},
    "of the assistant": {"messages": [USER, {"role": "assistant", "content": "<image>"}], "image": "a.png"},
    "address": {"messages": [parts({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}, ASKED)]},
    "data": {"messages": [parts({"type": "image", "image": "data:image/png;base64,AAAA"}, ASKED)]},
    "audio": {"messages": [parts({"type": "audio", "audio": "a.wav"}, ASKED)]},
    "tool": {"messages": [USER, {"role": "tool", "content": "3"}]},
    "weight": {"messages": [USER | {"weight": 0}]},
    "an answer first": {"conversations": [GPT, HUMAN], "image": "a.png"},
    "two answers": {"messages": [USER, REPLY], "answer": "no"},
    "letters": {"messages": "abc"},
    "text as a number": {"text": 3},
    "answer as a list": {"text": "a", "answer": ["b"]},
    "answer as a truth": {"text": "a", "answer": True},
    "image as a number": {"text": "a", "image": 3},
    "images as an object": {"text": "a", "images": {"path": "a.png"}},
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_is_refused_in_a_sentence(name: str, folder: Path) -> None:
    file = written(folder, {"text": "first"}, UNREAD[name])
    for read in (JsonExamples, evaluated):
        with pytest.raises(ValueError, match=r"data\.jsonl, line 2: expected") as caught:
            read(file)
        assert "\n" not in str(caught.value) and ";" in str(caught.value)
        if name in ("imag", "question", "video"):
            assert f"got {name}; rename or remove" in str(caught.value)


def test_numbers_as_answers_are_their_texts(folder: Path) -> None:
    file = written(folder, {"text": "how many?", "answer": 3})
    example = JsonExamples(file)[0]
    assert example.answer == "3" and evaluated(file)[0].answers == ("3",)
    assert byte_processor().decode(reference_answer_ids(byte_processor(), example)[:-1]).strip() == "3"
    assert evaluated(written(folder, {"text": "how many?", "answers": [3, "three"]}))[0].answers == ("3", "three")


@pytest.mark.parametrize(
    ("record", "turns", "pictures", "answers"),
    [
        ({"turns": "abc"}, ("abc",), 0, ()),
        ({"text": "a", "answers": "yes"}, ("a",), 0, ("yes",)),
        ({"text": "a", "images": "a.png"}, ("a",), 1, ()),
        ({"turns": "abc", "text": "abc"}, ("abc",), 0, ()),
        ({"turns": [], "text": "a"}, ("a",), 0, ()),
        ({"turns": ["a", "b"], "image": ["a.png", "b.png"]}, ("a", "b"), 2, ()),
    ],
)
def test_a_text_for_a_list_is_a_single_item(
    record: dict, turns: tuple, pictures: int, answers: tuple, folder: Path
) -> None:
    (prompt,) = evaluated(written(folder, record))
    assert (prompt.turns, len(prompt.pictures), prompt.answers) == (turns, pictures, answers)


def test_data_is_recognised_by_its_contents(folder: Path) -> None:
    def contents(*records: dict) -> str:
        data = load_training_data(written(folder, *records), held_out=0)
        return contents_of([data.mixed])

    base = {"text": "a", "image": "a.png", "answer": "b"}
    first = contents(base, {"text": "c"})
    assert first == contents(base, {"text": "c"})
    others = [contents(base | change, {"text": "c"}) for change in ({"text": "x"}, {"answer": "x"}, {"image": "b.png"})]
    Image.new("RGB", (8, 8), "green").save(folder / "a.png")
    assert len({first, *others, contents(base, {"text": "c"})}) == 5
    assert contents_of([[Example("a", "b")]]) != contents_of([[Example("a", "c")]])


def test_pictures_of_a_folder_are_read_or_named(folder: Path) -> None:
    for name in ("c.bmp", "d.tiff", "e.gif", "f.webp", "G.JPG"):
        Image.new("RGB", (8, 8)).save(folder / name)
    (folder / "._a.png").write_bytes(b"\0\5\x16\7")
    with pytest.warns(UserWarning, match=r"expected pictures in PNG, JPEG or WebP, got c\.bmp, d\.tiff, e\.gif"):
        plan = SweepPlan(folder=Path("run"), models=("t2i",), prompts=f"folder={folder}")
        prompts = prompts_for(plan, PICTURES, "t2i")
    assert [prompt.key for prompt in prompts] == ["G", "a", "b", "f"]
    assert prompts[0].pictures[0]().size == (8, 8)
