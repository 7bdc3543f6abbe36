"""Ways in which a folder with a config.json and a model.safetensors can be damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

CONFIG, WEIGHTS = "config.json", "model.safetensors"
Damage = Callable[[Path], object]


def weights(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        change(state)
        save_file(state, folder / WEIGHTS)

    return damage


def put(name: str, contents: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(contents)


def cut(kept: float) -> Damage:
    def damage(folder: Path) -> None:
        whole = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(whole[: int(len(whole) * kept)])

    return damage


def first_float(state: dict[str, Tensor]) -> str:
    return next(name for name, value in state.items() if value.is_floating_point())


def reshape(state: dict[str, Tensor]) -> None:
    name = first_float(state)
    state[name] = torch.zeros(*state[name].shape, 2)


def flatten(state: dict[str, Tensor]) -> None:
    for name in state:
        state[name] = torch.tensor(0.5)


def fill(value: float) -> Callable[[dict[str, Tensor]], None]:
    return lambda state: [part.fill_(value) for part in state.values() if part.is_floating_point()]


FILES: dict[str, Damage] = {
    "truncated": cut(0.9),
    "truncated in the header": cut(0.001),
    "empty": cut(0),
    "garbage": put(WEIGHTS, b"\xff" * 999),
    "pickled": lambda folder: torch.save({"a": torch.ones(3)}, folder / WEIGHTS),
    "a missing tensor": weights(lambda state: state.pop(first_float(state))),
    "a tensor too many": weights(lambda state: state.update(stranger=torch.ones(1))),
    "another shape": weights(reshape),
    "no shape at all": weights(flatten),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "no config": lambda folder: (folder / CONFIG).unlink(),
    **{f"config {text!r:.20}": put(CONFIG, text) for text in (b"", b"{", b"[1]", b"7", b"\xff", b"[" * 99_999, b"{}")},
}
NUMBERS: dict[str, Damage] = {f"all {value}": weights(fill(value)) for value in (float("nan"), float("inf"))}


def refused(load: Callable[[Path], Any], folder: Path) -> str:
    """The one sentence with which `load` refuses the folder, which it names."""
    with pytest.raises(ValueError, match="expected") as caught:
        load(folder)
    message = str(caught.value)
    assert str(folder) in message and "\n" not in message and len(message) < 1200, message
    return message


def loads_or_refuses(load: Callable[[Path], Any], folder: Path) -> None:
    try:
        load(folder)
    except ValueError as error:
        assert str(folder) in str(error) and "\n" not in str(error), error


def other_fields(folder: Path, values: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Writes the config with one field after the other in turn set to each of the values, and at last as it was."""
    whole = (folder / CONFIG).read_text()
    for name in json.loads(whole):
        for value in values:
            (folder / CONFIG).write_text(json.dumps({**json.loads(whole), name: value}))
            yield name, value
    (folder / CONFIG).write_text(whole)


ABSURD = (10**6, 10**9, 10**40, 0, -1)
WRONG = ({"a": 1}, [[]], "wide")
