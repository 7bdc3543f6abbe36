"""A model that was enabled and disabled is as it was: what it carries, and what it says, bit for bit."""

from __future__ import annotations

from copy import deepcopy
from inspect import signature
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import mmspec
from mmspec.core.round.rules.typical import TypicalAcceptance
from mmspec.vlm.auto import automatic, offer
from mmspec.vlm.drafters import PromptLookup, SmallModel
from tests.attach.traces import traces
from tests.vlm.drafters.trained import make
from tests.vlm.test_unwrapping import Adapted, Calling
from tests.vlm.tiny import prompt, tiny


def said(model: nn.Module, kind: str) -> list[Tensor]:
    """What a model says, greedily, sampled and in a batch."""
    found = []
    for settings in (dict(), dict(do_sample=True, temperature=0.8), dict(do_sample=True, num_return_sequences=2)):
        torch.manual_seed(5)
        found.append(model.generate(**prompt(kind, images=int(kind == "llava")), max_new_tokens=12, **settings))
    return found


@pytest.mark.parametrize("kind", ("llama", "llava", "qwen2"))
def test_nothing_is_left_of_it(kind: str) -> None:
    model = tiny(kind)
    own, before = said(model, kind), traces(model)
    cls, methods = type(model), dict(vars(type(model)))
    handle = mmspec.enable(model, PromptLookup())
    assert handle.obj is model and type(model) is cls and list(vars(model)) == [*before[": names"], "generate"]
    drafted = said(model, kind)
    assert torch.equal(drafted[0], own[0])  # greedy words are the target's
    mmspec.disable(model)
    assert traces(model) == before and dict(vars(cls)) == methods
    assert all(torch.equal(a, b) for a, b in zip(said(model, kind), own, strict=True))


def test_traces_reveal_leftover_changes() -> None:
    model = tiny("llama")
    before = traces(model)
    handle = mmspec.enable(model)
    assert traces(model) != before
    handle.close()
    hook = model.model.layers[0].register_forward_hook(lambda *a: None)
    hook.remove()
    assert traces(model) == before
    model.config.mark = 1
    model.model.layers[0].training = True
    assert traces(model) != before
    model.model.layers[0].training = False
    del model.config.mark


def test_a_method_that_stood_there_before_is_put_back() -> None:
    model = deepcopy(tiny("llama"))
    model.generate = mine = lambda *args, **kwargs: type(model).generate(model, *args, **kwargs)
    names = list(vars(model))
    with mmspec.enable(model, PromptLookup()):
        model.generate(**prompt("llama"), max_new_tokens=4)
    assert vars(model)["generate"] is mine and list(vars(model)) == names


def test_a_second_time_is_refused_until_it_is_disabled() -> None:
    model = tiny("llama")
    with mmspec.enable(model) as handle:
        with pytest.raises(ValueError, match="expected an object that is not enabled, got LlamaForCausalLM"):
            mmspec.enable(model, PromptLookup())
        assert vars(model)["generate"] is handle
    handle.close()  # once more changes nothing
    with pytest.raises(ValueError, match="expected an enabled object"):
        mmspec.disable(model)
    with pytest.raises(ValueError, match="expected an enabled object"):
        mmspec.summary(model)
    mmspec.enable(model).close()


def test_it_ends_with_its_block_whatever_happens_there() -> None:
    model = tiny("llama")
    before = traces(model)
    with pytest.raises(RuntimeError, match="mine"), mmspec.enable(model, PromptLookup()):
        raise RuntimeError("mine")
    assert traces(model) == before


def test_closing_refuses_to_remove_a_later_generate_replacement() -> None:
    model = deepcopy(tiny("llama"))
    handle = mmspec.enable(model)
    model.generate = print
    with pytest.raises(ValueError, match="in its place; remove that first"):
        handle.close()
    vars(model)["generate"] = handle
    handle.close()
    assert "generate" not in vars(model)


def test_the_summary_reports_the_calls_that_ran() -> None:
    model = tiny("llama")
    inputs = prompt("llama")
    with mmspec.enable(model, PromptLookup()) as handle:
        assert "no call has run" in str(handle.summary())
        for _ in range(2):
            model.generate(**inputs, max_new_tokens=10)
        between = mmspec.summary(model)
    alone = mmspec.generate(model, drafter=PromptLookup(), max_new_tokens=10, return_dict=True, **inputs).stats
    after = mmspec.summary(handle)
    assert between.to_dict() == after.to_dict() and after.calls == 2 and after.emitted == 20
    assert after.target_passes == 2 * alone.target_passes and after.accept_length == alone.accept_length
    assert after.exact and after.rules == ["match"] and after.drafters == [PromptLookup().name]
    rounds = [n for row in alone.accepted[1:] for n in row if n is not None]
    assert after.kept == [sum(n >= i for n in rounds) / len(rounds) for i in range(1, max(rounds, default=0) + 1)]
    assert all(seconds >= 0 for seconds in after.seconds.values()) and "exact: rule match" in str(after)


def test_requests_that_cannot_be_served_are_refused_and_counted() -> None:
    model = tiny("llama")
    with mmspec.enable(model, PromptLookup()) as handle:
        for _ in range(2):
            with pytest.raises(ValueError, match="num_beams"):
                model.generate(**prompt("llama"), num_beams=2, max_new_tokens=4)
        model.generate(**prompt("llama"), max_new_tokens=4)
    told = handle.summary()
    ((sentence, count),) = told.refused.items()
    assert told.calls == 1 and "num_beams" in sentence and count == 2 and sentence in str(told)
    told.refused.clear()
    assert handle.summary().refused  # what was handed out is a copy


def test_relaxed_rules_require_relaxed_mode() -> None:
    model, inputs = tiny("llama"), dict(prompt("llama"), do_sample=True, max_new_tokens=8)
    with pytest.raises(ValueError, match="pass mode='relaxed'"):
        mmspec.enable(model, PromptLookup(), rule=TypicalAcceptance())
    with mmspec.enable(model, PromptLookup()) as handle, pytest.raises(ValueError, match="enable with mode='relaxed'"):
        model.generate(**inputs, rule=TypicalAcceptance())
    assert handle.summary().calls == 0 and handle.summary().exact
    with mmspec.enable(model, PromptLookup(), mode="relaxed", rule=TypicalAcceptance()) as handle:
        model.generate(**inputs)
    assert not handle.summary().exact and "relaxed: rule typical" in str(handle.summary())
    with pytest.raises(ValueError, match="mode: expected exact or relaxed"):
        mmspec.enable(model, mode="fast")


def test_a_call_with_custom_generate_bypasses_the_enabled_drafter() -> None:
    model, inputs = tiny("llama"), dict(prompt("llama"), max_new_tokens=6)
    with mmspec.enable(model, PromptLookup()) as handle:
        theirs = model.generate(**inputs, custom_generate=mmspec.decode, drafter=SmallModel(model))
        assert handle.summary().calls == 0
    assert torch.equal(theirs, model.generate(**inputs))


def test_positions_names_and_outputs_stay_those_of_generate() -> None:
    model, ids = tiny("llama"), prompt("llama")["input_ids"]
    config = hf.GenerationConfig(max_new_tokens=6, pad_token_id=0)
    expected = model.generate(ids, config)
    told = model.generate(ids, max_new_tokens=6, return_dict_in_generate=True, output_scores=True)
    own = signature(model.generate)
    with mmspec.enable(model, PromptLookup()):
        assert signature(model.generate) == own and model.generate.__doc__ == type(model).generate.__doc__
        assert torch.equal(model.generate(ids, config), expected)
        got = model.generate(ids, max_new_tokens=6, return_dict_in_generate=True, output_scores=True)
    assert torch.equal(got.sequences, told.sequences) and len(got.scores) == 6 and got.stats.emitted == [6]


def test_drafters_are_accepted_by_folder_and_auto(tmp_path: Path) -> None:
    make("msd").save_pretrained(tmp_path)
    model, inputs = tiny("llava"), dict(prompt("llava", images=1), max_new_tokens=8)
    expected = model.generate(**inputs)
    for drafter in (tmp_path, str(tmp_path), "auto"):
        with mmspec.enable(model, drafter) as handle:
            assert torch.equal(model.generate(**inputs), expected)
        assert handle.summary().calls == 1


def test_auto_is_the_controller_over_the_offered_drafters_of_the_model() -> None:
    model, inputs = deepcopy(tiny("llava")), dict(prompt("llava", images=1), max_new_tokens=12)
    drafter = make("msd")
    offer(model, lambda: drafter)
    expected, before = model.generate(**inputs), traces(model)
    with mmspec.enable(model, "auto") as handle:
        assert handle.drafter is automatic(model) and handle.drafter.drafter is drafter
        assert torch.equal(model.generate(**inputs), expected)
    assert handle.summary().drafters == [automatic(model).name] and handle.summary().exact
    rounds = sum(sum(kind["rounds"].values()) for kind in automatic(model).summary())
    # what ran taught the model's own controller: all but the prefill and the round that ended it
    assert rounds == handle.summary().target_passes - 2
    assert traces(model) == before


@pytest.mark.parametrize(
    ("obj", "drafter", "sentence"),
    [
        (3, None, "expected a model of transformers that generates"),
        (nn.Linear(2, 2), None, "got Linear; see mmspec.supported"),
        (hf.LlamaForCausalLM, None, "got type"),
        ("llama", PromptLookup, "drafter: expected None, 'auto', a folder or a drafter"),
        ("llama", 3, "drafter: expected"),
        ("llama", "no/such/folder/here", "expected"),
    ],
)
def test_unsupported_objects_are_refused_and_left_unchanged(obj: object, drafter: object, sentence: str) -> None:
    obj = tiny(obj) if isinstance(obj, str) else obj
    before = list(getattr(obj, "__dict__", {}))
    with pytest.raises(ValueError, match=sentence):
        mmspec.enable(obj, drafter)
    assert list(getattr(obj, "__dict__", {})) == before


def test_enabling_an_object_that_holds_a_model_asks_for_the_model() -> None:
    class Holder:
        model = tiny("llama")

    with pytest.raises(ValueError, match="enable its model"):
        mmspec.enable(Holder())


@pytest.mark.parametrize("wrap", (Adapted, Calling))
def test_adapters_are_enabled_as_they_stand(wrap: type[Adapted]) -> None:
    wrapped, inputs = wrap(tiny("llava")), dict(prompt("llava", images=1), max_new_tokens=8)
    expected, before = wrapped.generate(**inputs), list(vars(wrapped))
    calls = wrapped.calls
    with mmspec.enable(wrapped, make("msd")) as handle:
        assert torch.equal(wrapped.generate(**inputs), expected)
    assert handle.summary().calls == 1 and list(vars(wrapped)) == before
    assert wrap is not Calling or wrapped.calls == calls + 1  # the wrapper's own work is still done around it
    assert "generate" not in vars(tiny("llava"))


def test_a_copy_of_an_enabled_model_is_enabled_by_itself() -> None:
    model = tiny("llama")
    with mmspec.enable(model, PromptLookup()) as handle:
        other = deepcopy(model)
        other.generate(**prompt("llama"), max_new_tokens=4)
        assert handle.summary().calls == 0 and mmspec.summary(other).calls == 1
    mmspec.disable(other)
    assert "generate" not in vars(other)


def test_supported_returns_all_tables() -> None:
    found = mmspec.supported()
    assert {"models", "drafters", "rules", "combinations", "videos"} <= found.keys()
    assert all(found[title] for title in found)
