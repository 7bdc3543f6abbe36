"""Streamers and return types are those of `transformers.generate`."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

import mmspec
from tests.vlm.doors import DOORS, call_through
from tests.vlm.drafts import SHAPES, Scripted, continuation
from tests.vlm.tiny import VOCAB, prompt, tiny, words

STEPS = 20
WAIT = 60.0  # a reader that waits longer than this waits for ever


def case(batch: int = 1) -> tuple[dict, torch.Tensor, list[list[int]]]:
    inputs = dict(prompt("llava", 1, batch=batch, seed=1), max_new_tokens=STEPS)
    expected = tiny("llava").generate(**inputs)
    return inputs, expected, continuation(expected, inputs["input_ids"].shape[1])


def call(through: str, **arguments) -> object:
    if through == "generate":
        return mmspec.generate(tiny("llava"), **arguments)
    return tiny("llava").generate(**arguments, custom_generate=mmspec.decode)


def read(through: str, **arguments) -> str:
    """What an iterating reader gets while the call runs in a thread of its own; an error of the call is raised here."""
    streamer, raised = TextIteratorStreamer(words(), timeout=WAIT, skip_prompt=True), []

    def run() -> None:
        try:
            call(through, streamer=streamer, **arguments)
        except ValueError as error:
            raised.append(error)

    thread = Thread(target=run)
    thread.start()
    text = "".join(streamer)
    thread.join()
    if raised:
        raise raised[0]
    return text


@pytest.mark.parametrize("shape", (None, *SHAPES))
@pytest.mark.parametrize("through", ("generate", "custom_generate"))
def test_a_reader_gets_the_same_text_and_an_end(through: str, shape: str | None) -> None:
    inputs, _, truth = case()
    drafter = Scripted(truth, shape) if shape else None
    assert read(through, drafter=drafter, **inputs).split() == words().decode(truth[0]).split()


@pytest.mark.parametrize("through", ("generate", "custom_generate"))
def test_the_reader_is_released_by_an_error(through: str) -> None:
    inputs, _, _ = case()
    with pytest.raises(ValueError, match="rule: expected one of"):
        read(through, rule="nonsense", **inputs)


def test_the_reader_is_released_by_an_error_before_the_first_round() -> None:
    inputs, _, _ = case()
    with pytest.raises(ValueError, match="max_new_tokens"):
        read("generate", **inputs | dict(max_new_tokens=-1))


@pytest.mark.parametrize("skip", (True, False))
def test_printing_streamer(skip: bool, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, _, truth = case()
    tiny("llava").generate(**inputs, streamer=TextStreamer(words(), skip_prompt=skip))
    expected = capsys.readouterr().out
    for through in ("generate", "custom_generate"):
        call(through, streamer=TextStreamer(words(), skip_prompt=skip), drafter=Scripted(truth), **inputs)
        assert capsys.readouterr().out == expected


class Runs:
    """Takes whole runs."""

    def __init__(self) -> None:
        self.runs, self.ended = [], 0

    def put(self, value: torch.Tensor) -> None:
        self.prompt = value

    def put_run(self, ids: list[int], accepted: int) -> None:
        self.runs.append((ids, accepted))

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("through", ("generate", "custom_generate"))
def test_runs_arrive_whole_and_the_end_once(through: str) -> None:
    inputs, _, truth = case()
    streamer = Runs()
    call(through, streamer=streamer, drafter=Scripted(truth, "chain"), **inputs)
    assert streamer.ended == 1 and torch.equal(streamer.prompt, inputs["input_ids"])
    assert [token for ids, _ in streamer.runs for token in ids] == truth[0]
    assert all(0 <= len(ids) - accepted <= 1 for ids, accepted in streamer.runs)
    assert max(accepted for _, accepted in streamer.runs) > 1


def test_batches_are_refused_as_in_transformers() -> None:
    inputs, _, _ = case(4)
    for through in ("generate", "custom_generate"):
        with pytest.raises(ValueError, match="batch size 1"):
            call(through, streamer=TextStreamer(words()), **inputs)
        with pytest.raises(ValueError, match="streamer: expected batch 1, got batch 4"):
            call(through, streamer=Runs(), **inputs)


@pytest.mark.covering
@pytest.mark.parametrize("shape", (None, *SHAPES))
@pytest.mark.parametrize("settings", ({}, dict(do_sample=False, repetition_penalty=1.3)), ids=("plain", "penalty"))
@pytest.mark.parametrize("batch", (1, 4))
def test_scores_and_logits(batch: int, settings: dict, shape: str | None) -> None:
    inputs = dict(prompt("llava", 1, batch=batch, seed=2), max_new_tokens=STEPS, **settings)
    wants = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
    expected = tiny("llava").generate(**inputs, **wants)
    drafter = Scripted(continuation(expected.sequences, inputs["input_ids"].shape[1]), shape) if shape else None
    for through in ("generate", "custom_generate"):
        out = call(through, drafter=drafter, **inputs, **wants)
        assert isinstance(out, GenerateDecoderOnlyOutput)
        assert torch.equal(out.sequences, expected.sequences) and out["sequences"] is out.sequences
        assert len(out.scores) == len(out.logits) == STEPS and out.scores[0].shape == (batch, VOCAB)
        torch.testing.assert_close(torch.stack(out.scores), torch.stack(expected.scores), rtol=1e-4, atol=5e-4)
        torch.testing.assert_close(torch.stack(out.logits), torch.stack(expected.logits), rtol=1e-4, atol=5e-4)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("settings", ({}, dict(repetition_penalty=1.3)), ids=("plain", "penalty"))
def test_scores_and_logits_behind_the_end_of_a_row(settings: dict, door: str) -> None:
    """transformers goes on with padding where other rows still run, and gives what the model says there."""
    inputs = dict(prompt("llava", 1, batch=4, seed=2), max_new_tokens=STEPS, **settings)
    truth = continuation(tiny("llava").generate(**inputs), inputs["input_ids"].shape[1])
    wants = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
    inputs |= wants | dict(eos_token_id=[truth[1][4], truth[2][7]], pad_token_id=5)
    expected = tiny("llava").generate(**inputs)
    for drafter in (None, Scripted(truth, "static"), Scripted(truth, "dynamic")):
        out = call_through(door, tiny("llava"), drafter=drafter, **inputs)
        assert torch.equal(out.sequences, expected.sequences)
        assert min(out.stats.emitted) < max(out.stats.emitted) == len(out.scores) == len(expected.scores)
        torch.testing.assert_close(torch.stack(out.scores), torch.stack(expected.scores), rtol=1e-4, atol=5e-4)
        torch.testing.assert_close(torch.stack(out.logits), torch.stack(expected.logits), rtol=1e-4, atol=5e-4)


def test_plain_calls_return_tensors() -> None:
    inputs, expected, _ = case()
    for through in ("generate", "custom_generate"):
        out = call(through, **inputs)
        assert isinstance(out, torch.Tensor) and out.dtype == torch.int64 and torch.equal(out, expected)
    out = call("generate", return_dict=True, **inputs)
    assert out.scores is None and out.errors is None and out.stats.target_passes == STEPS
