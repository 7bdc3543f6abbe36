"""A call may write `past_key_values` or `cache`, the name since transformers 5.24, on every version of transformers."""

import logging
import subprocess
import sys
import warnings

import pytest
import torch
from transformers import DynamicCache

import mmspec
from mmspec.core.layers.compat import CACHE, NEWEST_TESTED, OLDEST, check_version
from mmspec.vlm.conversation import Past
from tests.vlm.tiny import tiny

NAMES = "past_key_values", "cache"
GREEDY = dict(max_new_tokens=6, do_sample=False)


def calls(model):
    """The doors that a caller's cache can come through, by name."""
    return {
        "generate": lambda **inputs: mmspec.generate(model, drafter="lookup:longest=2", **inputs),
        "enable": lambda **inputs: enabled(model, **inputs),
        "plain": lambda **inputs: enabled(model, otherwise="plain", **inputs),
        "custom_generate": lambda **inputs: enabled(model, custom_generate=mmspec.decode, **inputs),
    }


def enabled(model, otherwise="refuse", **inputs):
    mmspec.enable(model, "lookup:longest=2", otherwise=otherwise)
    try:
        return model.generate(**inputs)
    finally:
        mmspec.disable(model)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("door", ["generate", "enable", "plain", "custom_generate"])
def test_an_empty_cache_is_filled_under_either_name(door, name):
    model, ids, own = tiny("llama"), torch.tensor([[5, 6, 7, 8]]), DynamicCache()
    out = calls(model)[door](input_ids=ids, **{name: own}, **GREEDY)
    assert torch.equal(out, model.generate(ids, **GREEDY))
    assert own.get_seq_length() == out.shape[1] - 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("door", ["generate", "enable", "plain", "custom_generate"])
def test_a_conversation_goes_on_under_either_name(door, name):
    model, ids = tiny("llama"), torch.tensor([[5, 6, 7, 8]])
    past = Past(model)
    first = calls(model)[door](input_ids=ids, **{name: past}, **GREEDY)
    assert past.held == first.shape[1] - 1
    second = calls(model)[door](input_ids=first, **{name: past}, **GREEDY)
    assert torch.equal(second, model.generate(first, **GREEDY))
    assert past.held == second.shape[1] - 1


def test_two_caches_are_refused_and_none_is_no_cache():
    model, ids = tiny("llama"), torch.tensor([[5, 6, 7, 8]])
    for door in calls(model).values():
        with pytest.raises(ValueError, match="past_key_values: expected one cache, got past_key_values and cache"):
            door(input_ids=ids, past_key_values=DynamicCache(), cache=DynamicCache(), **GREEDY)
        assert torch.equal(
            door(input_ids=ids, past_key_values=None, cache=None, **GREEDY), model.generate(ids, **GREEDY)
        )
    with pytest.raises(ValueError, match="past_key_values: expected none to step by hand"):
        mmspec.vlm.start(model, input_ids=ids, cache=DynamicCache(), **GREEDY)


def test_the_result_has_the_cache_under_the_names_of_transformers():
    model, ids = tiny("llama"), torch.tensor([[5, 6, 7, 8]])
    out = mmspec.generate(model, input_ids=ids, return_dict_in_generate=True, **GREEDY)
    assert out.past_key_values is out[CACHE] is getattr(out, CACHE)
    assert set(model.generate(ids, return_dict_in_generate=True, **GREEDY)) <= set(out)


@pytest.mark.parametrize("name", NAMES)
def test_no_call_of_ours_uses_a_name_that_is_deprecated(name, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model, ids = tiny("qwen2_5_vl"), torch.tensor([[5, 6, 7, 8]])
    past = Past(model)
    with warnings.catch_warnings(), caplog.at_level("WARNING"):
        warnings.simplefilter("error", FutureWarning)
        said = mmspec.generate(model, drafter="lookup:longest=2", input_ids=ids, **{name: past}, **GREEDY)
        mmspec.generate(model, drafter="swift", input_ids=said, return_dict=True, **GREEDY)
    assert "deprecated" not in caplog.text


def test_versions_below_the_lowest_are_refused_and_above_the_newest_get_a_warning():
    with pytest.raises(ValueError, match=r"^transformers: expected version 5\.13 or newer, got 5\.12\.4; run pip"):
        check_version("5.12.4")
    with pytest.raises(ValueError, match="got 4.57.1"):
        check_version("4.57.1")
    for newer in (f"{NEWEST_TESTED[0]}.{NEWEST_TESTED[1] + 1}.0.dev0", "6.0.0"):
        with pytest.warns(UserWarning, match=f"tested with transformers up to 5.24, got {newer}"):
            check_version(newer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in (OLDEST, NEWEST_TESTED):
            check_version(".".join(map(str, number)) + ".3")


@pytest.mark.parametrize(
    "use",
    [
        "import mmspec; mmspec.generate",
        pytest.param("import mmspec; mmspec.Session", marks=pytest.mark.whole),
        pytest.param("from mmspec.imagegen.adapters import decoder_model", marks=pytest.mark.whole),
        pytest.param("import mmspec.vlm.training.prompts", marks=pytest.mark.whole),
    ],
)
def test_the_first_use_refuses_an_old_version_in_a_sentence(use):
    code = f"import transformers; transformers.__version__ = '5.12.0'; {use}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode and run.stderr.splitlines()[-1].startswith("ValueError: transformers: expected version")
