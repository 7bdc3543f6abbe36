"""Conversations by hand: a cache with content beside the whole prompt gives the text and the cache of transformers."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Cache, DynamicCache, StaticCache

import mmspec
from mmspec.vlm.drafters import PromptLookup
from tests.vlm.doors import DOORS, call_through
from tests.vlm.layer_kinds import ONCE, STATEFUL, model_with, ragged
from tests.vlm.test_returned_cache import alike
from tests.vlm.tiny import prompt, tiny

GREEDY = dict(max_new_tokens=8, do_sample=False)
NEW = torch.tensor([[31, 32, 33]])


def first_turn(model: object, inputs: dict, cache: Cache | None = None) -> tuple[torch.Tensor, Cache]:
    """The conversation after a turn by transformers, and its cache."""
    made = DynamicCache(config=model.config) if cache is None else cache
    out = model.generate(**inputs, **GREEDY, past_key_values=made, return_dict_in_generate=True)
    return out.sequences, out.past_key_values


@pytest.mark.parametrize("drafter", (None, PromptLookup()), ids=("plain", "lookup"))
@pytest.mark.parametrize("name", ONCE)
def test_the_next_turn_is_that_of_transformers(name: str, drafter: object) -> None:
    model, inputs = model_with(name), ragged((9,), seed=4)
    said, theirs = first_turn(model, inputs)
    ours = copy.deepcopy(theirs)
    for _ in range(2):
        ids = torch.cat([said, NEW], 1)
        said = model.generate(ids, past_key_values=theirs, **GREEDY)
        assert torch.equal(mmspec.generate(model, drafter=drafter, input_ids=ids, past_key_values=ours, **GREEDY), said)
        assert ours.get_seq_length() == theirs.get_seq_length() == said.shape[1] - 1
        if name not in STATEFUL:  # states after single steps and after a pass differ by more than rounding of keys
            alike(ours, theirs)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("static", (False, True), ids=("dynamic", "static"))
@pytest.mark.parametrize("rows", (1, 4))
def test_every_door_takes_a_cache_with_content(door: str, static: bool, rows: int) -> None:
    """Padded rows too, whose padding stays in the cache."""
    model, inputs = tiny("llama"), prompt("llama", batch=rows, seed=3)
    made = StaticCache(config=model.config, max_cache_len=64) if static else None
    said, theirs = first_turn(model, inputs, made)
    ours = copy.deepcopy(theirs)
    ids = torch.cat([said, NEW.expand(rows, -1)], 1)
    mask = torch.cat([inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])), torch.ones_like(ids)], 1)
    settings = dict(input_ids=ids, attention_mask=mask[:, : ids.shape[1]], **GREEDY)
    truth = model.generate(**settings, past_key_values=theirs)
    assert torch.equal(call_through(door, model, drafter=PromptLookup(), **settings, past_key_values=ours), truth)
    alike(ours, theirs, settings["attention_mask"] == 0)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl", "qwen3_vl"))
def test_pictures_of_the_first_turn_are_passed_again(kind: str, door: str) -> None:
    model, inputs = tiny(kind), prompt(kind, 1, seed=9)
    said, cache = first_turn(model, inputs)
    ids = torch.cat([said, NEW], 1)
    whole = inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in inputs:
        kinds = inputs["mm_token_type_ids"]
        whole["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, ids.shape[1] - kinds.shape[1]))
    truth = model.generate(**whole, **GREEDY)
    assert torch.equal(call_through(door, model, **whole, **GREEDY, past_key_values=cache), truth)


@pytest.mark.parametrize("name", ("other tokens", "edited", "too long", "whole", "new part", "other model"))
def test_a_cache_of_something_else_is_refused_in_a_sentence(name: str) -> None:
    model, ids = tiny("llama"), torch.arange(5, 17)[None]
    cache = DynamicCache(config=model.config)
    held = {"other tokens": ids + 1, "too long": ids, "whole": ids}.get(name, ids[:, :8])
    (tiny("qwen3") if name == "other model" else model)(
        input_ids=held[:, :-1] if name == "other tokens" else held, past_key_values=cache
    )
    if name == "edited":
        cache.layers[1].values += 0.5
    settings = {"input_ids": ids[:, :6] if name == "too long" else ids[:, 8:] if name == "new part" else ids}
    if name == "new part":
        settings["attention_mask"] = torch.ones_like(ids)
    before = [layer.keys.clone() for layer in cache.layers]
    with pytest.raises(ValueError, match="past_key_values: expected .* send the whole prompt") as caught:
        mmspec.generate(model, **settings, **GREEDY, past_key_values=cache)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before, strict=True))
