"""Greedy fp32 output is that of `transformers.generate`, token for token, whatever is drafted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import mmspec
from mmspec.core.round.loop import Drafter
from tests.vlm.drafts import SHAPES, Scripted, continuation
from tests.vlm.tiny import PAD, TEXT, VIDEO_KINDS, VLMS, prompt, tiny, words

STEPS = 24
GREEDY = dict(max_new_tokens=STEPS, do_sample=False)
FREE = ("lookup", "recycling", "small")
PLACES = ((0, "middle"), (1, "start"), (1, "middle"), (1, "end"), (1, "echo"), (3, "start"), (3, "middle"))


def drafter_of(name: str | None, truth: list[list[int]]) -> Drafter | None:
    if name is None:
        return None
    if name == "lookup":
        return mmspec.drafters.PromptLookup()
    if name == "recycling":
        return mmspec.drafters.TokenRecycling()
    if name == "small":
        return mmspec.drafters.SmallModel(tiny("mistral"))
    return Scripted(truth, name.removesuffix("-holes"), invalid=name.endswith("-holes"))


TRUTHS: dict[tuple, Tensor] = {}


def truth_of(kind: str, inputs: dict[str, Tensor], settings: dict) -> Tensor:
    """What `transformers.generate` says, once for all drafts of a prompt under settings that are plain values."""
    if any(not isinstance(value, (int, float, list, type(None))) for value in settings.values()):
        return tiny(kind).generate(**inputs, **settings)
    values = ((name, value.shape, value.numpy().tobytes()) for name, value in sorted(inputs.items()))
    key = (kind, repr(sorted(settings.items())), *values)
    if key not in TRUTHS:
        TRUTHS[key] = tiny(kind).generate(**inputs, **settings)
    return TRUTHS[key]


def same(kind: str, inputs: dict[str, Tensor], name: str | None, **settings) -> mmspec.vlm.output.Generated:
    """Asserts that both give the same sequences; returns ours."""
    model, length = tiny(kind), inputs["input_ids"].shape[1]
    settings = GREEDY | settings
    expected = truth_of(kind, inputs, settings)
    drafter = drafter_of(name, continuation(expected, length))
    result = mmspec.generate(model, drafter=drafter, return_dict=True, **inputs, **settings)
    assert result.sequences.tolist() == expected.tolist()
    assert result.errors is None and result.stats.exact
    return result


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", (None, *SHAPES, *(f"{s}-holes" for s in SHAPES), *FREE))
@pytest.mark.parametrize("kind", VLMS + TEXT)
def test_ragged_batch(kind: str, name: str | None) -> None:
    same(kind, prompt(kind, int(kind in VLMS), batch=4), name)


@pytest.mark.covering
@pytest.mark.parametrize("name", ("chain", "static", "lookup"))
@pytest.mark.parametrize(("images", "where"), PLACES, ids=lambda v: str(v))
@pytest.mark.parametrize("kind", VLMS)
def test_pictures_anywhere(kind: str, images: int, where: str, name: str) -> None:
    same(kind, prompt(kind, images, where, seed=1), name)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(("images", "where"), PLACES[1:], ids=lambda v: str(v))
@pytest.mark.parametrize("kind", VLMS)
def test_pictures_anywhere_in_a_batch(kind: str, images: int, where: str) -> None:
    same(kind, prompt(kind, images, where, batch=4, seed=2), "dynamic")


@pytest.mark.covering
@pytest.mark.parametrize("name", (None, "static", "lookup", "recycling"))
@pytest.mark.parametrize(("images", "batch"), ((0, 1), (1, 1), (1, 4)))
@pytest.mark.parametrize("kind", VIDEO_KINDS)
def test_video_frames(kind: str, images: int, batch: int, name: str | None) -> None:
    same(kind, prompt(kind, images, batch=batch, video=True, seed=3), name)


PROCESSORS = {
    "repetition": dict(repetition_penalty=1.3),
    "no_repeat": dict(no_repeat_ngram_size=2),
    "no_repeat_and_repetition": dict(no_repeat_ngram_size=3, repetition_penalty=1.3),
    "suppress": dict(suppress_tokens=list(range(5, 40))),
    "ignored_warpers": dict(temperature=0.3, top_p=0.5, top_k=3),
}


@pytest.mark.covering
@pytest.mark.parametrize("name", ("chain", "static-holes", "dynamic", "small"))
@pytest.mark.parametrize("settings", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
def test_processors_see_each_path(kind: str, settings: dict, name: str) -> None:
    same(kind, prompt(kind, 1, batch=4, seed=4), name, **settings)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", (None, *SHAPES, "lookup"))
@pytest.mark.parametrize("batch", (1, 4))
def test_bad_words_and_least_length(batch: int, name: str | None) -> None:
    inputs = prompt("llava", 1, batch=batch, seed=5)
    plain = continuation(truth_of("llava", inputs, GREEDY), inputs["input_ids"].shape[1])
    words = [plain[0][3:4], plain[0][6:8], plain[-1][9:11]]
    same("llava", inputs, name, bad_words_ids=words)
    ends = sorted({row[2] for row in plain} | {row[12] for row in plain})
    same("llava", inputs, name, eos_token_id=ends, min_new_tokens=9)


@pytest.mark.covering
@pytest.mark.parametrize("name", (None, *SHAPES, "lookup"))
@pytest.mark.parametrize("batch", (1, 4))
@pytest.mark.parametrize("kind", ("llava", "qwen3_vl"))
def test_eos_inside_a_run(kind: str, batch: int, name: str | None) -> None:
    inputs = prompt(kind, 1, batch=batch, seed=6)
    plain = continuation(truth_of(kind, inputs, GREEDY), inputs["input_ids"].shape[1])
    for step in (0, 3, 7):
        result = same(kind, inputs, name, eos_token_id=[row[step + i] for i, row in enumerate(plain)])
        assert max(result.stats.emitted) <= step + batch
        assert (result.sequences[:, -1] == PAD).any() or len(set(result.stats.emitted)) == 1


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", (None, *SHAPES))
@pytest.mark.parametrize("steps", (1, 2, 5, 6))
def test_length_reached_inside_a_run(steps: int, name: str | None) -> None:
    result = same("llava", prompt("llava", 1, batch=4, seed=7), name, max_new_tokens=steps)
    assert result.stats.emitted == [steps] * 4
    same("llava", prompt("llava", 1, seed=7), name, max_new_tokens=None, max_length=16 + steps)


class PerRow(LogitsProcessor):
    """Bars another residue in every row of the batch, and after every multiple of four, odd ids."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        column, row = torch.arange(scores.shape[1]), torch.arange(len(scores))[:, None]
        barred = (column % 5 == row) | ((input_ids[:, -1:] % 4 == 0) & (column % 2 == 1))
        return scores.masked_fill(barred, -torch.inf)


ROW_BOUND = {
    "own": dict(logits_processor=LogitsProcessorList([PerRow()])),
    "prefix_fn": dict(prefix_allowed_tokens_fn=lambda row, ids: list(range(10 + row, 90 - len(ids) % 7))),
    "encoder_repetition": dict(encoder_repetition_penalty=1.5),
    "encoder_ngram": dict(encoder_no_repeat_ngram_size=1),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", (None, "static", "dynamic-holes"))
@pytest.mark.parametrize("settings", ROW_BOUND.values(), ids=ROW_BOUND)
def test_processors_that_know_rows_by_place(settings: dict, name: str | None) -> None:
    same("llava", prompt("llava", 1, batch=4, seed=14), name, max_new_tokens=12, **settings)


class Contains(StoppingCriteria):
    """Stops a row that has generated two even ids in a row."""

    def __call__(self, input_ids: Tensor, scores: object, **kwargs) -> Tensor:
        return (input_ids[:, -2:] % 2 == 0).all(-1)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", (None, *SHAPES))
@pytest.mark.parametrize("batch", (1, 4))
def test_own_stopping_criterion(batch: int, name: str | None) -> None:
    # with an eos id, as transformers pads finished rows only then
    criteria = StoppingCriteriaList([Contains()])
    result = same("llava", prompt("llava", 1, batch=batch, seed=8), name, stopping_criteria=criteria, eos_token_id=3)
    assert min(result.stats.emitted) < STEPS


@pytest.mark.parametrize("name", (None, *SHAPES))
def test_stop_strings(name: str | None) -> None:
    model, inputs, tokenizer = tiny("llava"), prompt("llava", 1, batch=4, seed=15), words()
    length = inputs["input_ids"].shape[1]
    truth = continuation(model.generate(**inputs, max_new_tokens=STEPS), length)
    stop = [tokenizer.decode(row[5 + i : 7 + i]) for i, row in enumerate(truth)]
    settings = dict(max_new_tokens=STEPS, stop_strings=stop, tokenizer=tokenizer, eos_token_id=3)
    expected = model.generate(**inputs, **settings)
    assert expected.shape[1] < length + STEPS
    ours = mmspec.generate(model, drafter=drafter_of(name, truth), **inputs, **settings)
    assert torch.equal(ours, expected)
    request = mmspec.vlm.start(model, drafter=drafter_of(name, truth), **inputs, **settings)
    lengths = request.run().emitted
    assert max(lengths) == expected.shape[1] - length
    assert request.target.tokens == [row[:n] for row, n in zip(continuation(expected, length), lengths, strict=True)]


@pytest.mark.parametrize("name", (None, "chain", "lookup"))
def test_embeddings_beside_ids(name: str | None) -> None:
    """The prompt's embeddings may be given, as long as its ids are given too."""
    model, inputs = tiny("llama"), prompt("llama", batch=4, seed=16)
    plain = model.generate(**inputs, max_new_tokens=9)
    inputs["inputs_embeds"] = 1.1 * model.get_input_embeddings()(inputs["input_ids"])
    assert not torch.equal(model.generate(**inputs, max_new_tokens=9), plain)
    same("llama", inputs, name)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", (None, *SHAPES, "small"))
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl", "llama"))
def test_through_transformers_own_call(kind: str, name: str | None) -> None:
    model, inputs = tiny(kind), prompt(kind, int(kind in VLMS), batch=4, seed=9)
    expected = truth_of(kind, inputs, dict(max_new_tokens=STEPS, repetition_penalty=1.2))
    drafter = drafter_of(name, continuation(expected, inputs["input_ids"].shape[1]))
    ours = model.generate(
        **inputs, max_new_tokens=STEPS, repetition_penalty=1.2, custom_generate=mmspec.decode, drafter=drafter
    )
    assert torch.equal(ours, expected)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", (None, *SHAPES))
@pytest.mark.parametrize("kind", ("llava", "qwen3_vl", "llama"))
def test_eager_attention(kind: str, name: str | None) -> None:
    model, inputs = tiny(kind, "eager"), prompt(kind, int(kind in VLMS), batch=4, seed=10)
    expected = model.generate(**inputs, max_new_tokens=STEPS)
    drafter = drafter_of(name, continuation(expected, inputs["input_ids"].shape[1]))
    assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, max_new_tokens=STEPS), expected)


def test_text_turn_after_a_picture() -> None:
    """A second turn without a picture of its own, the first turn's answer in its prompt."""
    model, first = tiny("llava"), prompt("llava", 1, seed=11)
    answered = model.generate(**first, max_new_tokens=8)
    ids = torch.cat([answered, torch.tensor([[31, 32, 33, 34]])], 1)
    second = dict(first, input_ids=ids, attention_mask=torch.ones_like(ids))
    for name in (None, *SHAPES, *FREE):
        same("llava", second, name)


def test_every_accept_length_occurs() -> None:
    seen = set()
    for name in ("chain", "static", "dynamic"):
        result = same("llava", prompt("llava", 1, batch=4, seed=12), name, max_new_tokens=60)
        counts = {count for line in result.stats.accepted[1:] for count in line if count is not None}
        assert counts >= set(range(4)), (name, counts)
        seen |= counts
        assert result.stats.accept_length > 1.5
    assert seen == set(range(6))


def test_sampled_copies_of_one_prompt() -> None:
    """`num_return_sequences` widens the batch; greedy requests refuse it as transformers does."""
    inputs = prompt("llava", 1, seed=13)
    settings = dict(max_new_tokens=6, num_return_sequences=3)
    out = mmspec.generate(tiny("llava"), **inputs, do_sample=True, seed=[1, 2, 3], **settings)
    assert out.shape == (3, inputs["input_ids"].shape[1] + 6)
    one = mmspec.generate(tiny("llava"), **inputs, do_sample=True, seed=[2], max_new_tokens=6)
    assert torch.equal(out[1:2], one)
    with pytest.raises(ValueError, match="num_return_sequences"):
        mmspec.generate(tiny("llava"), **inputs, do_sample=False, **settings)
