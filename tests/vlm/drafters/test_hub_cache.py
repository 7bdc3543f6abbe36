"""`drafter="auto"` and published drafters: taken from the user's cache where they fit, named where they are not there."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mmspec
from mmspec.vlm.auto import offered_drafters
from mmspec.vlm.drafters import hub_cache, published
from mmspec.vlm.drafters.hub_cache import drafter_states
from mmspec.vlm.drafters.published import PublishedDrafter
from tests.check.test_source import cached
from tests.vlm.drafters.published_files import PUBLISHED, random_file
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny

TARGET, OWN, EAGLE = "tiny/target", "tiny/msd", "tiny/eagle"
ROWS = (PublishedDrafter(OWN, TARGET, "msd"), PublishedDrafter(EAGLE, TARGET, "eagle", "mit", "10K", read="a/b:c.json"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a table of two drafters, libraries that think they are online, and no sockets."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.socket", None)  # any use would be an error
    monkeypatch.setattr("socket.getaddrinfo", None)
    monkeypatch.setattr(published, "PUBLISHED", ROWS)
    return tmp_path


@pytest.fixture
def model() -> torch.nn.Module:
    """A model that was loaded by its hub id."""
    made = copy.deepcopy(tiny("llava"))
    made.name_or_path = TARGET
    return made


def said(model: torch.nn.Module) -> tuple[tuple, list[str]]:
    """The drafters that auto has, and its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        offered = offered_drafters(model)
    return offered, [str(entry.message) for entry in found if "drafter 'auto'" in str(entry.message)]


def write_eagle(folder: Path, **changed: int) -> None:
    """A published EAGLE drafter, whose config does not name its kind."""
    one = PUBLISHED["EAGLE-llama2-chat-7B"]
    config = one.small_config | changed
    save_file(random_file(one.shapes(config)), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("own", (True, False), ids=("ours", "published"))
def test_auto_takes_a_cached_drafter_that_fits(own: bool, cache: Path, model: torch.nn.Module) -> None:
    folder = cached(cache, OWN if own else EAGLE)
    make("msd").save_pretrained(folder) if own else write_eagle(folder)
    offered, heard = said(model)
    assert [one.name for one in offered] == ["prompt_lookup", "msd" if own else "eagle"] and heard == []
    assert offered_drafters(model)[1] is offered[1]
    inputs, asked = prompt("llava", images=1), dict(max_new_tokens=16, do_sample=False)
    out = mmspec.generate(model, drafter="auto", return_dict=True, **inputs, **asked)
    assert torch.equal(out.sequences, model.generate(**inputs, **asked))
    assert out.stats.drafter == f"goodput(prompt_lookup, {offered[1].name})"


@pytest.mark.parametrize(
    "changed", [{"hidden_size": 2 * HIDDEN}, {"vocab_size": VOCAB + 1}], ids=("width", "vocabulary")
)
def test_a_drafter_of_the_wrong_size_is_not_read(
    changed: dict, cache: Path, model: torch.nn.Module, monkeypatch
) -> None:
    write_eagle(cached(cache, EAGLE), **changed)
    monkeypatch.setattr("mmspec.vlm.drafters.checkpoints.load_drafter", None)  # any use would be an error
    offered, heard = said(model)
    ((name, wrong),) = changed.items()
    assert [one.name for one in offered] == ["prompt_lookup"]
    assert f"{EAGLE} in the cache is not used: expected the target's sizes, got {name} {wrong} instead of" in heard[0]


def test_the_fault_of_a_cached_drafter_is_reported_once(cache: Path, model: torch.nn.Module) -> None:
    folder = cached(cache, EAGLE)
    write_eagle(folder)
    (folder / "model.safetensors").write_bytes(b"0" * 40)
    assert "may be cut off or a pickle" in said(model)[1][0] and said(model)[1] == []
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (state,) = [state for state in drafter_states(TARGET, HIDDEN, VOCAB) if state.folder]
    assert "pickles are never loaded" in state.reason
    (folder / "config.json").write_text("{")
    (state,) = [state for state in drafter_states(TARGET, HIDDEN, VOCAB) if state.folder]
    assert "expected JSON" in state.reason and str(state).startswith(f"{EAGLE} does not fit: ")


def test_without_a_cached_drafter_auto_names_a_download_and_continues(cache: Path, model: torch.nn.Module) -> None:
    offered, heard = said(model)
    assert [one.name for one in offered] == ["prompt_lookup"]
    assert heard == [
        f"drafter 'auto': drafts by prompt lookup alone; {OWN} (layout assumed) is not here; fetch it with "
        f"`hf download {OWN}`"
    ]
    assert said(model)[1] == []


@pytest.mark.parametrize("name", ["", "tiny/other", "/data/model"])
def test_a_model_that_the_table_does_not_have_is_not_looked_up(name: str, cache: Path, model, monkeypatch) -> None:
    model.name_or_path = name
    monkeypatch.setattr(hub_cache, "cached_folder", None)  # any use would be an error
    monkeypatch.setattr("mmspec.vlm.auto.made_once", None)  # it looks at the layout of the model
    offered, heard = said(model)
    assert [one.name for one in offered] == ["prompt_lookup"] and heard == []


def test_an_offered_drafter_precedes_the_cache(cache: Path, model: torch.nn.Module) -> None:
    make("msd").save_pretrained(cached(cache, OWN))
    mmspec.vlm.offer(model, lambda: mmspec.drafters.TokenRecycling())
    assert [one.name for one in said(model)[0]] == ["token_recycling"]
