"""The sampled law of a text model's first three tokens, cut to a few likely ones, and its rows alone and in batches.

On SmolLM2 in the whole lane, where it is fetched; that the test tells laws apart is shown on a tiny random Llama.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import transformers as hf
from scipy import stats
from torch import Tensor, nn
from transformers import TemperatureLogitsWarper, TopKLogitsWarper

import mmspec
from mmspec import zoo
from mmspec.core.round.loop import Drafter
from mmspec.evaluate.engine.rows import TIE
from mmspec.evaluate.vlm.runner import margins
from mmspec.run.vlm_requests import VlmPrompt, encode
from mmspec.vlm.drafters import PromptLookup
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from tests.vlm.tiny import tiny

STEPS, TOP_K, TEMPERATURE = 3, 4, 1.4
DRAFTERS = ("plain", "lookup", "untrained", "trained")
SMOLLM2, TRAINED = "smollm2", ("smollm2/eagle3", "smollm2/dspark")
QUESTIONS = (
    "What colour is the sky on a clear day?",
    "Write a list of three fruits and say where each of them grows.",
    "Repeat after me: red, green, blue, red, green, blue, red, green",
    "Who are you?",
)


@dataclass(frozen=True)
class Subject:
    """A model under test.

    Attributes:
        model: The target.
        prompt: int64 [1, P], whose end stands earlier in it too, so that lookup drafts at once.
        rows: Requests decoded at once.
        batches: How often.
    """

    model: nn.Module
    prompt: Tensor
    rows: int
    batches: int


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "tiny":
        yield Subject(tiny("llama"), torch.tensor([[1, 7, 8, 9, 7, 8, 9, 7, 8]]), rows=800, batches=1)
        return
    model, tokenizer = fetched()
    text = "Heads, heads, tails, heads, heads, tails, heads, heads,"
    yield Subject(model, tokenizer(text, return_tensors="pt")["input_ids"], rows=60, batches=10)


def fetched() -> tuple[nn.Module, hf.PreTrainedTokenizerBase]:
    """SmolLM2 and its tokenizer; skips where they are not fetched."""
    try:
        return zoo.load(SMOLLM2)
    except ValueError as error:
        pytest.skip(f"needs {SMOLLM2}: {error}")


@torch.no_grad()
def exact_law(subject: Subject) -> dict[tuple[int, ...], float]:
    """The chance of every continuation: TOP_K ** STEPS products."""
    ids, chance = subject.prompt, torch.ones(1, dtype=torch.float64)
    for _ in range(STEPS):
        scores = TemperatureLogitsWarper(TEMPERATURE)(ids, subject.model(ids).logits[:, -1].float())
        law = TopKLogitsWarper(TOP_K)(ids, scores).double().softmax(-1)
        likely = law.topk(TOP_K)
        chance = (chance[:, None] * likely.values).flatten()
        ids = torch.cat([ids.repeat_interleave(TOP_K, 0), likely.indices.reshape(-1, 1)], 1)
    assert float(chance.sum()) == pytest.approx(1, abs=1e-9)
    start = subject.prompt.shape[1]
    return {tuple(row[start:]): float(one) for row, one in zip(ids.tolist(), chance, strict=True)}


def p_value(seen: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square with rare continuations pooled; 0 when an impossible one occurred."""
    if not set(seen) <= law.keys():
        return 0.0
    counts, expected, rare = [], [], [0.0, 0.0]
    for continuation, chance in law.items():
        count = seen.count(continuation)
        if chance * len(seen) >= 5:
            counts.append(count)
            expected.append(chance * len(seen))
        else:
            rare = [rare[0] + count, rare[1] + chance * len(seen)]
    if rare[1] >= 1:
        counts, expected = [*counts, rare[0]], [*expected, rare[1]]
    scale = sum(counts) / sum(expected)
    return float(stats.chisquare(counts, [pool_rows * scale for pool_rows in expected]).pvalue)


def drafter_of(name: str, subject: Subject) -> Drafter | None:
    model = subject.model
    if name == "lookup":
        return PromptLookup()
    if name == "untrained":
        torch.manual_seed(2)
        config = model.config
        sizes = {field: getattr(config, field) for field in ("hidden_size", "num_attention_heads", "vocab_size")}
        return Eagle(EagleConfig(**sizes, intermediate_size=2 * config.hidden_size)).fitted(model).eval()
    if name == "trained":
        known = [part for part in TRAINED if part in zoo.names()]
        if not known:
            pytest.skip("needs a drafter of the zoo for smollm2")
        return zoo.load(known[0]).fitted(model)
    return None


def sample(subject: Subject, drafter: Drafter | None, temperature: float) -> tuple[list[tuple[int, ...]], int]:
    """Continuations of STEPS tokens, and how many drafted tokens were accepted."""
    seen, accepted, start = [], 0, subject.prompt.shape[1]
    for seed in range(subject.batches):
        out = mmspec.generate(
            subject.model,
            input_ids=subject.prompt.expand(subject.rows, -1),
            drafter=drafter,
            seed=seed,
            do_sample=True,
            attention_mask=torch.ones(subject.rows, start, dtype=torch.long),
            temperature=temperature,
            top_k=TOP_K,
            top_p=1.0,
            max_new_tokens=STEPS + 2,
            return_dict=True,
        )
        seen += [tuple(row[start : start + STEPS]) for row in out.sequences.tolist()]
        accepted += sum(kept or 0 for one in out.stats.accepted for kept in one)
    return seen, accepted


@pytest.mark.parametrize(
    ("subject", "name"),
    [("tiny", "lookup"), *(pytest.param(SMOLLM2, name, marks=pytest.mark.whole) for name in DRAFTERS)],
    indirect=["subject"],
)
def test_the_first_three_tokens_have_the_targets_distribution(subject: Subject, name: str) -> None:
    seen, accepted = sample(subject, drafter_of(name, subject), TEMPERATURE)
    assert p_value(seen, exact_law(subject)) > 1e-3
    assert (accepted > 0) == (name in ("lookup", "trained")) or name == "untrained"


@pytest.mark.parametrize("subject", ("tiny", pytest.param(SMOLLM2, marks=pytest.mark.whole)), indirect=True)
def test_another_temperature_is_detected(subject: Subject) -> None:
    seen, _ = sample(subject, PromptLookup(), TEMPERATURE / 2)
    assert p_value(seen, exact_law(subject)) < 1e-6


@pytest.mark.whole
@pytest.mark.parametrize("name", ("plain", "lookup", "trained"))
def test_rows_of_a_batch_are_their_prompts_alone(name: str) -> None:
    model, tokenizer = fetched()
    drafter = drafter_of(name, Subject(model, torch.ones(1, 1, dtype=torch.long), 1, 1))
    prompts = [VlmPrompt(text) for text in QUESTIONS]
    settings = dict(drafter=drafter, max_new_tokens=24, do_sample=False, return_dict=True)

    def texts(inputs: dict) -> list[tuple[int, ...]]:
        out = mmspec.generate(model, **inputs, **settings)
        rows = out.sequences[:, inputs["input_ids"].shape[1] :].tolist()
        return [tuple(row[:count]) for row, count in zip(rows, out.stats.emitted, strict=True)]

    together = texts(encode(tokenizer, prompts))
    for prompt, row in zip(prompts, together, strict=True):
        inputs = encode(tokenizer, [prompt])
        (alone,) = texts(inputs)
        if alone != row:
            place = next(i for i, pair in enumerate(zip(alone, row, strict=False)) if pair[0] != pair[1])
            assert margins(model, inputs, [alone], True)(0, place, row[place]) < TIE, prompt.text
