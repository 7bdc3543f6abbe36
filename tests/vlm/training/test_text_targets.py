"""Training for models of text alone: chat templates, earlier turns, and the scores of a reduced vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from mmspec.vlm.training.examples import Example, JsonExamples, encode, prompt_text
from mmspec.vlm.training.teacher import Teacher
from mmspec.vlm.training.teacher_scores import TeacherScores
from mmspec.vlm.training.teacher_store import TeacherStore
from tests.vlm.tiny import HIDDEN, tiny
from tests.vlm.training.test_given_answers import bytes_of

# joins strings, as the template of SmolLM2 does: a list of parts would be a TypeError
JOINS = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
HISTORY = (("user", "hello"), ("assistant", "hi"))


def tokenizer(template: str | None = JOINS):
    made = bytes_of()
    made.chat_template = template
    made.pad_token = "!"
    return made


def test_a_template_that_joins_strings_renders_every_turn() -> None:
    example = Example("k", "and you?", history=HISTORY)
    assert prompt_text(tokenizer(), example) == "<user>hello<assistant>hi<user>and you?<assistant>"
    assert prompt_text(tokenizer(None), example) == "hello\nhi\nand you?"


def test_rows_of_text_are_padded_on_the_left() -> None:
    inputs = encode(tokenizer(), [Example("a", "x"), Example("b", "longer", history=HISTORY)])
    assert inputs["attention_mask"].sum(1).tolist() == [len("<user>x<assistant>"), inputs["input_ids"].shape[1]]
    assert inputs["attention_mask"][0, -1] == 1 and inputs["attention_mask"][0, 0] == 0


def test_pictures_for_a_model_of_text_are_refused() -> None:
    with pytest.raises(ValueError, match="^images: expected none"):
        encode(tokenizer(), [Example("a", "x", (Image.new("RGB", (4, 4)),))])
    with pytest.raises(ValueError, match="^images: expected none"):
        encode(tokenizer(None), [Example("a", "x", (Image.new("RGB", (4, 4)),))])


def test_earlier_turns_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    turns = [{"role": role, "content": text} for role, text in HISTORY]
    file.write_text(json.dumps({"text": "x", "history": turns}) + "\n" + json.dumps({"text": "y"}))
    assert JsonExamples(file)[0].history == HISTORY and JsonExamples(file)[1].history == ()


@pytest.mark.parametrize("history", ([1], [{"role": "user"}], "no", [{"role": "user", "content": 3}]))
def test_a_history_that_is_none_is_refused(history: object, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"text": "x", "history": history}))
    with pytest.raises(ValueError, match="line 1: expected"):
        JsonExamples(file)


class _Scaled(nn.Module):
    """A head that does more than a product."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


@pytest.mark.parametrize("scaled", (False, True))
def test_scores_of_a_reduced_vocabulary_are_columns_of_the_whole(scaled: bool) -> None:
    head = tiny("llama").lm_head
    head = _Scaled(head) if scaled else head
    last, ids, places = torch.randn(9, HIDDEN), torch.tensor([1, 4, 50, 99]), torch.tensor([0, 0, 3, 8])
    whole = head(last)
    found = TeacherScores.of(head, last, ids)
    torch.testing.assert_close(found(places), whole[places][:, ids])
    assert found.columns(torch.tensor([4, 5, 99, 0, 100])).tolist() == [1, -100, 3, -100, -100]
    everything = TeacherScores.of(head, last, None)
    torch.testing.assert_close(everything(places), whole[places].float())
    assert everything.columns(ids) is ids


def test_embeddings_of_texts_are_looked_up_again(tmp_path: Path) -> None:
    model, names = tiny("llama"), tokenizer()
    ids = {"a": [5, 6, 7], "b": [9]}
    examples = [Example("a", "!", history=()), Example("b", "!!")]
    names.chat_template = "{{ messages[0]['content'] }}"  # byte tokens above the tiny vocabulary stay out
    teacher = Teacher(model, names, ids, levels=(0, 1, 1), precision="no")
    batch = teacher(examples)
    looked_up, stored = TeacherStore(tmp_path / "a", teacher.parts.embed), TeacherStore(tmp_path / "b")
    for store in (looked_up, stored):
        store.write(0, batch)
        found = store(0)
        torch.testing.assert_close(found.embeds, batch.embeds, rtol=1e-2, atol=1e-3)
    assert looked_up.path(0).stat().st_size < stored.path(0).stat().st_size
    with pytest.raises(ValueError, match="expected a stored teacher batch"):
        TeacherStore(tmp_path / "a")(0)
