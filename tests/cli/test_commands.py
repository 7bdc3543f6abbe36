"""Commands end to end on a tiny stand-in for the zoo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from tests.evaluate.tiny_zoo import use_tiny_zoo

pytestmark = pytest.mark.usefixtures("built_once")

runner = CliRunner()


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "picture.png"
    # noise of a seed: the random model's caption must not hold a tab by chance, which the screen would expand
    pixels = torch.randint(256, (24, 24, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return str(path)


def invoke(*arguments: str):
    result = runner.invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_help_and_version_name_the_commands() -> None:
    text = invoke("--help").stdout
    assert all(command in text for command in ("demo", "caption", "bench", "zoo", "supported"))
    assert invoke("--version").stdout.strip().count(".") == 2


def test_demo_shows_and_writes_three_identical_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("demo", "--max-new-tokens", "6", "--json", "demo.json")
    record = json.loads(Path("demo.json").read_text())
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("identical: yes") == 3 == record["identical"]
    for one in record["scenes"]:
        assert Path(one["image"]).is_file() and one["image"] in result.stdout
        assert f"{one['plain_tokens_per_second']} tokens/s" in result.stdout
        assert f"{one['drafted_tokens_per_second']} tokens/s ({one['speedup_vs_hf']}x)" in result.stdout
    assert "3 of 3 texts identical" in result.stdout
    assert "zoo vlm" in result.stdout and record["drafter"] == "eagle"


def test_a_stopped_bench_goes_on_with_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.evaluate.engine import bench

    monkeypatch.chdir(tmp_path)
    words = ["bench", "vlm", "--prompts", "1", "--new-tokens", "4", "--temperature", "0,1", "--methods", "lookup",
             "--threads", "1", "--json", "bench.json"]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["mmspec", *words])
    made, whole = [], bench.interleave

    def interleave(*given, **named):
        made.append(1)
        if len(made) == 2:
            raise KeyboardInterrupt
        return whole(*given, **named)

    monkeypatch.setattr(bench, "interleave", interleave)
    result = invoke(*words)
    assert result.exit_code == 130 and not Path("bench.json").exists()
    assert result.stderr.endswith(
        "Stopped: the finished work of the bench (parts: 1) is kept in bench.json.part.jsonl; go on with: "
        f"mmspec {' '.join(words)}\n"
    )
    lines = map(json.loads, Path("bench.json.part.jsonl").read_text().splitlines())
    (kept,) = (line["value"] for line in lines if line["kind"] == "part")
    assert invoke(*words).exit_code == 0 and len(made) == 3
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert rows[: len(kept)] == kept and {row["temperature"] for row in rows} == {0.0, 1.0}
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_a_bench_without_a_file_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("mmspec.evaluate.engine.bench.interleave", interrupted)
    result = invoke("bench", "vlm", "--prompts", "1", "--methods", "lookup")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[1:] == ["Stopped: files already written are whole, nothing else is kept"]


def test_a_caption_is_shown_before_it_is_written(picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, value: object) -> None:
        from mmspec.io.files import writing

        with writing(path):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("mmspec.io.files.write_json_atomic", full)
    result = invoke("caption", picture, "--max-new-tokens", "4", "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 1 and "tokens per target pass" in result.stdout
    assert result.stderr == (
        f"Error: expected to write '{tmp_path / 'out.json'}', got 'No space left on device', make room or write "
        "somewhere else\n"
    )


def test_demo_fails_when_a_text_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from mmspec.run import vlm_runs as runners

    ours = runners.run_ours
    monkeypatch.setattr(runners, "run_ours", lambda *a, **k: replace(ours(*a, **k), output=((5,),)))
    result = invoke("demo", "--max-new-tokens", "4", "--folder", str(tmp_path / "new"))
    assert result.exit_code == 1 and "identical: no" in result.stdout and "got them for 0" in result.stderr


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_a_single_caption_is_drafted_by_the_recommended_drafter(temperature: str, picture: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    common = ("caption", picture, "--max-new-tokens", "4", "--json", str(file))
    assert invoke(*common, "--temperature", temperature).exit_code == 0
    assert json.loads(file.read_text())["drafter"] == "eagle"


def test_every_recommended_drafter_is_a_name_that_commands_take() -> None:
    from types import SimpleNamespace

    from mmspec.cli.options import recommended_drafter
    from mmspec.run.vlm_models import drafter_names

    for name in ("vlm", "vlm/hybrid"):
        assert recommended_drafter(SimpleNamespace(zoo=name)) in drafter_names(name)
    assert recommended_drafter(SimpleNamespace(zoo="")) is None is recommended_drafter(SimpleNamespace(zoo="vlm/smol"))


def test_a_caption_is_compared_with_plain_decoding(picture: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = invoke("caption", picture, "--max-new-tokens", "12", "--compare", "--json", str(file))
    record = json.loads(file.read_text())
    plain = record["plain"]
    assert result.exit_code == 0, result.stderr
    assert plain["identical"] and plain["tokens"] == record["tokens"] == plain["target_passes"]
    assert f"{record['target_passes']} target passes instead of {record['tokens']}" in result.stdout
    assert f"plain decoding: {plain['seconds']} s, the same text" in result.stdout
    assert f"drafted decoding is {plain['speedup']} times as fast" in result.stdout
    ratio = plain["seconds"] / record["seconds"]
    assert plain["speedup"] == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize("drafter", ["eagle", "lookup", "recycling", "small", "none", "auto"])
def test_every_drafter_gives_the_same_greedy_caption(drafter: str, picture: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = invoke("caption", picture, "--drafter", drafter, "--max-new-tokens", "12", "--json", str(file))
    plain = invoke("caption", picture, "--drafter", "none", "--max-new-tokens", "12")
    record = json.loads(file.read_text())
    assert result.exit_code == 0, result.stderr
    assert record["text"] in result.stdout and record["text"] in plain.stdout
    assert f"{record['tokens']} tokens in {record['seconds']} s" in result.stdout
    assert record["drafter"] == drafter and record["exact"] and record["seed"] is None


def test_streaming_prints_the_text_once(picture: str) -> None:
    whole = invoke("caption", picture, "--max-new-tokens", "12").stdout.splitlines()
    grown = invoke("caption", picture, "--max-new-tokens", "12", "--stream").stdout.splitlines()
    assert "\n".join(grown[:-2]).rstrip() == "\n".join(whole[:-2])
    assert grown[-1] == whole[-1] and grown[-2].startswith(whole[-2].split(" in ")[0])


def test_a_sampled_answer_can_be_had_again(picture: str, tmp_path: Path) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    common = ("caption", picture, picture, "--temperature", "0.8", "--max-new-tokens", "10")
    assert invoke(*common, "--json", str(first)).exit_code == 0
    seed = json.loads(first.read_text())["seed"]
    assert invoke(*common, "--json", str(again), "--seed", str(seed)).exit_code == 0
    assert json.loads(first.read_text())["text"] == json.loads(again.read_text())["text"]


def test_bench_files_match_the_printed_table(tmp_path: Path) -> None:
    file, page = tmp_path / "bench.json", tmp_path / "bench.md"
    arguments = (
        "--prompts",
        "2",
        "--new-tokens",
        "4",
        "--batch",
        "1",
        "--temperature",
        "0",
        "--methods",
        "lookup",
        "--threads",
        "1",
    )
    result = invoke("bench", "vlm", *arguments, "--json", str(file), "--markdown", str(page))
    assert result.exit_code == 0, result.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["key"] for row in rows] == ["hf", "plain", "lookup"]
    for row in rows:
        assert str(row["seconds"]) in result.stdout and str(row["seconds"]) in page.read_text()
    assert f"mean top-1 probability {rows[0]['top1_probability']}" in result.stdout


def test_a_suite_with_a_saved_drafter_and_a_curve(tmp_path: Path) -> None:
    from tests.evaluate.tiny_zoo import tiny_zoo

    folder, file, plot = tmp_path / "saved", tmp_path / "bench.json", tmp_path / "bench.png"
    tiny_zoo()["vlm/flash"].save_pretrained(folder)
    asked = (
        "--prompts",
        "1",
        "--new-tokens",
        "4",
        "--temperature",
        "0",
        "--threads",
        "1",
        "--methods",
        "other-1,other-2",
    )
    where = ("--json", str(file), "--plot", str(plot))
    result = invoke("bench", "vlm", "--suite", "blocks", *asked, "--drafter-path", f"other={folder}", *where)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["key"] for row in rows] == ["hf", "plain", "other-1", "other-2"] * 2
    assert {row["task"] for row in rows} == {"captions", "questions"} and plot.stat().st_size > 1000
    assert all(str(row["drafter_step_ms"]) in result.stdout for row in rows if row["key"] == "other-2")


def test_training_curves(tmp_path: Path) -> None:
    log, plot, file = (tmp_path / name for name in ("log.jsonl", "curves.png", "curves.json"))
    log.write_text('{"step": 1, "loss": 2.0}\n{"step": 100, "accept_length": 2.25}\n')
    result = invoke("bench", "curves", f"online={log}", "--plot", str(plot), "--json", str(file))
    assert result.exit_code == 0 and "100: 2.25" in result.stdout
    assert json.loads(file.read_text()) == {"online": [[100, 2.25]]} and plot.is_file()


def test_zoo_list_and_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # names are not wrapped
    from mmspec import zoo
    from mmspec.zoo.files.table import fetched_names

    file = tmp_path / "list.json"
    result = invoke("zoo", "list", "--json", str(file))
    assert result.exit_code == 0, result.stderr
    assert [load["name"] for load in json.loads(file.read_text())] == [*dict.fromkeys((*zoo.names(), *fetched_names()))]
    result = invoke("supported", "--json", str(file))
    assert result.exit_code == 0, result.stderr
    record = json.loads(file.read_text())
    assert all(one["eagle2"] == "exact" for one in record["models"])
    whole = invoke("supported", "--all").stdout
    assert all(one["model"] in whole for one in record["models"])
    assert {"drafter", "greedy", "sampled tested by"} <= record["combinations"][0].keys()
    assert all(one["model class"] in whole for one in record["classes"] + record["refused classes"])


@pytest.mark.parametrize(("long", "short"), [("vlm/msd", "msd"), ("vlm/flash", "flash"), ("vlm/small", "small")])
def test_drafters_have_the_zoos_names_too(long: str, short: str, picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(picture).parent)
    texts = []
    for name in (long, short):
        result = invoke("caption", picture, "--drafter", name, "--max-new-tokens", "6", "--json", "out.json")
        assert result.exit_code == 0, result.stderr
        record = json.loads(Path("out.json").read_text())
        assert record["drafter"] == short
        texts.append(record["text"])
    assert texts[0] == texts[1]
    assert invoke("demo", "--drafter", long, "--max-new-tokens", "2").exit_code == 0
