"""Loading models of the zoo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from transformers.utils import logging
from typer.testing import CliRunner

import mmspec
from mmspec.cli import app
from mmspec.imagegen.continuous.kl import KLConfig, write_kl
from mmspec.imagegen.continuous.kl import build_kl as new_autoencoder
from mmspec.zoo.architectures.object_detector import DetectorNetwork, DetectorSize, ObjectDetector
from mmspec.zoo.files import registry
from mmspec.zoo.files.sized import save_sized
from mmspec.zoo.files.table import MODELS, ZooModel


@pytest.fixture
def bars() -> Iterator[None]:
    """transformers draws bars, whatever an earlier test has set."""
    shown = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    yield
    if not shown:
        logging.disable_progress_bar()


@pytest.mark.usefixtures("bars")
@pytest.mark.parametrize("name", ("vlm", "vlm/small"))
def test_loading_shows_progress_bars_on_request_and_keeps_the_users_setting(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    mmspec.zoo.load(name)
    assert capsys.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()
    mmspec.zoo.load(name, progress=True)
    assert "Loading weights" in capsys.readouterr().err


def test_a_failed_load_leaves_bars_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: object) -> None:
        raise ValueError("expected weights")

    def hook(factory, args, kwargs):
        return factory(*args, **kwargs)

    monkeypatch.setattr("mmspec.zoo.files.vlm.read_vlm", fail)
    logging.set_tqdm_hook(hook)
    try:
        with pytest.raises(ValueError, match="expected weights"):
            mmspec.zoo.load("vlm")
    finally:
        assert logging.set_tqdm_hook(None) is hook


def test_unknown_names_are_listed() -> None:
    assert {"vlm", "vlm/small"} <= set(mmspec.zoo.names())
    for asked in (mmspec.zoo.load, mmspec.zoo.folder_of):
        with pytest.raises(ValueError, match="vlm/small"):
            asked("nothing")


def test_models_without_shipped_weights_are_listed_once_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "WEIGHTS", tmp_path)
    for name in ("kl", "mar"):
        monkeypatch.setitem(MODELS, name, replace(MODELS[name], ships=False))
    assert "kl" not in mmspec.zoo.names() and "t2i" in mmspec.zoo.names()
    with pytest.raises(ValueError, match="mmspec zoo build kl"):
        mmspec.zoo.load("kl")
    torch.manual_seed(0)
    write_kl(new_autoencoder(KLConfig(embed_dim=2, ch=4, ch_mult=(1, 1), norm_groups=2, scale=0.5)), tmp_path / "kl")
    assert "kl" in mmspec.zoo.names() and "mar" not in mmspec.zoo.names()
    assert mmspec.zoo.load("kl").config.scaling_factor == 0.5


def test_every_name_that_is_not_fetched_can_be_built_and_is_described() -> None:
    for name, row in MODELS.items():
        assert row.about and bool(row.builder) == (row.source is None)
        named = {one.removesuffix("/") for one in (*row.uses, *row.needs, row.auto)}
        assert named - {""} <= MODELS.keys()
        signature(function_at(f"mmspec.{row.loader}")).bind("folder", *row.uses)
        if row.builder:
            home = f"mmspec.zoo.training.{row.builder}"
            options = {"recipe": function_at(f"{home.partition(':')[0]}:{row.recipe}")()} if row.recipe else {}
            taken = signature(function_at(home))
            options |= {"name": name} if "name" in taken.parameters else {}
            taken.bind("out", "work", *row.needs, **options)


def function_at(place: str) -> Callable[..., object]:
    module, _, name = place.partition(":")
    return attrgetter(name)(import_module(module))


def test_a_builder_gets_its_models_and_the_options_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(registry, "load", lambda name: f"model {name}")
    monkeypatch.setattr("mmspec.zoo.training.vlm.build_drafter.build", lambda *given, name: seen.append((*given, name)))
    monkeypatch.setattr(
        "mmspec.zoo.training.continuous.build_mar.build", lambda *given, recipe: seen.append((*given, recipe.name))
    )
    for name in ("vlm/hybrid/mtp", "mar/draft"):
        registry.build(name, tmp_path, Path("work"), resume=False)
    folders = [mmspec.zoo.folder_of(name) for name in ("kl", "t2i")]
    assert seen == [
        (tmp_path, Path("work"), "model vlm/hybrid", "vlm/hybrid/mtp"),
        (tmp_path, Path("work"), *folders, "model image_judge", "mar/draft"),
    ]


def test_a_row_is_all_that_names_lists_and_loads_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ZooModel("a toy", "zoo.files.sized:load_detector", "image.build_scorers:build_detector", ships=False)
    monkeypatch.setitem(MODELS, "toy/judge", row)
    monkeypatch.setattr(registry, "WEIGHTS", tmp_path / "weights")
    assert "toy/judge" not in mmspec.zoo.names()
    with pytest.raises(ValueError, match="mmspec zoo build toy/judge"):
        mmspec.zoo.load("toy/judge")
    assert "toy/judge" in CliRunner().invoke(app, ["zoo", "build", "nothing"]).stderr
    network = DetectorNetwork(DetectorSize(8, 8, 8, 1))
    save_sized(network, network.size, tmp_path / "weights" / "toy_judge")
    assert "toy/judge" in mmspec.zoo.names() and isinstance(mmspec.zoo.load("toy/judge"), ObjectDetector)
    CliRunner().invoke(app, ["zoo", "list", "--json", str(tmp_path / "list.json")])
    listed = {load["name"]: load["what"] for load in json.loads((tmp_path / "list.json").read_text())}
    assert listed["toy/judge"] == "a toy"


def test_reading_the_table_imports_no_torch() -> None:
    code = "import sys; from mmspec.zoo.files import registry; registry.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
