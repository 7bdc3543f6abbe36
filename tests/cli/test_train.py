"""`mmspec train vlm-drafter`: a model and a file of examples in, a drafter with a card out."""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.io.files import locked
from mmspec.vlm import load_drafter
from mmspec.vlm.training.data import load_training_data
from mmspec.vlm.training.job import Job, run_job
from tests.evaluate.tiny_zoo import tiny_zoo

pytestmark = pytest.mark.usefixtures("built_once")

runner = CliRunner()
QUICK = ("--steps", "3", "--batch", "2", "--new-tokens", "6", "--held-out", "1", "--eval-every", "3", "--device", "cpu",
         "--precision", "no")  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny LLaVA in a folder, with a model card."""
    folder = tmp_path_factory.mktemp("target")
    model, processor = tiny_zoo()["vlm"]
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\nA tiny model.\n")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine examples, six of them with a picture."""
    folder = tmp_path_factory.mktemp("data")
    lines = []
    for number in range(9):
        line = {"text": f"what {number}?", "answer": f"it is {number}"}
        if number % 3:
            Image.frombytes("RGB", (12, 12), random.Random(number).randbytes(432)).save(folder / f"{number}.png")
            line["images"] = [f"{number}.png"]
        lines.append(json.dumps(line))
    file = folder / "examples.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def train(target: Path, data: Path, out: Path, *arguments: str, says: str = "") -> dict:
    """The record of a run that must succeed and say this."""
    record = out.with_suffix(".json")
    result = runner.invoke(
        app,
        [
            "train",
            "vlm-drafter",
            "--target",
            str(target),
            "--data",
            str(data),
            "--out",
            str(out),
            *QUICK,
            "--json",
            str(record),
            *arguments,
        ],
    )
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert str(out) in result.stdout and says in result.stdout
    return json.loads(record.read_text())


@pytest.mark.default_cells("eagle3", "dspark")
@pytest.mark.parametrize("kind", ["msd", "vispec", "eagle3", "hydra", "dflash", "dspark"])
def test_a_drafter_is_trained_for_a_custom_model(kind: str, target: Path, data: Path, tmp_path: Path) -> None:
    record = train(target, data, tmp_path / "out", "--kind", kind)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert record == {**card, "curve": record["curve"]}
    assert card["target"] == str(target) and card["target_licence"] == "mit" and card["answers"] == "own"
    assert [line["step"] for line in record["curve"]] == [3] and record["curve"][0]["accept_length"] >= 1
    drafter = load_drafter(tmp_path / "out", target=tiny_zoo()["vlm"][0])
    assert drafter.kind == kind and sum(p.numel() for p in drafter.parameters()) == card["parameters"]


@pytest.mark.whole
def test_stored_states_train_like_a_live_teacher(target: Path, data: Path, tmp_path: Path) -> None:
    common = ("--kind", "eagle2", "--answers", "given", "--steps", "6")
    online = train(target, data, tmp_path / "online", *common, "--teacher", "online")
    offline = train(target, data, tmp_path / "offline", *common, "--teacher", "offline")
    assert online["states_megabytes"] is None and offline["states_megabytes"] > 0
    assert (
        len(list((tmp_path / "offline" / "work" / "states").glob("*.safetensors"))) == 4
    )  # eight examples, two a batch
    assert offline["training"]["loss"] == pytest.approx(online["training"]["loss"], rel=1e-2)


def test_blocks_train_as_published(target: Path, data: Path, tmp_path: Path) -> None:
    sizes = ("--size", "block_size=5", "--size", "num_hidden_layers=1")
    for recipe in ("published", "dflash_dpace"):
        card = train(target, data, tmp_path / recipe, "--kind", "dflash", "--recipe", recipe, *sizes)
        assert card["lr"] == 6e-4
    drafter = load_drafter(tmp_path / recipe, target=tiny_zoo()["vlm"][0])
    assert drafter.config.drafted == 4 and len(drafter.layers) == 1


@pytest.mark.whole
def test_two_stages_and_selected_tokens(target: Path, data: Path, tmp_path: Path) -> None:
    train(target, data, tmp_path / "first", "--kind", "eagle2_text", "--recipe", "vispec_stage1")
    published = ("--kind", "vispec", "--recipe", "published", "--start", str(tmp_path / "first"))
    card = train(target, data, tmp_path / "second", *published)
    assert card["recipe"] == "vispec" and card["lr"] == 3e-6
    own = (
        "--kind",
        "vispec",
        "--loss",
        "l1:10,list_mle:0.1",
        "--reference",
        str(tmp_path / "second"),
        "--share",
        "0.5",
    )
    assert train(target, data, tmp_path / "third", *own)["loss"] == "l1:10,list_mle:0.1"


def test_a_drafter_that_goes_on_keeps_its_vocabulary(target: Path, data: Path, tmp_path: Path) -> None:
    first = train(
        target, data, tmp_path / "first", "--kind", "eagle3", "--answers", "given", "--size", "draft_vocab_size=12"
    )
    assert first["vocabulary_share"] == 1
    second = train(
        target,
        data,
        tmp_path / "second",
        "--kind",
        "eagle3",
        "--start",
        str(tmp_path / "first"),
        says="its vocabulary holds",
    )
    before, after = (load_drafter(tmp_path / name).head.ids.tolist() for name in ("first", "second"))
    assert before == after and 0 < second["vocabulary_share"] < 1


def test_an_impossible_curriculum_is_reported_or_refused(target: Path, tmp_path: Path) -> None:
    """Ours trains without and says so, at once and in the card; a published recipe would not be that recipe."""
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": f"what {n}?", "answer": f"it is {n}"}) + "\n" for n in range(5)))
    card = train(
        target, file, tmp_path / "out", "--kind", "msd", says="curriculum: left out, as the data holds texts alone"
    )
    assert card["curriculum"] == "left out, as the data holds texts alone or pictures alone"
    sentence = refused(
        1,
        "--target",
        str(target),
        "--data",
        str(file),
        "--out",
        str(tmp_path / "other"),
        *QUICK,
        "--kind",
        "msd",
        "--recipe",
        "published",
    )
    assert "recipe: expected texts and pictures for the curriculum of msd, got 4 texts and 0 examples with" in sentence
    model, processor = tiny_zoo()["vlm"]
    phases: list[str] = []
    run_job(
        Job("msd", 1, batch=2, new_tokens=2, precision="no"),
        model,
        processor,
        load_training_data(file, held_out=1),
        tmp_path / "third",
        target="t",
        on_progress=lambda phase, done, total, notes: phases.append(phase),
    )
    assert phases[0] == "without its curriculum: 4 texts, 0 pictures"


def test_the_published_hydra_is_hydra_plus_plus(target: Path, data: Path, tmp_path: Path) -> None:
    train(target, data, tmp_path / "out", "--kind", "hydra", "--recipe", "published", "--size", "heads=5")
    config = load_drafter(tmp_path / "out").config
    assert (config.heads, config.layers, config.dropout) == (5, 4, 0.2) and config.prefix_layer and config.final_norm


@pytest.mark.whole
def test_a_run_is_resumed_or_started_over_but_never_mixed(target: Path, data: Path, tmp_path: Path) -> None:
    first = train(target, data, tmp_path / "out", "--kind", "msd")
    log = tmp_path / "out" / "work" / "log.jsonl"
    lines = log.read_text()
    again = train(target, data, tmp_path / "out", "--kind", "msd")
    assert log.read_text() == lines and again["training"] == first["training"]
    sentence = refused(
        1,
        "--target",
        str(target),
        "--data",
        str(data),
        "--out",
        str(tmp_path / "out"),
        *QUICK,
        "--kind",
        "msd",
        "--lr",
        "0.1",
    )
    assert "expected the work of this run, got that of a run with lr None instead of 0.1" in sentence
    other = train(target, data, tmp_path / "out", "--kind", "msd", "--lr", "0.1", "--no-resume")
    assert other["lr"] == 0.1 and other["training"]["loss"] != first["training"]["loss"]


def stopped(
    monkeypatch: pytest.MonkeyPatch, place: str, call: int, number: int, out: Path, *arguments: str
) -> tuple[int, str]:
    """Exit code and last line of stderr of a run that a signal comes to during the given call of a function."""
    module, _, name = place.rpartition(".")
    calls, inner = [], getattr(sys.modules[module], name)

    def signalled(*values: object, **more: object) -> object:
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(number)
        return inner(*values, **more)

    words = ["train", "vlm-drafter", "--out", str(out), *QUICK, "--kind", "msd", "--no-resume", *arguments]
    with monkeypatch.context() as patch:
        patch.setattr(place, signalled)
        patch.setattr("sys.argv", ["mmspec", *words])
        result = runner.invoke(app, words)
    assert not result.stdout and "Traceback" not in result.stderr
    return result.exit_code, result.stderr.splitlines()[-1]


def test_a_run_knows_its_data_by_their_contents(target: Path, data: Path, tmp_path: Path) -> None:
    """As many examples of another answer are the data of another run."""
    common = ("--target", str(target), "--out", str(tmp_path / "out"), "--kind", "msd", "--answers", "given", *QUICK)
    lines = [json.loads(line) | {"answer": "It is red."} for line in data.read_text().splitlines()]
    file = data.with_name("changed.jsonl")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runner.invoke(app, ["train", "vlm-drafter", *common, "--data", str(file)])
    assert (tmp_path / "out" / "card.json").exists()
    file.write_text("".join(json.dumps(line | {"answer": "It is blue."}) + "\n" for line in lines))
    assert "expected the work of this run, got that of a run with data" in refused(1, *common, "--data", str(file))


@pytest.mark.whole
def test_a_stopped_run_reports_its_saved_work_and_resumes(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(target, data, tmp_path / "whole", "--kind", "msd")
    out, common = tmp_path / "out", ("--target", str(target), "--data", str(data))
    answers = "the answers made so far (4) are kept in {}/answers.jsonl"
    places = (
        ("vlm.training.answers._generate_batch", 1, answers, signal.SIGTERM, 143),
        ("training.loop.update", 2, "step 2 of 3 is kept in {}/state.safetensors", signal.SIGINT, 130),
    )
    for place, call, kept, number, status in places:
        found = stopped(monkeypatch, f"mmspec.{place}", call, number, out, *common)
        words = " ".join(("mmspec train vlm-drafter --out", str(out), *QUICK, "--kind msd", *common))
        assert found == (status, f"Stopped: {kept.format(out / 'work')}; go on with: {words}")
        assert not (out / "card.json").exists()
    again = train(target, data, out, "--kind", "msd")
    assert again["training"]["loss"] == whole["training"]["loss"] and again["curve"][0]["accept_length"] >= 1


@pytest.mark.whole
def test_a_run_that_starts_from_a_drafter_goes_on_to_the_same_end(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(target, data, tmp_path / "first", "--kind", "msd")
    start = ("--start", str(tmp_path / "first"), "--steps", "5", "--seed", "1")
    whole = train(target, data, tmp_path / "whole", "--kind", "msd", *start)
    common = ("--target", str(target), "--data", str(data), *start)
    code, line = stopped(monkeypatch, "mmspec.training.loop.update", 3, signal.SIGINT, tmp_path / "out", *common)
    assert code == 130 and line.startswith("Stopped: step 3 of 5 is kept in ")
    assert (
        train(target, data, tmp_path / "out", "--kind", "msd", *start)["training"]["loss"] == whole["training"]["loss"]
    )


def test_stored_states_of_a_stopped_run_are_kept(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("--target", str(target), "--data", str(data), "--answers", "given", "--teacher", "offline")
    place = "mmspec.vlm.training.teacher_store._half"
    code, line = stopped(monkeypatch, place, 1, signal.SIGINT, tmp_path / "out", *common)
    kept = f"the teacher batches stored so far (1) are kept in {tmp_path / 'out' / 'work' / 'states'}"
    assert code == 130 and line.startswith(f"Stopped: {kept}; go on with: mmspec train vlm-drafter ")


def test_a_second_run_in_the_folder_is_refused(target: Path, data: Path, tmp_path: Path) -> None:
    common = ("--target", str(target), "--data", str(data), "--out", str(tmp_path / "out"), "--kind", "msd", *QUICK)
    with locked(tmp_path / "out" / "work"):
        for more in ((), ("--no-resume",)):
            sentence = refused(1, *common, *more)
            assert f"no other run is writing to, got '{tmp_path / 'out' / 'work'}', which process" in sentence
    assert [path.name for path in (tmp_path / "out" / "work").iterdir()] == ["lock"]


def refused(code: int, *arguments: str) -> str:
    """The one line of stderr of a command that must end with `code` and print nothing."""
    result = runner.invoke(app, ["train", "vlm-drafter", *arguments])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--kind", "magic"), "--kind: expected one of eagle2, eagle2_text, msd"),
        (("--steps", "0"), "--steps: expected a number of at least 1, got 0"),
        (("--lr", "nan"), "--lr: expected a number above 0, got nan"),
        (("--loss", "l1:10,magic"), "--loss: expected names of smooth_l1"),
        (("--loss", "l1:-1"), "--loss: expected a positive weight after l1, got '-1'"),
        (("--recipe", "magic"), "--recipe: expected equal or one of eagle2"),
        (("--answers", "none"), "--answers: expected one of own, given"),
        (("--teacher", "strict"), "--teacher: expected one of online, offline"),
        (("--device", "abacus"), "--device: expected one of auto, cpu, cuda"),
        (("--size", "latents"), "--size: expected NAME=VALUE, got 'latents'"),
        (("--start", "nowhere"), "--start: expected a folder with a saved drafter"),
        (("--data", "nowhere.jsonl"), "--data: expected 'zoo', own:N or a JSONL file, got 'nowhere.jsonl'"),
        (("--data", "own:some"), "--data: expected own:N with a number of prompts, got 'own:some'"),
        (("--data", "own:5"), "prompts: expected a text model with a chat template"),
        (("--texts", "nowhere.jsonl"), "--texts: expected --data FILE beside it"),
        (("--target", "other/model"), "--data: expected a file of examples for this target"),
        (("--out", "no/such/folder"), "--out: expected an existing folder"),
    ],
)
def test_a_refused_option_is_a_usage_error(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(2, "--out", str(tmp_path / "out"), "--kind", "msd", *arguments)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "line 1: expected a JSON object with a text"),
        ('{"text": "a", "key": "k"}\n{"text": "b", "key": "k"}', "expected a key for each example, got 'k' twice"),
        ('{"text": "a"}', "expected more than the 1 examples held out"),
    ],
)
def test_a_bad_file_of_examples(text: str, sentence: str, target: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text + "\n")
    common = ("--target", str(target), "--data", str(file), "--out", str(tmp_path / "out"), "--kind", "msd", *QUICK)
    assert sentence in refused(2, *common)
    assert not (tmp_path / "out").exists()


def test_sizes_are_the_kinds_own(target: Path, data: Path, tmp_path: Path) -> None:
    train(target, data, tmp_path / "out", "--kind", "flash", "--size", "latents=2", "--size", "block=3")
    config = load_drafter(tmp_path / "out").config
    assert (config.latents, config.block) == (2, 3)
    common = ("--target", str(target), "--data", str(data), "--out", str(tmp_path / "out"), "--kind", "msd", *QUICK)
    assert "--size: expected fields of" in refused(2, *common, "--size", "latents=2")


def test_a_folder_without_a_model(data: Path, tmp_path: Path) -> None:
    common = ("--target", str(tmp_path), "--data", str(data), "--out", str(tmp_path / "out"), "--kind", "msd", *QUICK)
    assert "--target: expected a safetensors model" in refused(2, *common)


def test_own_answers_only_where_there_are_no_others(target: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain.jsonl"
    file.write_text('{"text": "a"}\n{"text": "b"}\n')
    common = ("--target", str(target), "--data", str(file), "--out", str(tmp_path / "out"), "--kind", "msd", *QUICK)
    assert "expected an answer, got none; use the target's own answers" in refused(1, *common, "--answers", "given")
