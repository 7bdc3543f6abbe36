"""Captured rounds give the ordinary loop's tokens, and keep what it keeps, for the same seed."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper

import mmspec
from mmspec.vlm.drafters import DynamicTree, StaticTree
from mmspec.vlm.graphs import decoding, rounds
from mmspec.vlm.graphs.graph_slot import GraphSlot
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.processors.nodes import CONTEXT_FREE
from tests.core.layers.graphs.recorded import recorded
from tests.vlm.drafters.trained import DRAFTERS
from tests.vlm.graphs.cases import GREEDY, SAMPLED, WARM, alike, both, chain, narrow, rows
from tests.vlm.tiny import prompt, tiny


@pytest.mark.covering
@pytest.mark.parametrize("batch", (1, 4))
@pytest.mark.parametrize("drafts", (False, True), ids=("plain", "chain"))
@pytest.mark.parametrize("settings", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
def test_pictures_and_text(settings: dict, drafts: bool, batch: int) -> None:
    settings = settings | ({"seed": settings["seed"][:batch]} if "seed" in settings else {})
    inputs = prompt("llava", images=1, batch=batch)
    assert alike(*both(tiny("llava"), drafter=chain() if drafts else None, max_new_tokens=14, **settings, **inputs))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("rule", ("exact", "token", "block", "match"))
@pytest.mark.parametrize("batch", (1, 4))
def test_every_rule_over_drafts_that_are_kept(rule: str, batch: int) -> None:
    pair = both(narrow(), drafter=chain(kind="narrow"), rule=rule, max_new_tokens=40, **WARM, **rows(batch))
    assert alike(*pair) and pair[1].stats.accept_length > 1.1


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("late", (0, 1))
@pytest.mark.parametrize("settings", (GREEDY, WARM), ids=("greedy", "sampled"))
def test_replays_without_the_rounds_python(settings: dict, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    def on_tape(function, device):
        replay = recorded(function, device)
        monkeypatch.setattr(GraphSlot, "round", None)  # nothing but the tape can run from here on
        return lambda: played.append(replay())

    kept = Rounds(record=on_tape, late=late)
    pair = both(narrow(), kept, drafter=chain(kind="narrow"), max_new_tokens=30, **settings, **rows(4))
    assert alike(*pair)
    assert (
        len(played) == len(pair[0].stats.accepted) - 1 + late
    )  # the prefill is no replay; a late reader plays one too many


@pytest.mark.parametrize("late", (0, 1))
def test_stop_tokens_inside_drafts_and_rows_that_stop_at_different_rounds(late: int) -> None:
    settings = dict(drafter=chain(5, kind="narrow"), max_new_tokens=40, eos_token_id=[3, 6], **WARM)
    ordinary, captured = both(narrow(), Rounds(late=late), **settings, **rows(4))
    assert alike(ordinary, captured)
    assert len(set(ordinary.stats.emitted)) > 1 and max(ordinary.stats.emitted) < 40
    assert any(stopped_inside(ordinary, row) for row in range(4))


def stopped_inside(out, row: int) -> bool:
    """Whether a row's last round kept a drafted token to stop at: then it emitted nothing of its own behind it."""
    kept = [line[row] for line in out.stats.accepted if line[row] is not None]
    return sum(kept) + len(kept) > out.stats.emitted[row]


@pytest.mark.parametrize("late", (0, 1))
def test_a_cache_that_has_to_grow(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SLOTS", 16)
    monkeypatch.setattr(decoding, "_AHEAD", 1)
    bounds = []
    monkeypatch.setattr(GraphSlot, "__init__", noting(GraphSlot.__init__, lambda slot: bounds.append(slot.bound)))
    pair = both(narrow(), Rounds(late=late), drafter=chain(kind="narrow"), max_new_tokens=90, **WARM, **rows(4))
    assert alike(*pair) and bounds == [32, 64, 128]


def noting(init, note):
    def made(self, *args, **kwargs):
        init(self, *args, **kwargs)
        note(self)

    return made


def test_rows_of_a_larger_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "rows_for", lambda target: 8)
    pair = both(narrow(), drafter=chain(kind="narrow"), max_new_tokens=20, **WARM, **rows(3))
    assert alike(*pair)


def test_a_graph_slot_serves_requests_in_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    made, kept = [], Rounds(record=recorded)
    monkeypatch.setattr(GraphSlot, "__init__", noting(GraphSlot.__init__, made.append))
    for seed, length in ((1, 20), (2, 33), (3, 7)):
        settings = WARM | dict(seed=seed, max_new_tokens=length)
        assert alike(*both(narrow(), kept, drafter=chain(kind="narrow"), **settings, **rows(2)))
        for keys in made[0].target.cache.groups:  # whatever a request leaves there
            keys.keys.fill_(torch.nan)
    assert len(made) == 1
    assert alike(
        *both(
            narrow(), kept, drafter=chain(kind="narrow"), max_new_tokens=9, **(WARM | dict(temperature=0.5)), **rows(2)
        )
    )
    assert len(made) == 2  # another temperature is another round


def test_concurrent_requests_have_a_graph_slot_each() -> None:
    kept = Rounds()
    settings = dict(drafter=chain(kind="narrow"), max_new_tokens=20, **WARM)
    alone = [mmspec.generate(narrow(), **settings, **rows(batch)) for batch in (2, 2, 3)]
    running = [mmspec.vlm.start(narrow(), capture=kept, **settings, **rows(batch)) for batch in (2, 2, 3)]
    left = list(running)
    while left:
        left = [one for one in left if one.step()]
    for one, tokens in zip(running, alone, strict=True):
        rows_of = [row[9:][: len(own)] for row, own in zip(tokens.tolist(), one.target.tokens, strict=True)]
        assert one.captured and one.target.tokens == rows_of


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", (StaticTree(), DynamicTree(8, 3, 3)), ids=("static", "dynamic"))
@pytest.mark.parametrize("settings", (GREEDY, WARM), ids=("greedy", "sampled"))
def test_trees(shape: StaticTree | DynamicTree, settings: dict) -> None:
    drafter = chain(kind="narrow").with_shape(shape)
    assert alike(*both(narrow(), drafter=drafter, max_new_tokens=24, **settings, **rows(4)))


@pytest.mark.default_cells("eagle3", "specvlm")
@pytest.mark.parametrize("name", ("msd", "vispec", "specvlm", "eagle3"))
def test_families(name: str) -> None:
    drafter = DRAFTERS[name]().with_shape(chain().shapes[0])
    settings = SAMPLED | dict(seed=1, max_new_tokens=12)
    assert alike(*both(tiny("llava"), drafter=drafter, **settings, **prompt("llava", images=1, batch=4)))


class RulesAllOut(TemperatureLogitsWarper):
    """Leaves no token to draw where the likeliest is a certain one."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.where(scores.argmax(-1, keepdim=True) == 5, -torch.inf, scores)


def test_rows_that_fail_stop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.vlm.processors.nodes.CONTEXT_FREE", (*CONTEXT_FREE, RulesAllOut))
    settings = dict(
        drafter=chain(kind="narrow"), max_new_tokens=30, logits_processor=LogitsProcessorList([RulesAllOut(1.0)])
    )
    ordinary, captured = both(narrow(), **settings, **WARM, **rows(4))
    assert alike(ordinary, captured) and captured.errors


def test_a_streamer_gets_the_runs_of_the_ordinary_loop() -> None:
    class Notes:
        def __init__(self) -> None:
            self.runs, self.ended = [], False

        def put(self, value: object) -> None: ...

        def put_run(self, run: list[int], accepted: int) -> None:
            self.runs.append((run, accepted))

        def end(self) -> None:
            self.ended = True

    notes = []
    for capture in (False, Rounds(late=1)):
        notes.append(Notes())
        mmspec.generate(
            narrow(),
            drafter=chain(kind="narrow"),
            capture=capture,
            streamer=notes[-1],
            max_new_tokens=20,
            **WARM,
            **rows(1),
        )
    assert notes[0].runs == notes[1].runs and notes[1].ended
