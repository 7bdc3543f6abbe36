"""Loading models of the zoo."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

import mmspec
from mmspec.imagegen.continuous.kl import KLConfig, write_kl
from mmspec.imagegen.continuous.kl import build_kl as new_autoencoder
from mmspec.zoo.files import registry
from mmspec.zoo.training import builders


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
def test_loading_draws_bars_only_when_asked_and_keeps_the_users_setting(
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

    monkeypatch.setitem(mmspec.zoo.files.registry.LOADERS, "vlm", fail)
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


def test_what_ships_no_weights_is_named_once_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "WEIGHTS", tmp_path)
    monkeypatch.setattr(registry, "UNSHIPPED", ("kl", "mar"))
    assert "kl" not in mmspec.zoo.names() and "t2i" in mmspec.zoo.names()
    with pytest.raises(ValueError, match="mmspec zoo build kl"):
        mmspec.zoo.load("kl")
    torch.manual_seed(0)
    write_kl(new_autoencoder(KLConfig(embed_dim=2, ch=4, ch_mult=(1, 1), norm_groups=2, scale=0.5)), tmp_path / "kl")
    assert "kl" in mmspec.zoo.names() and "mar" not in mmspec.zoo.names()
    assert mmspec.zoo.load("kl").config.scaling_factor == 0.5


def test_every_name_that_is_not_fetched_can_be_built_and_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(registry.LOADERS) == set(builders.BUILDERS) | set(registry.FETCHED_DRAFTERS)
    assert set(registry.UNSHIPPED) < set(registry.LOADERS)
    for find in ("load", "folder_of", "folder_with_weights"):
        monkeypatch.setattr(builders, find, Path)
    for row in builders.BUILDERS.values():
        module, _, name = row.function.partition(":")
        function = getattr(import_module(f"mmspec.zoo.training.{module}"), name)
        signature(function).bind("out", "work", *row.parts())
        assert row.title
