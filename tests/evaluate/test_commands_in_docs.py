"""Every command that README, CONTRIBUTING, BENCHMARKS and the pages under docs/ show runs as written, placeholders filled in.

Models are tiny stand-ins; benches, training and building are followed up to where their work begins.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.certify.step import load_step
from mmspec.cli import app
from mmspec.evaluate.base.provenance import fingerprint
from mmspec.run.image_models import ImageResources
from mmspec.run.vlm_models import VlmResources
from mmspec.zoo.files.table import MODELS
from tests.docs.examples import EXAMPLES, prepared
from tests.evaluate import tiny_continuous, tiny_images, tiny_video, tiny_zoo
from tests.evaluate.report.kept import grid, written
from tests.evaluate.test_sizing import bench_rows

pytestmark = pytest.mark.usefixtures("built_once")

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "benchmarks"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "BENCHMARKS")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FILL = {
    "PROMPT": "a red circle", "IMAGE": "scene.png", "TEXT": "What is this?", "T": "0.5", "N": "4", "S": "2",
    "FILE": "out.json", "FILE.png": "out.png", "FILE.gif": "out.gif", "FILE.md": "out.md", "PATH": "model", "FOLDER": "made",
    "NAME=LOG": "run=made/work/log.jsonl", "MODULE:CALLABLE": "mmspec.certify.rules:block",
    "RUN": "runs/zoo", "SET": "zoo", "NAME=FOLDER/work/log.jsonl": "run=made/work/log.jsonl", "mine=FOLDER": "mine=made",
    "image=FOLDER": "t2i", "continuous=FOLDER": "mar", "mmspec=DIR": "zoo",
}  # fmt: skip
NAMES = {"--drafter": "lookup", "--rule": "exact"}  # what NAME stands for behind an option; else for a model of the zoo


class WorkBegins(Exception):
    """A command got as far as its expensive part."""


def shown(page: Path) -> list[str]:
    """The command lines of a page, those in its sentences among them."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    parts = [part for line in lines for part in re.split(r"\s{2,}(?=mmspec )", line)]
    named = re.findall(r"`((?:mmspec|make) [^`]+)`", prose)
    # a sentence that names a command alone does not say how to call it
    return [*parts, *(re.sub(r"^(mmspec \w+)$", r"\1 --help", entry) for entry in named)]


def filled(line: str) -> list[list[str]]:
    """The arguments of a line that begins with mmspec, one list for each choice of its alternatives."""
    line = re.sub(r"\s+#.*", "", line).removeprefix("$ ").replace('accelerate launch "$(which mmspec)"', "mmspec")
    words = [word for word in shlex.split(line.replace("[", " ").replace("]", " "))[1:] if word != "..."]
    choices: list[list[str]] = []
    for before, word in zip(["", *words], words, strict=False):
        if word == "NAME":
            choices.append([NAMES.get(before, "vlm")])
        else:
            choices.append([FILL.get(one, one) for one in word.split("|") if one != "..."])
    return [list(combination) for combination in product(*choices)]


COMMANDS = sorted(
    {
        tuple(a)
        for page in PAGES
        for line in shown(page)
        if "mmspec " in line and not line.startswith(".")
        for a in filled(line)
    }
)


@cache
def code() -> str:
    """Of this checkout, as a run of it says."""
    return fingerprint()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with what the placeholders name, tiny models in the place of the zoo's, and nothing expensive."""

    def load(name: str) -> object:
        if name in tiny_continuous.tiny_continuous_zoo():
            return tiny_continuous.tiny_continuous_zoo()[name]
        if name.partition("/")[0] == "video":
            return tiny_video.tiny_video_zoo()[name]
        home = tiny_images if name in tiny_images.tiny_image_zoo() else tiny_zoo
        return home.load(name)

    def begin(*arguments: object, **settings: object) -> None:
        raise WorkBegins

    def examine(step: str, **how: object) -> None:
        if step.startswith("mmspec."):
            load_step(step)
        raise WorkBegins

    monkeypatch.chdir(tmp_path)
    tiny_zoo.recommend_eagle(monkeypatch)
    monkeypatch.setattr("mmspec.certify.subprocess_run.certify_in_subprocess", examine)
    monkeypatch.setattr("mmspec.zoo.load", load)
    monkeypatch.setattr(
        "mmspec.zoo.names",
        lambda: [
            *dict.fromkeys((*(name for name, row in MODELS.items() if row.builder), *tiny_video.tiny_video_zoo()))
        ],
    )
    for expensive in ("bench._run", "bench._machine", "train._train"):
        monkeypatch.setattr(f"mmspec.cli.{expensive}", begin)
    # the package has the command in the place of its module
    monkeypatch.setattr(import_module("mmspec.cli.evaluate"), "_run", begin)
    monkeypatch.setattr(import_module("mmspec.cli.convert"), "_convert", begin)
    for work in ("_models", "_published", "_validate"):
        monkeypatch.setattr(import_module("mmspec.cli.estimate"), work, begin)
    for work in ("fetch", "remove"):
        monkeypatch.setattr(f"mmspec.zoo.files.fetched.{work}", begin)
    for optional in ("web.server.need_packages", "evaluate.engine.task_runners.need_ray"):
        monkeypatch.setattr(f"mmspec.{optional}", begin)
    # models of text are followed up to where they would be loaded, image models of folders are tiny
    monkeypatch.setattr("mmspec.cli.options._published", begin)
    monkeypatch.setattr(
        "mmspec.run.image_models.folder_resources", lambda folder: ImageResources(load("t2i"), str(folder))
    )
    monkeypatch.setattr(
        "mmspec.cli.train.open_resources", lambda *a: VlmResources(*tiny_zoo.tiny_zoo()["vlm"], "model")
    )
    for expensive in ("zoo.files.registry.build", "check.check", "vlm.load_drafter"):
        monkeypatch.setattr(f"mmspec.{expensive}", begin)
    for name in ("scene.png", "photo.jpg"):
        Image.effect_noise((24, 24), 60).convert("RGB").save(name)
    for folder in ("made/work", "results", "docs/benchmarks", "docs/figures"):
        Path(folder).mkdir(parents=True)
    for file in EXAMPLES.glob("*.py"):
        Path(file.name).symlink_to(file)
    Path("made/work/log.jsonl").write_text('{"step": 1, "accept_length": 2.0}\n')
    Path("drafters.json").write_text(json.dumps({"env": {}, "rows": bench_rows()}))
    written(Path("runs/zoo"), grid(2), about={"code": code(), "seed": 0})
    Path("requests.jsonl").write_text((json.dumps({"text": "What?", "images": ["scene.png"]}) + "\n") * 12)
    monkeypatch.setattr("mmspec.methods.modules._imported", {})
    with prepared(monkeypatch):
        yield


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_shown_command_runs(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*arguments])
    if not isinstance(result.exception, WorkBegins):
        assert result.exit_code == 0, (result.output, result.exception)


def test_every_page_and_every_command_is_among_them() -> None:
    assert len(COMMANDS) > 25
    assert {"image", "video", "caption", "train", "bench", "zoo", "supported", "certify", "evaluate", "report"} <= {
        arguments[0] for arguments in COMMANDS
    }
    assert all(any("mmspec " in line for line in shown(page)) for page in PAGES if page.parent.name == "docs")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_and_paths_that_are_shown_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in shown(page):
        words = line.split()
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        if "pytest" in words:
            assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), line


def test_a_command_that_is_wrong_is_found() -> None:
    for wrong in ("mmspec bench vlm --suite nothing", "mmspec image --colour red", "mmspec sing"):
        (arguments,) = filled(wrong)
        assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize("page", sorted(set(TABLES.glob("*.md")) - {TABLES / "README.md"}), ids=lambda page: page.stem)
def test_a_page_of_tables_says_how_it_was_made_and_is_listed(page: Path) -> None:
    text, listed = page.read_text(encoding="utf-8"), (TABLES / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\| command \| `mmspec bench (\w+) --suite (\w+)[^`]*` \|$", text, re.M)
    assert commands and all(page.stem.startswith("-".join(command)) for command in commands)
    assert f"]({page.name})" in listed or f"]({page.name}#" in listed
    for fact in ("command", "date", "model", "machine", "versions"):  # a section a run
        assert len(re.findall(rf"^\| {fact} \| .+ \|$", text, re.M)) == len(commands), fact
    assert all((page.parent / plot).is_file() for plot in re.findall(r"!\[.*?\]\((.*?)\)", text))


def test_link_targets_of_the_results_page_exist() -> None:
    for page in (ROOT / "BENCHMARKS.md", TABLES / "README.md", ROOT / "README.md"):
        targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        assert targets and all((page.parent / target).exists() for target in targets)
