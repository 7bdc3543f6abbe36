"""What a session refuses, and that a refused call leaves the conversation as it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

import mmspec
from mmspec.io.images import MAX_PIXELS, ImageError
from mmspec.vlm.drafters import PromptLookup
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import sample_scene
from tests.vlm.layer_kinds import model_with
from tests.vlm.tiny import words

SETTINGS = dict(max_new_tokens=6, do_sample=False)
PICTURE = render(sample_scene(7))


@pytest.fixture(scope="module")
def zoo() -> tuple:
    return mmspec.zoo.load("vlm")


@pytest.fixture
def session(zoo: tuple) -> mmspec.Session:
    return mmspec.Session(*zoo, **SETTINGS)


def untouched(session: mmspec.Session) -> bool:
    return session.messages == [] and session.pictures == [] and session.past_key_values.ids == []


def large() -> Image.Image:
    """A picture of too many pixels that takes hardly any memory: one bit each."""
    return Image.new("1", (9_000, 9_000))


@pytest.mark.parametrize("call", ("add", "ask"))
@pytest.mark.parametrize(
    "item",
    ("http://127.0.0.1:9/a.png", "data:image/png;base64,iVBORw0KGgo=", "{folder}/a.png", Path("a.png"), b"\x89PNG", None,
     3, [PICTURE], {"url": "http://127.0.0.1:9/a.png"}, np.array("a.png"), np.array([[None] * 8] * 8)),
    ids=("address", "data address", "path", "Path", "bytes", "None", "number", "list", "dict", "array of text",
         "array of objects"),
)  # fmt: skip
def test_an_item_that_is_no_picture_is_refused_before_anything_is_opened(
    session: mmspec.Session, item: Any, call: str, tmp_path: Path
) -> None:
    PICTURE.save(tmp_path / "a.png")
    item = item.replace("{folder}", str(tmp_path)) if isinstance(item, str) else item
    with (
        patch("socket.socket.connect", side_effect=AssertionError("a connection")),
        pytest.raises(ImageError, match=r"images: expected .* got .*open_image"),
    ):
        getattr(session, call)("What is this?", [PICTURE, item])
    assert untouched(session)


@pytest.mark.parametrize(
    "item",
    (large(), np.broadcast_to(np.uint8(0), (9_000, 9_000, 3)), torch.zeros(1, 1, 1).expand(3, 9_000, 9_000),
     Image.new("RGB", (2, 50)), np.zeros((50, 3, 3)), torch.zeros(2, 3, 20, 20), torch.zeros(20, 20, 7)),
    ids=("81 megapixels", "81 megapixels, array", "81 megapixels, tensor", "narrow", "narrow array", "a batch",
         "seven channels"),
)  # fmt: skip
def test_pictures_outside_the_gate_are_refused(session: mmspec.Session, item: Any) -> None:
    with pytest.raises(ImageError, match="images: expected .* got"):
        session.ask("What is this?", [item])
    assert untouched(session) and MAX_PIXELS < 81_000_000


@pytest.mark.parametrize(
    "item",
    (PICTURE, np.asarray(PICTURE), torch.tensor(np.asarray(PICTURE)).permute(2, 0, 1)),
    ids=("PIL", "array", "tensor"),
)
def test_pictures_arrays_and_tensors_are_accepted(session: mmspec.Session, item: Any) -> None:
    assert session.ask("What is this?", [item])
    assert len(session.pictures) == 1 and len(session.messages) == 2


def truncated(folder: Path) -> Image.Image:
    """A file whose header is whole and whose pixels are not: Pillow opens it, and reads it later."""
    PICTURE.resize((200, 200)).save(folder / "a.png")
    whole = (folder / "a.png").read_bytes()
    (folder / "b.png").write_bytes(whole[: len(whole) // 3])
    return Image.open(folder / "b.png")


def normalised(folder: Path) -> np.ndarray:
    return np.asarray(PICTURE) / 127.5 - 1


@pytest.mark.parametrize("make", (truncated, normalised), ids=lambda one: one.__name__)
def test_a_picture_that_the_processor_refuses_does_not_stay(session: mmspec.Session, make: Any, tmp_path: Path) -> None:
    bad = make(tmp_path)
    with pytest.raises(ValueError, match="images: expected"):
        session.add("What is this?", [bad])
    assert untouched(session)
    with pytest.raises(ValueError, match="images: expected"):
        session.ask("What is this?", [bad])
    assert untouched(session)
    assert session.ask("What is this?", [PICTURE]) and len(session.pictures) == 1


def test_a_picture_that_is_refused_later_leaves_the_turns_before_it(session: mmspec.Session, tmp_path: Path) -> None:
    session.ask("What is this?", [PICTURE])
    messages, ids = copy.deepcopy(session.messages), list(session.past_key_values.ids)
    with pytest.raises(ValueError, match="images: expected"):
        session.ask("And this?", [truncated(tmp_path)])
    assert session.messages == messages and len(session.pictures) == 1 and session.past_key_values.ids == ids
    session.ask("And what is left of it?")
    assert session.last.read < 30


def test_a_message_that_the_template_refuses_does_not_stay(zoo: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = zoo
    strict = (
        "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}" + processor.chat_template
    )
    monkeypatch.setattr(processor, "chat_template", strict)
    session = mmspec.Session(model, processor, **SETTINGS)
    session.add("Hello?")
    with pytest.raises(ValueError, match="messages: expected .*one message only"):
        session.add("Hello again?")
    assert len(session.messages) == 1


def test_a_system_message_is_checked_with_the_user_message_that_has_to_follow(
    zoo: tuple, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, processor = zoo
    strict = (
        "{% if messages[-1]['role'] != 'user' and add_generation_prompt %}{{ raise_exception('no user') }}{% endif %}"
    )
    monkeypatch.setattr(processor, "chat_template", strict + processor.chat_template)
    session = mmspec.Session(model, processor, **SETTINGS)
    session.add("Be brief.", role="system")
    with pytest.raises(ValueError, match="images: expected"):
        session.add("Look.", [truncated(tmp_path)], role="system")
    assert [message["role"] for message in session.messages] == ["system"] and not session.pictures
    with pytest.raises(ValueError, match="role: expected user or system, got 'assistant'"):
        session.add("Yes.", role="assistant")


@pytest.mark.parametrize("token", ("image_token", "video_token", "audio_token"))
def test_placeholders_of_every_kind_are_refused_in_a_text(
    zoo: tuple, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, processor = zoo
    monkeypatch.setattr(processor, token, "<seen>", raising=False)
    session = mmspec.Session(model, processor, **SETTINGS)
    with pytest.raises(ValueError, match="text: expected no placeholder '<seen>'"):
        session.ask("Look at <seen>.")
    assert untouched(session)


@pytest.mark.parametrize("pictures", (0, 1))
def test_the_last_message_can_be_removed(session: mmspec.Session, pictures: int) -> None:
    session.ask("What is this?", [PICTURE])
    before, answers = copy.deepcopy(session.messages), []
    other = render(sample_scene(8))
    session.ask("And this?", [other] * pictures)
    assert session.remove_last_message()["role"] == "assistant"
    answers.append(session.generate())  # the same question is answered again
    assert session.last.read <= 2
    for role in ("assistant", "user"):
        assert session.remove_last_message()["role"] == role
    assert session.messages == before and len(session.pictures) == 1
    session.add("And this one?", [PICTURE] * pictures)
    inputs = session.inputs()
    truth = session.model.generate(**inputs, **SETTINGS)
    assert torch.equal(session.generate().sequences, truth)


def test_messages_that_recurrent_layers_have_read_can_be_removed() -> None:
    model, tokenizer = model_with("Qwen3_5ForCausalLM"), copy.deepcopy(words())
    tokenizer.chat_template = (
        "{% for one in messages %}{{ 'w5 ' + one['content'] + ' w6 ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'w7' }}{% endif %}"
    )
    session = mmspec.Session(model, tokenizer, **SETTINGS)
    session.ask("w11 w12 w13")
    session.ask("w21 w22")
    for _ in range(2):
        session.remove_last_message()
    session.add("w31 w32")
    inputs = session.inputs()
    truth = model.generate(**inputs, **SETTINGS)
    assert torch.equal(session.generate().sequences, truth)


def test_nothing_is_removed_from_an_empty_conversation(session: mmspec.Session) -> None:
    with pytest.raises(ValueError, match="session: expected a message to remove, got none"):
        session.remove_last_message()


def test_pictures_are_processed_once_for_a_turn(session: mmspec.Session) -> None:
    calls, processor = [], type(session.processor).__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return processor(self, *args, **kwargs)

    with patch.object(type(session.processor), "__call__", counted):
        session.ask("What is this?", [PICTURE])
    assert len(calls) == 1


def test_a_session_and_its_calls_take_seed_drafter_and_rule(zoo: tuple) -> None:
    sampled = dict(max_new_tokens=12, do_sample=True)
    answers = []
    for made, called in ((dict(seed=3), {}), ({}, dict(seed=3)), (dict(seed=4), dict(seed=3)), (dict(seed=4), {})):
        session = mmspec.Session(*zoo, rule="token", **made, **sampled)
        answers.append(session.ask("What is this?", [PICTURE], drafter=None, **called))
        assert session.last.stats.drafter == "none" and session.last.stats.rule == "token"
    assert answers[0] == answers[1] == answers[2] != answers[3]
    session = mmspec.Session(*zoo, drafter=PromptLookup(), **SETTINGS)
    session.ask("What is this?", [PICTURE])
    assert session.last.stats.drafter == "prompt_lookup"
    session.ask("And now?", drafter=None, rule="match")
    assert session.last.stats.drafter == "none"
    session.ask("And now?", drafter="auto")
    assert session.last.stats.drafter.startswith("goodput")


WRONG = {
    "past_key_values": None,
    "input_ids": torch.ones(1, 3),
    "pixel_values": None,
    "attention_mask": None,
    "seed": "three",
    "drafter": "eagle",
    "rule": "magic",
    "max_new_tokens": 2.5,
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_are_validated_by_the_session_and_by_its_calls(zoo: tuple, session: mmspec.Session, name: str) -> None:
    wrong = {name: WRONG[name]}
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        mmspec.Session(*zoo, **wrong)
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        session.ask("What is this?", [PICTURE], **wrong)
    assert untouched(session)
    session.add("Hello?")
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        session.generate(**wrong)
    assert len(session.messages) == 1


def test_a_drafter_class_is_refused_by_both(zoo: tuple, session: mmspec.Session) -> None:
    with pytest.raises(ValueError, match="drafter: expected"):
        mmspec.Session(*zoo, drafter=PromptLookup)
    with pytest.raises(ValueError, match="drafter: expected"):
        session.ask("What is this?", drafter=PromptLookup)
    assert untouched(session)
