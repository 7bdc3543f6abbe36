"""The drafters of the page on drafters: greedy text is the target's own, sampled text has its law, pictures are let be."""

from __future__ import annotations

import pytest
from PIL import Image
from typer.testing import CliRunner

import mmspec
from mmspec.cli import app
from mmspec.methods import names, parse
from tests.docs.examples import imported, said
from tests.evaluate.tiny_zoo import byte_processor, tiny_zoo, use_tiny_zoo
from tests.vlm.test_sampled_law import PROMPT, ROWS, STEPS, exact_law, narrow, p_value


def test_it_runs_as_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_zoo(monkeypatch)
    copied, named, drawn = said(monkeypatch, capsys, "use_drafter")
    assert copied == named and copied.startswith("identical: True") and drawn.startswith("exact: True")


def test_both_are_known_by_name_once_the_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = CliRunner().invoke(app, ["methods", "last_seen"])
    assert unknown.exit_code == 2 and "last_seen" not in names("vlm", "drafter")
    module = imported(monkeypatch, "drafter")
    assert {"last_seen", "unigram"} <= set(names("vlm", "drafter", exact=True))
    made = parse("last_seen:length=6", "vlm", "drafter").make()
    assert type(made) is module.LastSeen and made.length == 6
    shown = CliRunner().invoke(app, ["methods", "last_seen"]).stdout
    assert "a drafter for text; exact" in shown and "The most tokens of a draft" in shown
    for wrong in ("last_seen:length=0", "unigram:smoothing=0", "unigram:lenght=2"):
        with pytest.raises(ValueError, match="expected .*, got .*"):
            parse(wrong, "vlm", "drafter").make()


def test_ragged_rows_with_pictures_keep_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    (model, _), processor = tiny_zoo()["vlm"], byte_processor()
    processor.tokenizer.padding_side = "left"
    texts = ["USER: <image>\nabcabcabcabc ASSISTANT:", "USER: <image>\nx ASSISTANT:"]
    inputs = processor(text=texts, images=[Image.new("RGB", (8, 8), "red")] * 2, padding=True, return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    answers = plain[:, inputs["input_ids"].shape[1] :].tolist()

    class Foresighted(imported(monkeypatch, "drafter").LastSeen):
        """Has seen the answers before, so that drafts stand now and then."""

        def open(self, target):
            state = super().open(target)
            for after, answer in zip(state.after, answers, strict=True):
                after |= zip(answer, answer[1:], strict=False)
            return state

    asked = dict(max_new_tokens=40, do_sample=False, return_dict=True)
    out = mmspec.generate(model, drafter=Foresighted(5), **asked, **inputs)
    assert out.sequences.equal(plain) and out.stats.accept_length > 1.2
    drafted = imported(monkeypatch, "drafter").LastSeen(5)
    assert mmspec.generate(model, drafter=drafted, **asked, **inputs).sequences.equal(plain)


def test_no_picture_token_is_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    (model, _), processor = tiny_zoo()["vlm"], byte_processor()
    inputs = processor(text="USER: <image>\nab ASSISTANT:", images=Image.new("RGB", (8, 8), "red"), return_tensors="pt")
    drafted = []

    class Watched(imported(monkeypatch, "drafter").Unigram):
        def propose(self, target, keys):
            draft = super().propose(target, keys)
            drafted.extend(draft.value[0, 1:].tolist())
            return draft

    mmspec.generate(model, drafter=Watched(64), do_sample=True, seed=0, max_new_tokens=16, **inputs)
    placeholder = model.config.image_token_id
    assert (inputs["input_ids"] == placeholder).sum() > 2 and len(drafted) > 60 and placeholder not in drafted


@pytest.mark.parametrize("name", ("LastSeen", "Unigram"))
def test_sampled_text_has_the_targets_distribution(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = imported(monkeypatch, "drafter")
    drafter = module.LastSeen(2) if name == "LastSeen" else module.Unigram(3, smoothing=0.5)
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(ROWS, -1),
        drafter=drafter,
        seed=4,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        temperature=1.0,
        return_dict=True,
    )
    new = out.sequences[:, PROMPT.shape[1] :]
    assert p_value(new[:, :STEPS], exact_law(1.0)) > 1e-3 and out.stats.accept_length > 1.02


def test_a_record_that_differs_from_the_draft_distribution_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    unigram = imported(monkeypatch, "drafter").Unigram

    class Vain(unigram):
        def propose(self, target, keys):
            draft = super().propose(target, keys)
            draft.law.scores = draft.law.scores * 0.3
            return draft

    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(ROWS, -1),
        drafter=Vain(smoothing=0.1),
        seed=4,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        temperature=1.0,
    )
    assert p_value(out[:, PROMPT.shape[1] :][:, :STEPS], exact_law(1.0)) < 1e-6
