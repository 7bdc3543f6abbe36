"""Loading models of the zoo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transformers.utils import logging

import mmspec


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
