"""A new domain is a folder and a line of the registry: its command, rows, log, page and plot come with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from mmspec.cli import bench as bench_command
from mmspec.evaluate.engine import registry
from mmspec.evaluate.engine.domain import Domain, SamplingOverrides
from mmspec.evaluate.engine.registry import DOMAINS, config_of, domain_of
from mmspec.evaluate.engine.rows import FIELDS
from mmspec.evaluate.engine.shards import read_run
from mmspec.evaluate.report.rows import rows as rows_of_run
from mmspec.run.resources import PipelineResources
from tests.house.tree import ROOT

SHAM = Path(__file__).parent / "sham"
runner = CliRunner()


@pytest.fixture
def sham(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> typer.Typer:
    """`mmspec bench` with the sham domain in its registry."""
    monkeypatch.setitem(registry.DOMAINS, "sham", "tests.evaluate.sham")
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("sham")(bench_command.bench_command("sham"))
    return app


def invoke(app: typer.Typer, *words: str):
    result = runner.invoke(app, ["sham", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_sham_domain_is_short() -> None:
    assert sum(len(path.read_text().splitlines()) for path in SHAM.glob("*.py")) < 80


def test_a_sham_domain_has_rows_a_page_and_a_plot(sham: typer.Typer) -> None:
    result = invoke(sham, "--json", "b.json", "--markdown", "b.md", "--plot", "b.png", "--temperature", "0,1")
    assert result.exit_code == 0, result.stderr
    file = json.loads(Path("b.json").read_text())
    assert [(row["key"], row["temperature"]) for row in file["rows"]] == [
        (key, t) for t in (0.0, 1.0) for key in ("ar", "by-1", "by-3")
    ]
    for row in file["rows"]:
        assert row.keys() >= {*FIELDS, "sure", "identical"} and row["exact"] and row["tokens"] == 12
        assert row["accept_length"] == {"ar": 1, "by-1": 2, "by-3": 4}[row["key"]]
        assert row["speedup_vs_ar"] == pytest.approx(1.4 / (0.2 + 1.2 / row["accept_length"]), abs=1e-3)
        assert row["identical"] == (None if row["temperature"] else "2/2")
        assert f"{row['speedup_vs_ar']} ({row['spread'][0]}-{row['spread'][1]})" in result.stdout
    assert Path("b.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in Path().iterdir()) == ["b.json", "b.md", "b.png"]


def test_options_are_the_fields_of_the_config(sham: typer.Typer) -> None:
    words = ("--step", "5", "--methods", "by", "--prompts", "6", "--batch", "1,3", "--repeats", "2", "--seed", "7")
    assert invoke(sham, *words, "--json", "b.json").exit_code == 0
    file = json.loads(Path("b.json").read_text())
    assert [(row["key"], row["batch"], row["requests"]) for row in file["rows"]] == [
        (key, batch, 2 * 6 // batch) for batch in (1, 3) for key in ("ar", "by-1", "by-3")
    ]
    assert file["env"]["bench"] == "sham" and (file["env"]["seed"], file["env"]["repeats"]) == (7, 2)
    assert "By how much a number grows." in re.sub(r"[\s│]+", " ", invoke(sham, "--help").stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--step", "0"), "--step: expected at least 1, got 0, change it"),
        (("--batch", "1,9"), "--batch: expected 1 to 4 (the prompts), got (1, 9), change one"),
        (("--batch", "0"), "--batch: expected at least 1, got (0,), change it"),
        (("--batch", "x"), "--batch: expected numbers separated by commas, got 'x', write for example 1,4"),
        (("--temperature", "nan"), "--temperature: expected at least 0, got (nan,), change it"),
        (("--seed", "10000"), "--seed: expected 0 to 9999, got 10000, change it"),
        (("--suite", "magic"), "--suite: expected one of count, got 'magic', pick one of these"),
        (("--methods", "magic"), "--methods: expected some of ar, by, got 'magic', pick from these"),
    ],
)
def test_a_wrong_option_reports_one_usage_error(words: tuple, said: str, sham: typer.Typer) -> None:
    result = invoke(sham, *words)
    assert (result.exit_code, result.stderr) == (2, f"Error: {said}\n")


@pytest.mark.parametrize("name", DOMAINS)
def test_help_names_every_suite(name: str) -> None:
    from importlib import import_module

    suites = import_module(f"{DOMAINS[name]}.suites").SUITES
    said = config_of(name).__dataclass_fields__["suite"].metadata["help"]
    assert set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", said))) - {"or"} == set(suites)


def test_the_engine_reports_and_measures_know_no_domain() -> None:
    root = Path(registry.__file__).parent
    readers = {"clip.py", "rewards.py"}  # networks, the zoo's among them, that measures are taken with
    parts = (path for part in ("engine", "report", "quality") for path in (root / part).glob("*.py"))
    for path in (path for path in parts if path.name not in readers):
        for line in re.findall(r"^\s*(?:from|import) (\S+)", path.read_text(), re.M):
            assert not line.startswith(("mmspec.vlm", "mmspec.imagegen", "mmspec.zoo", "transformers")), (path, line)
            assert not any(line.startswith(DOMAINS[name]) for name in DOMAINS), (path, line)


def test_a_domain_is_swept_by_the_keys_of_its_rows_unless_it_says_more(sham: typer.Typer) -> None:
    domain = domain_of("sham")
    assert list(domain.defaults("")) == [("ar", "")] and domain.method("", "by-3", "").title == "3 drafted"
    with pytest.raises(ValueError, match="--decoding: expected a row of the benches of sham, got 'by-2', name another"):
        domain.method("", "by-2", "")
    setting = domain.setting("", 0.5, SamplingOverrides())
    assert (setting.batch, setting.cases, domain.drawing(setting)) == (1, 1, {"batch": 1, "temperature": 0.5})
    assert domain.row("by-1", lambda row: row.drafted > 1) is None and domain.prompts("", 3, 0) == []


def test_a_runner_is_a_sampler_without_its_output(sham: typer.Typer) -> None:
    domain = domain_of("sham")
    (setting,) = config_of("sham")(prompts=2).settings()
    parts = domain.method("", "by-1", ""), domain.resources(config_of("sham")(step=3)), setting
    (case,) = domain.cases(parts[1], setting)
    run, output = domain.sampler(*parts)(case, 0)
    assert domain.runner(*parts)(case, 0) == run and output == run.output == tuple(
        tuple(range(start, start + 36, 3)) for start in case
    )


def test_a_domain_without_a_sampler_cannot_be_made() -> None:
    from tests.evaluate.sham.domain import ShamDomain

    half = {name: var for name, var in vars(ShamDomain).items() if name not in ("sampler", "__abstractmethods__")}
    with pytest.raises(TypeError, match="sampler"):
        type("HalfDomain", (Domain,), half)()


def test_a_part_is_the_resources_own_unless_a_text_names_where_it_is_saved() -> None:
    class OwnParts(PipelineResources):
        def own_part(self, name: str) -> str:
            return f"own {name}"

    class Pipe:
        model, loaders = torch.nn.Linear(1, 1), {"draft": lambda source, pipe: f"read {source}"}

    resources = OwnParts(Pipe())
    assert (resources.part("draft"), resources.part("draft", "runs/x")) == ("own draft", "read runs/x")
    with pytest.raises(ValueError, match="one of the parts that a text can name .draft., got 'head'"):
        resources.part("head", "runs/x")


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(
        ValueError, match="domain: expected one of vlm, image, continuous, video, got 'magic', pick one of these"
    ):
        domain_of("magic")


def test_the_command_line_and_its_domains_load_no_heavy_library() -> None:
    code = (
        "import sys, mmspec.cli; from mmspec.evaluate.engine.registry import DOMAINS, config_of; [*map(config_of, DOMAINS)]; "
        "print([n for n in ('torch', 'transformers', 'diffusers', 'numpy', 'PIL') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_off_a_terminal_a_bench_says_that_it_is_alive(sham: typer.Typer) -> None:
    first, *lines = invoke(sham, "--temperature", "0,1", "--json", "b.json").stderr.splitlines()
    assert first == "bench sham, suite count: 18 requests in 2 parts"
    assert [re.sub(r"\d+\.\d s", "_ s", line) for line in lines] == [
        "1 of 2: batch 2, T = 0: _ s",
        "2 of 2: batch 2, T = 1: _ s",
    ]


def test_in_long_parts_a_log_has_a_line_now_and_then(sham: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.cli.console._ALIVE", 0.0)
    _, *lines, last = invoke(sham, "--methods", "by-3").stderr.splitlines()
    assert lines[0] == "  1 of 6 requests: batch 2, T = 0, ar" and lines[-1].startswith("  6 of 6 requests: batch 2")
    assert len(lines) == 6 and last.startswith("1 of 1: ")


def test_a_stopped_bench_resumes_and_reports_its_saved_parts(
    sham: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmspec.evaluate.engine import bench

    whole, made = bench.interleave, []

    def interleave(*given, **named):
        made.append(1)
        if len(made) == 2:
            raise KeyboardInterrupt
        return whole(*given, **named)

    monkeypatch.setattr(bench, "interleave", interleave)
    words = ("--temperature", "0,1", "--json", "b.json")
    assert invoke(sham, *words).exit_code == 130
    header, *samples, part = map(json.loads, Path("b.json.part.jsonl").read_text().splitlines())
    assert [sample["kind"] for sample in samples] == ["sample"] * 6
    assert part["run"] == header["run"] and part["part"] == {"timed": {"batch": 2, "temperature": 0.0}}
    again = invoke(sham, *words)
    assert again.exit_code == 0 and "1 of 2: batch 2, T = 0: kept" in again.stderr and len(made) == 3
    assert json.loads(Path("b.json").read_text())["env"]["code"] == header["about"]["code"]


def test_a_bench_stopped_within_a_setting_runs_only_the_missing_requests(
    sham: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.evaluate.sham.domain import DOMAIN

    calls: list[str] = []
    runner_of = DOMAIN.runner

    def counted(method, resources, setting):
        run = runner_of(method, resources, setting)

        def request(case, seed):
            calls.append(method.key)
            if len(calls) == 6:
                raise KeyboardInterrupt
            return run(case, seed)

        return request

    monkeypatch.setattr(DOMAIN, "runner", counted)
    stopped = invoke(sham, "--json", "b.json")
    assert stopped.exit_code == 130 and "(requests: 2) is kept in b.json.part.jsonl" in stopped.stderr
    # what is there of a bench can be read as a run
    found = read_run(Path("b.json.part.jsonl"))
    assert [(row["method"], row["table"], row["samples"], row["speedup_vs_ar"]) for row in rows_of_run(found)] == [
        ("plain", "numbers, T = 0, batch 2", 1, 1.0),
        ("1 drafted", "numbers, T = 0, batch 2", 1, 1.75),
    ]
    assert invoke(sham, "--json", "b.json").exit_code == 0
    # three untimed, two kept, one interrupted; then all warm up again and four are left of six
    assert len(calls) == 6 + 3 + 4
    rows = json.loads(Path("b.json").read_text())["rows"]
    assert [(row["key"], row["identical"], row["requests"]) for row in rows] == [
        (key, "2/2", 2) for key in ("ar", "by-1", "by-3")
    ]


def test_rows_of_other_code_are_measured_again(sham: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.evaluate.engine import bench

    words = ("--temperature", "0,1", "--json", "b.json")
    kept = Path("b.json.part.jsonl")
    monkeypatch.setattr(bench, "fingerprint", lambda folders: "0.1.0+one")
    monkeypatch.setattr(bench_command, "save_figures", lambda json, log, result: None)
    assert "kept" not in invoke(sham, *words).stderr
    assert invoke(sham, *words).stderr.count("kept") == 2
    monkeypatch.setattr(bench, "fingerprint", lambda folders: "0.1.0+two")
    assert "kept" not in invoke(sham, *words).stderr
    lines = list(map(json.loads, kept.read_text().splitlines()))
    headers = {line["run"]: line["about"]["code"] for line in lines if line["kind"] == "header"}
    codes = [headers[line["run"]] for line in lines if line["kind"] == "part"]
    assert codes == ["0.1.0+one", "0.1.0+one", "0.1.0+two", "0.1.0+two"]


def test_an_exact_row_with_other_output_fails_the_bench(sham: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tests.evaluate.sham.domain import DOMAIN

    runner_of = DOMAIN.runner

    def spoiled(method, resources, setting):
        run = runner_of(method, resources, setting)
        return (lambda case, seed: replace(run(case, seed), output=((0,),) * 2)) if method.key == "by-3" else run

    monkeypatch.setattr(DOMAIN, "runner", spoiled)
    result = invoke(sham, "--json", "b.json")
    assert result.exit_code == 1 and Path("b.json").is_file()
    assert "3 drafted (batch 2, T = 0): expected the numbers of plain counting, got them in 0 of 2" in result.stderr
