"""A small model learns the target's answers through the command for drafters, and drafts more of them than before."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import mmspec
from mmspec.cli import app
from mmspec.core.length.controls import FixedLength
from mmspec.run.vlm_models import VlmResources
from mmspec.vlm.drafters.small_model import SmallModel, load_small_model
from mmspec.vlm.training.data import TrainingData
from mmspec.vlm.training.examples import Example, encode, with_answers
from mmspec.vlm.training.job import Job, run_job
from mmspec.vlm.training.recipes import small_model_recipe
from mmspec.vlm.training.small_model import AnswerLoss, initial_small_model
from mmspec.vlm.training.trainer import mean_accept_length
from tests.evaluate.tiny_zoo import llava, tiny_zoo
from tests.vlm.tiny import tiny

PICTURES = [Image.new("RGB", (12, 12), (20 * n, 90, 200)) for n in range(6)]
# no answer of a person is like that of the random target
ASKED = [Example(f"k{n}", f"what {n % 3}?", (PICTURES[n],) if n % 2 else (), "a red dog, I think") for n in range(6)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A narrower LLaVA over the same vocabulary in a folder."""
    folder = tmp_path_factory.mktemp("small")
    llava(1, 4).save_pretrained(folder)
    return folder


def test_the_loss_is_that_of_the_answers_tokens_alone(small: Path) -> None:
    """Ragged prompts with and without pictures: padding, prompts and pictures have no part in it."""
    model, processor = tiny_zoo()["vlm"]
    answers = {example.key: [30 + n, 40, 50 + n][: 1 + n % 3] for n, example in enumerate(ASKED)}
    trained = initial_small_model(small, model)
    loss, notes = AnswerLoss(trained, processor, answers, None, "no")(ASKED)
    total, right, count = 0.0, 0, 0
    for example in ASKED:
        inputs, _ = with_answers(encode(processor, [example]), [answers[example.key]], 0)
        start = inputs["input_ids"].shape[1] - len(answers[example.key])
        law = trained(**inputs).logits[0, start - 1 : -1].detach().float().log_softmax(-1)
        wanted = torch.tensor(answers[example.key])
        total -= float(law.gather(1, wanted[:, None]).sum())
        right += int((law.argmax(-1) == wanted).sum())
        count += len(wanted)
    assert float(loss.detach()) == pytest.approx(total / count, rel=1e-4)
    assert notes["hit0"] == pytest.approx(right / count)
    loss.backward()
    learns = {
        name for name, weight in trained.named_parameters() if weight.grad is not None and bool(weight.grad.any())
    }
    assert any("language_model" in name for name in learns) and "lm_head.weight" in learns
    assert not any("vision" in name or "projector" in name for name in learns)


@pytest.mark.whole
def test_the_targets_answers_teach_more_than_those_of_a_person(small: Path, tmp_path: Path) -> None:
    model, processor = tiny_zoo()["vlm"]
    held = [Example("held", "what 1?", (PICTURES[5],)), Example("other", "what 2?")]
    lengths = {}
    for answers in ("given", "own"):
        job = Job("small", steps=150, batch=6, start=small, lr=2e-3, answers=answers, precision="no", new_tokens=16)
        card = run_job(job, model, processor, TrainingData(ASKED), tmp_path / answers, target="tiny")
        assert card["answers"] == answers and card["training"]["hit0"] > 0.5
        drafter = SmallModel(load_small_model(tmp_path / answers, model), FixedLength(5))
        lengths[answers] = mean_accept_length(drafter, model, processor, held, 16)
    start = mean_accept_length(SmallModel(load_small_model(small, model), FixedLength(5)), model, processor, held, 16)
    assert lengths["own"] > 1.5 * max(lengths["given"], start), (lengths, start)


def test_the_command_trains_a_small_model_that_its_text_form_loads(small: Path, tmp_path: Path) -> None:
    target, data, out = tmp_path / "target", tmp_path / "data", tmp_path / "out"
    model, processor = tiny_zoo()["vlm"]
    model.save_pretrained(target)
    processor.save_pretrained(target)
    data.mkdir()
    lines = []
    for number in range(6):
        name = f"{number}.png"
        Image.frombytes("RGB", (12, 12), random.Random(number).randbytes(432)).save(data / name)
        lines.append(json.dumps({"text": f"what {number}?", "images": [name] if number % 2 else []}))
    (data / "requests.jsonl").write_text("\n".join(lines) + "\n")
    command = [
        "train", "vlm-drafter", "--kind", "small", "--start", str(small), "--target", str(target), "--out", str(out),
        "--data", str(data / "requests.jsonl"), "--steps", "3", "--batch", "2", "--new-tokens", "6", "--held-out", "1",
        "--eval-every", "3", "--device", "cpu", "--precision", "no",
    ]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, (result.stderr, result.exception)
    card = json.loads((out / "card.json").read_text())
    assert card["kind"] == "small" and card["answers"] == "own" and card["training"]["accept_length"] >= 1
    named = VlmResources(model, processor, "tiny").drafter(f"small:chain=2@{out}")  # as commands read --drafter
    assert isinstance(named, SmallModel) and named.length.longest == 2
    with pytest.raises(ValueError, match="large"):
        VlmResources(model, processor, "tiny").drafter(f"large@{out}")
    inputs = encode(processor, ASKED[:1])
    common = dict(max_new_tokens=8, do_sample=False, return_dict=True, **inputs)
    drafted = mmspec.generate(model, drafter=f"small:chain=3@{out}", **common)
    assert torch.equal(drafted.sequences, mmspec.generate(model, **common).sequences) and drafted.stats.drafter_passes


def test_wrong_models_and_settings_are_refused(small: Path, tmp_path: Path) -> None:
    model, processor = tiny_zoo()["vlm"]
    with pytest.raises(ValueError, match="start: expected the folder of a small model"):
        initial_small_model(None, model)
    with pytest.raises(ValueError, match="start: expected at most the target's 101 tokens, got 260"):
        initial_small_model(small, tiny("llava"))
    with pytest.raises(ValueError, match="expected a LlamaForCausalLM or a model of text, got a LlavaConfig"):
        load_small_model(small, tiny("llama"))
    for wrong in (dict(loss="l1"), dict(recipe="msd"), dict(teacher="online"), dict(source="drafter")):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected none for a small model"):
            Job("small", steps=1, **wrong)
    text = tmp_path / "text"
    tiny("llama").save_pretrained(text)
    loss = AnswerLoss(initial_small_model(text, model), processor, {"k1": [4]}, None, "no")
    with pytest.raises(ValueError, match="expected texts alone for the text model"):
        loss(ASKED[1:2])
    assert small_model_recipe().answers == "own"
