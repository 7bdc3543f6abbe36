"""`otherwise="plain"` decodes what drafting cannot serve through the class's own `generate`, with a warning and a count."""

from __future__ import annotations

import copy
import warnings
from queue import Queue

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.round.rules.typical import TypicalAcceptance
from mmspec.imagegen import SJD
from mmspec.vlm.drafters import PromptLookup, SmallModel
from mmspec.vlm.output import RowsFailed
from tests.attach.traces import traces
from tests.evaluate.tiny_images import classed
from tests.vlm.test_proof import UNSOUND, made
from tests.vlm.test_unwrapping import Adapted, Calling
from tests.vlm.tiny import _DECODER, prompt, tiny

STEPS = 8
ASKED: dict[str, tuple[dict, str]] = {
    "beams": (dict(num_beams=2), "num_beams"),
    "sampled beams": (dict(num_beams=2, do_sample=True), "num_beams"),
    "states": (dict(return_dict_in_generate=True, output_hidden_states=True), "output_hidden_states"),
}


def sequences(output: object) -> torch.Tensor:
    return getattr(output, "sequences", output)


@pytest.mark.parametrize("case", ASKED)
def test_unsupported_requests_are_decoded_as_by_the_plain_model(case: str) -> None:
    model = copy.deepcopy(tiny("llama"))
    settings, word = ASKED[case]
    inputs = dict(prompt("llama"), max_new_tokens=STEPS, **settings)
    torch.manual_seed(5)
    expected, before = model.generate(**inputs), traces(model)
    with mmspec.enable(model, PromptLookup(), otherwise="plain") as handle:
        for _ in range(2):
            torch.manual_seed(5)
            with pytest.warns(UserWarning, match=word):
                output = model.generate(**inputs)
            assert type(output) is type(expected) and torch.equal(sequences(output), sequences(expected))
        model.generate(**prompt("llama"), max_new_tokens=STEPS)  # drafted, without a warning
    summary = handle.summary()
    ((sentence, count),) = summary.plain.items()
    assert summary.calls == 1 and not summary.refused and word in sentence and count == 2
    assert f"decoded plainly 2 times: {sentence}" in str(summary) and summary.to_dict()["plain"] == {sentence: 2}
    summary.plain.clear()
    assert handle.summary().plain and traces(model) == before


def test_positions_stay_those_of_generate() -> None:
    model, ids = copy.deepcopy(tiny("llama")), prompt("llama")["input_ids"]
    config = copy.deepcopy(model.generation_config)
    config.num_beams, config.max_new_tokens = 2, STEPS
    expected = model.generate(ids, config)
    with mmspec.enable(model, otherwise="plain"), pytest.warns(UserWarning, match="num_beams"):
        assert torch.equal(model.generate(ids, config), expected)


def test_a_class_that_is_refused_and_a_drafter_that_does_not_fit_decode_plainly() -> None:
    refused, inputs = UNSOUND["dynamic mask"][0](), dict(prompt("llama"), max_new_tokens=STEPS, do_sample=True)
    other = made("LlamaForCausalLM", **_DECODER | {"vocab_size": 4096})
    for model, drafter, word in ((refused, None, "tree of drafts"), (tiny("llama"), SmallModel(other), "vocabulary")):
        torch.manual_seed(3)
        expected = model.generate(**inputs)
        with mmspec.enable(model, drafter, otherwise="plain") as handle:
            torch.manual_seed(3)
            with pytest.warns(UserWarning, match=word):
                assert torch.equal(model.generate(**inputs), expected)
        assert sum(handle.summary().plain.values()) == 1


@pytest.mark.parametrize("wrap", (Adapted, Calling))
def test_the_work_of_a_wrapper_is_still_done_around_it(wrap: type[Adapted]) -> None:
    wrapped, inputs = wrap(tiny("llama")), dict(prompt("llama"), max_new_tokens=STEPS, num_beams=2)
    expected, calls = wrapped.generate(**inputs), wrapped.calls
    with mmspec.enable(wrapped, otherwise="plain"), pytest.warns(UserWarning, match="num_beams"):
        assert torch.equal(wrapped.generate(**inputs), expected)
    assert wrap is not Calling or wrapped.calls == calls + 2  # once for the refusal


def test_settings_of_this_package_are_still_refused() -> None:
    model = copy.deepcopy(tiny("llama"))
    asked = dict(prompt("llama"), max_new_tokens=STEPS)
    with mmspec.enable(model, PromptLookup(), otherwise="plain") as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        for own in (dict(seed=3, num_beams=2), dict(rule=TypicalAcceptance()), dict(drafter="none of these")):
            with pytest.raises(ValueError, match="num_beams|mode='relaxed'|drafter"):
                model.generate(**asked, **own)
    assert sum(handle.summary().refused.values()) == 3 and not handle.summary().plain


def test_rows_that_failed_are_no_refusal() -> None:
    model = copy.deepcopy(tiny("llama"))
    model.lm_head.weight.data[:] = torch.nan
    with mmspec.enable(model, otherwise="plain") as handle, pytest.raises(RowsFailed):
        model.generate(**prompt("llama"), max_new_tokens=STEPS)
    assert not handle.summary().plain


class Recorder:
    """A streamer that notes whatever comes."""

    def __init__(self) -> None:
        self.events: Queue = Queue()

    def put(self, value: torch.Tensor) -> None:
        self.events.put(value.flatten().tolist())

    def end(self) -> None:
        self.events.put(None)

    @property
    def seen(self) -> list:
        return list(self.events.queue)


def streamed(model: nn.Module, **settings: object) -> list:
    streamer = Recorder()
    model.generate(**prompt("llama"), max_new_tokens=STEPS, streamer=streamer, **settings)
    return streamer.seen


def test_a_streamer_receives_a_single_answer() -> None:
    model, refused = copy.deepcopy(tiny("llama")), UNSOUND["dynamic mask"][0]()
    expected, plain = streamed(model), streamed(refused)
    with mmspec.enable(model, PromptLookup(), otherwise="plain"):
        assert streamed(model) == expected
        broken = Recorder()
        with pytest.warns(UserWarning), pytest.raises(ValueError):  # transformers streams no beams either
            model.generate(**prompt("llama"), max_new_tokens=STEPS, streamer=broken, num_beams=2)
        assert broken.seen[-1] is None and broken.seen.count(None) == 1
    with mmspec.enable(refused, otherwise="plain"), pytest.warns(UserWarning, match="tree of drafts"):
        assert streamed(refused) == plain


def test_the_switch_is_refused_where_it_means_nothing() -> None:
    model, pipe = tiny("llama"), classed()
    for obj, otherwise in ((model, "stock"), (model, True), (pipe, "plain")):
        with pytest.raises(ValueError, match="otherwise: expected"):
            mmspec.enable(obj, SJD(window=4) if obj is pipe else None, otherwise=otherwise)
    assert "generate" not in vars(model) and "start" not in vars(pipe)
