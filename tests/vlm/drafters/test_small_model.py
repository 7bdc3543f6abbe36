"""A small model as drafter: its ragged cache, its laws, its lengths."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import mmspec
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.round.keys import Keys
from mmspec.vlm.drafters.small_model import SmallModel
from tests.vlm.drafters.watched import Round, Watched, noisy
from tests.vlm.tiny import IMAGE, PAD, prompt, tiny

SAMPLED = dict(do_sample=True, top_k=0)


def narrow(vocab_size: int) -> nn.Module:
    """A text model that shares the first ids of the others' vocabulary."""
    config = copy.deepcopy(tiny("llama").config)
    config.vocab_size = vocab_size
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return hf.LlamaForCausalLM(config).eval().requires_grad_(False)


def first_scores(round_: Round, row: int) -> Tensor:
    return round_.draft.law.scores[row, 0]


def from_scratch(model: nn.Module, ids: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([ids])).logits[0, -1]


@pytest.mark.parametrize("kind", ("llama", "llava"))
@pytest.mark.parametrize("batch", (1, 4))
def test_a_model_drafting_for_itself_is_always_right(kind: str, batch: int) -> None:
    inputs = prompt(kind, images=int(kind != "llama"), batch=batch)
    result = mmspec.generate(
        tiny(kind), drafter=SmallModel(tiny(kind)), max_new_tokens=25, do_sample=False, return_dict=True, **inputs
    )
    assert result.stats.accepted == [[0] * batch, *[[5] * batch] * 4]
    assert result.stats.drafter_passes == 1 + 4 * 5
    reference = tiny(kind).generate(**inputs, max_new_tokens=25, do_sample=False)
    assert torch.equal(result.sequences, reference)


@pytest.mark.parametrize("length", (FixedLength(4), ConfidenceStop(0.3, longest=5)))
def test_the_cache_after_any_verdict_equals_reading_from_scratch(length: object) -> None:
    small, inputs = noisy("llama"), prompt("llama", batch=4)
    drafter = Watched(SmallModel(small, length))
    out = mmspec.generate(
        tiny("llama"), drafter=drafter, max_new_tokens=20, return_dict=True, seed=1, **SAMPLED, **inputs
    )
    kept = [a for line in out.stats.accepted[1:] for a in line if a is not None]
    assert 0 in kept and max(kept) > 1
    for r in drafter.rounds:
        for row, ids in enumerate(inputs["input_ids"].tolist()):
            if r.draft.tree.nodes > 1 and r.live[row]:
                text = [i for i in ids if i != PAD] + r.tokens[row]
                for step, token in enumerate([None, *r.drafted(row)][: r.draft.tree.nodes - 1]):
                    text += [] if token is None else [token]
                    scores = r.draft.law.scores[row, step]
                    torch.testing.assert_close(scores, from_scratch(small, text), rtol=1e-4, atol=1e-3)


def test_a_text_model_reads_the_prompt_without_the_image() -> None:
    small, inputs = tiny("llama"), prompt("llava", images=2, batch=4)
    drafter = Watched(SmallModel(small, FixedLength(2)))
    mmspec.generate(tiny("llava"), drafter=drafter, max_new_tokens=8, seed=2, **SAMPLED, **inputs)
    for r in drafter.rounds[:2]:
        for row, ids in enumerate(inputs["input_ids"].tolist()):
            expected = from_scratch(small, [i for i in ids if i not in (PAD, IMAGE)] + r.tokens[row])
            expected[IMAGE] = -torch.inf
            torch.testing.assert_close(first_scores(r, row), expected, rtol=1e-4, atol=1e-3)


def smaller(kind: str) -> nn.Module:
    """A model of the class with narrower text layers, so that the target's picture features would not fit it."""
    config = copy.deepcopy(tiny(kind).config)
    text = config.get_text_config()
    text.hidden_size, text.num_attention_heads, text.num_key_value_heads, text.num_hidden_layers = 16, 2, 1, 1
    if hasattr(config.vision_config, "out_hidden_size"):
        config.vision_config.out_hidden_size = 16
    return type(tiny(kind))(config).eval()


@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
def test_a_smaller_vision_model_looks_at_the_pictures_itself(kind: str) -> None:
    model, inputs = tiny(kind), dict(prompt(kind, images=1, batch=4), max_new_tokens=6)
    drafter = SmallModel(smaller(kind))
    expected = model.generate(**inputs, do_sample=False)
    assert torch.equal(mmspec.generate(model, drafter=drafter, do_sample=False, **inputs), expected)
    through_transformers = model.generate(**inputs, do_sample=False, custom_generate=mmspec.decode, drafter=drafter)
    assert torch.equal(through_transformers, expected)
    twice = mmspec.generate(model, drafter=drafter, do_sample=True, num_return_sequences=2, seed=0, **inputs)
    assert len(twice) == 8 and torch.equal(twice[::2, :-6], inputs["input_ids"])


@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
@pytest.mark.parametrize("own", (True, False))
def test_placeholders_have_no_chance(kind: str, own: bool) -> None:
    drafter = Watched(SmallModel(noisy(kind) if own else tiny("llama")))
    inputs = prompt(kind, images=1, where="echo", batch=4)
    mmspec.generate(tiny(kind), drafter=drafter, max_new_tokens=10, seed=3, **SAMPLED, **inputs)
    barred = list(drafter.state.context.parts.placeholders) or [IMAGE]
    for r in drafter.rounds:
        if r.draft.tree.nodes > 1:
            assert r.draft.law.scores[..., barred].isneginf().all()
            assert not {i for row in range(4) for i in r.drafted(row)} & set(barred)


def test_a_shorter_vocabulary_never_proposes_the_rest_and_reads_past_it() -> None:
    drafter, inputs = Watched(SmallModel(narrow(40))), prompt("llama", batch=4)
    out = mmspec.generate(tiny("llama"), drafter=drafter, max_new_tokens=12, seed=4, **SAMPLED, **inputs)
    assert (out[:, inputs["input_ids"].shape[1] :] >= 40).any()
    assert all(r.draft.law.scores[..., 40:].isneginf().all() for r in drafter.rounds if r.draft.tree.nodes > 1)


def test_the_recorded_distribution_has_the_warps_of_the_request() -> None:
    drafter = Watched(SmallModel(noisy("llama")))
    inputs = dict(prompt("llama"), do_sample=True, temperature=0.7, top_k=5)
    mmspec.generate(tiny("llama"), drafter=drafter, max_new_tokens=10, seed=4, **inputs)
    scores = torch.cat([r.draft.law.scores.flatten(0, 1) for r in drafter.rounds if r.draft.tree.nodes > 1])
    assert (scores.isfinite().sum(-1) == 5).all()


class Spy:
    """Notes what a length control is shown."""

    longest = 6

    def __init__(self) -> None:
        self.control, self.seen = ConfidenceStop(0.25, longest=6), []

    def begin(self):
        return self

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        answer = self.control.grow(step, confidence)
        self.seen.append((step, confidence, answer))
        return answer


def test_the_draft_length_depends_on_the_distribution_and_not_on_the_drawn_token() -> None:
    inputs, lengths = prompt("llama", batch=4), []
    for seed in range(6):
        spy = Spy()
        drafter = SmallModel(noisy("llama"), spy)
        options = dict(max_new_tokens=20, seed=0, do_sample=True, top_k=0, temperature=4.0)
        decoding = mmspec.vlm.start(tiny("llama"), drafter=drafter, **options, **inputs)
        decoding.step()
        draft = decoding.state.propose(decoding.target, Keys.of(100 + seed, 4))  # other draws, the same past
        growing = torch.ones(4, dtype=torch.bool)
        for step, confidence, answer in spy.seen:
            growing = growing & answer
            if step < draft.tree.nodes - 1:
                law = draft.law.scores[:, step].softmax(-1)
                torch.testing.assert_close(confidence, law.amax(-1))
                assert torch.equal(draft.valid[:, step + 1], growing)
        assert [step for step, _, _ in spy.seen] == list(range(len(spy.seen)))
        lengths.append((spy.seen[0][1], draft.valid.sum(-1).tolist(), draft.value[:, 1].tolist()))
    assert all(torch.equal(lengths[0][0], first) for first, _, _ in lengths)  # before the first draw nothing differs
    assert len({str(drawn) for _, _, drawn in lengths}) > 1 and len({str(n) for _, n, _ in lengths}) > 1


def test_a_model_that_breaks_drafts_nothing_and_spoils_nothing() -> None:
    broken = noisy("llama")
    with torch.no_grad():
        broken.lm_head.weight[7] = float("nan")
    inputs = prompt("llama", batch=4)
    for sampled in (dict(do_sample=False), SAMPLED):
        out = mmspec.generate(
            tiny("llama"), drafter=SmallModel(broken), max_new_tokens=5, seed=0, return_dict=True, **sampled, **inputs
        )
        plain = mmspec.generate(tiny("llama"), max_new_tokens=5, seed=0, **sampled, **inputs)
        assert torch.equal(out.sequences, plain) and out.stats.target_passes == 5


def test_requests_may_interleave() -> None:
    model, small, inputs = tiny("llama"), noisy("llama"), prompt("llama", batch=4)
    alone = mmspec.generate(model, drafter=SmallModel(small), max_new_tokens=12, seed=7, **SAMPLED, **inputs)
    drafter = SmallModel(small)
    options = dict(drafter=drafter, max_new_tokens=12, seed=7, **SAMPLED)
    requests = [mmspec.vlm.start(model, **options, **inputs) for _ in range(2)]
    going = True
    while going:
        going = any([request.step() for request in requests if not request.target.done])
    for request in requests:
        tokens = torch.tensor(request.target.tokens)
        assert torch.equal(tokens, alone[:, inputs["input_ids"].shape[1] :])


def test_models_that_do_not_fit_are_refused() -> None:
    def run(target: str, small: nn.Module) -> None:
        mmspec.generate(tiny(target), drafter=SmallModel(small), max_new_tokens=4, **prompt(target))

    with pytest.raises(ValueError, match="vocabulary of 101, got 120"):
        run("llama", narrow(120))
    with pytest.raises(ValueError, match="LlavaForConditionalGeneration.*got a Qwen2_5_VL"):
        run("llava", tiny("qwen2_5_vl"))
