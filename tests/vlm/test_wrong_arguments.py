"""Numbers and truth values of a wrong type stop text requests and drafters' settings with the argument's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

import mmspec
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.round.rules.typical import TypicalAcceptance
from mmspec.vlm import drafters
from tests.vlm.tiny import prompt, tiny
from tests.wrong_values import WRONG, cases, refused

SETTINGS: dict[Callable, Callable] = {
    drafters.AcceptanceStop: partial(drafters.AcceptanceStop, object()),
    drafters.DynamicTree: drafters.DynamicTree,
    drafters.PromptLookup: drafters.PromptLookup,
    drafters.StaticTree: drafters.StaticTree,
    drafters.TokenRecycling: drafters.TokenRecycling,
    ConfidenceStop: ConfidenceStop,
    FixedLength: FixedLength,
    TypicalAcceptance: TypicalAcceptance,
}
# how a request is made -> its switches; `decode` has no return_dict
ENTRIES: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "generate": (lambda **how: mmspec.generate(tiny("llama"), **how), ("strict", "capture", "return_dict")),
    "start": (lambda **how: mmspec.vlm.start(tiny("llama"), **how), ("strict", "capture")),
    "decode": (
        lambda **how: tiny("llama").generate(custom_generate=mmspec.decode, **how),
        ("strict", "capture"),
    ),
}


def request(entry: str) -> Callable:
    return partial(ENTRIES[entry][0], **prompt("llama"), max_new_tokens=2)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one.__name__)
def test_settings_refuse_invalid_numbers_and_booleans(settings: Callable) -> None:
    tried = list(cases(settings))
    assert tried
    for name, value in tried:
        refused(SETTINGS[settings], name, value)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_request_refuses_switches_that_are_no_truth_values(entry: str) -> None:
    for name in ENTRIES[entry][1]:
        for value in (*WRONG["bool"], "False", None):
            refused(request(entry), name, value)


IDS = prompt("llama")["input_ids"]
TYPES = {
    "input_ids": (IDS.numpy(), IDS.tolist(), IDS[0], IDS.float(), IDS.bool(), "text"),
    "attention_mask": (IDS.numpy(), [1], 3, torch.ones_like(IDS)[:, 1:]),
    "memory": (3, -1),
    "streamer": (3,),
    "on_stats": (3,),
    "top_p": ("a", [0.5]),
    "temperature": ("a", np.array([1.0, 2.0])),
    "eos_token_id": ("a", 1.5, [1, "a"]),
    "pad_token_id": ("a", 1.5),
    "logits_processor": (3,),
    "stopping_criteria": (3,),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_request_refuses_other_types_by_name(name: str) -> None:
    for value in TYPES[name]:
        with pytest.raises(ValueError, match=f"^{name}: expected [^\n]*got "):
            mmspec.generate(tiny("llama"), **prompt("llama") | {"max_new_tokens": 2, name: value})


def test_parts_of_drafters_are_refused_by_name() -> None:
    calls = {
        "stop": [partial(drafters.DynamicTree, stop=stop) for stop in (None, "a", 3, [1], 0.5)],
        "table": [
            partial(kind, table=table)
            for kind in (drafters.TokenRecycling, drafters.Stand, drafters.Aded)
            for table in ([1], {}, torch.ones(2))
        ],
        "width": [partial(drafters.RecyclingTable, width=width) for width in (None, "a", 1.5, 0)],
        "max_ngram": [partial(drafters.LawTable, max_ngram=count) for count in (None, "a", 1.5)],
        "count": [partial(drafters.LayerSet, count) for count in (None, "a", 1.5)],
        "drafter": [partial(drafters.Goodput, drafter) for drafter in (None, "a", 3, drafters.PromptLookup)],
    }
    for name, several in calls.items():
        for call in several:
            with pytest.raises(ValueError, match=f"^{name}: expected [^\n]*"):
                call()
    assert drafters.DynamicTree(stop="3:0.3") == drafters.DynamicTree(stop=((3, 0.3),))


def test_a_session_needs_a_model() -> None:
    _, processor = mmspec.zoo.load("vlm")
    for model in (None, 3, torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="^model: expected a transformers model"):
            mmspec.Session(model, processor)


@pytest.mark.parametrize("path", (None, 3, "/nonexistent/", "name", "a/b/c"))
def test_a_drafter_has_a_folder_or_an_id(path: object) -> None:
    with pytest.raises(ValueError, match="^path_or_repo: expected a folder or a hub id"):
        mmspec.vlm.load_drafter(path)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_request_refuses_seeds_that_are_no_whole_numbers(entry: str) -> None:
    for value in (*WRONG["int"], [True], [math.nan]):
        refused(request(entry), "seed", value)


@pytest.mark.parametrize("name", ("do_sample", "use_cache", "output_scores", "renormalize_logits"))
def test_switches_of_transformers_are_truth_values(name: str) -> None:
    for value in ("no", 1):
        refused(request("generate"), name, value)
        config = GenerationConfig(max_new_tokens=2)
        setattr(config, name, value)
        with pytest.raises(ValueError, match=f"^{name}: expected "):
            mmspec.generate(tiny("llama"), **prompt("llama"), generation_config=config)


@pytest.mark.parametrize("name", ("max_new_tokens", "min_new_tokens", "num_return_sequences", "top_k"))
def test_counts_of_transformers_are_whole_numbers(name: str) -> None:
    for value in (True, 1.5, math.nan):
        refused(request("generate"), name, value)
