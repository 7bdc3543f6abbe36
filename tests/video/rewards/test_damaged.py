"""Damaged files and configs of rewards: one sentence, and nothing large is allocated."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from open_clip.model import CLIP
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPModel

from mmspec.video import hpsv2_from_state_dict, imagereward_from_state_dict, pickscore_from_state_dict
from tests.damaged import ABSURD, FILES, WEIGHTS, WRONG, refused
from tests.video.rewards.reference import CONFIG, random_state
from tests.video.rewards.tiny import OPEN_CLIP, TRANSFORMERS, words

CLIPS = {"tokenizer": words}
LOADERS: dict[str, tuple[Callable[..., Any], dict, Callable[[], dict], dict]] = {
    "imagereward": (imagereward_from_state_dict, CONFIG, random_state, {}),
    "hpsv2": (hpsv2_from_state_dict, OPEN_CLIP, lambda: CLIP(**OPEN_CLIP).state_dict(), CLIPS),
    "pickscore": (
        pickscore_from_state_dict,
        TRANSFORMERS,
        lambda: CLIPModel(CLIPConfig(**TRANSFORMERS)).state_dict(),
        CLIPS,
    ),
}
# a config is an argument here, and ImageReward leaves what lies beside its towers
OF_WEIGHTS = [name for name in FILES if "config" not in name]


@pytest.mark.parametrize("damage", OF_WEIGHTS)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_damaged_file_reports_one_error(kind: str, damage: str, tmp_path: Path) -> None:
    load, config, made, more = LOADERS[kind]
    state = {name: value for name, value in made().items() if not name.startswith("blip.text_proj")}
    save_file({name: value.clone() for name, value in sorted(state.items())}, tmp_path / WEIGHTS)
    if (kind, damage) == ("imagereward", "a tensor too many"):
        FILES[damage](tmp_path)
        load(tmp_path / WEIGHTS, config, **more)
        return
    FILES[damage](tmp_path)
    refused(lambda folder: load(folder / WEIGHTS, config, **more), tmp_path)


def places(config: dict, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where the fields of a config stand."""
    return [
        place
        for name, value in config.items()
        for place in (places(value, (*above, name)) if isinstance(value, dict) else [(*above, name)])
    ]


def with_field(config: dict, place: tuple[str, ...], value: Any) -> dict:
    changed = deepcopy(config)
    inner = changed
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return changed


@pytest.mark.parametrize("kind", LOADERS)
def test_fields_that_are_no_sizes_are_refused_or_say_nothing(kind: str) -> None:
    load, config, made, more = LOADERS[kind]
    state = made()
    for place in places(config):
        for value in (WRONG[0], max(ABSURD), 0):
            try:
                load(state, with_field(config, place, value), **more)
            except ValueError as error:
                assert "expected" in str(error) and "\n" not in str(error), (place, value, error)
