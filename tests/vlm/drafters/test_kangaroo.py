"""Kangaroo: words, distribution and state of drafts by the target's first layers."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
import transformers as hf
from torch import nn

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.conversation import Past
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.kangaroo import Kangaroo, KangarooConfig
from tests.vlm.conversation.talks import talk
from tests.vlm.drafters.watched import Watched
from tests.vlm.test_sampled_law import LAWS, PROMPT, STEPS, V, p_value
from tests.vlm.tiny import TEXT, VLMS, prompt, tiny

GREEDY = dict(max_new_tokens=16, do_sample=False)


def leaning(model: nn.Module, length: object = None, **sizes: object) -> Kangaroo:
    """An adapter whose attention adds little to the exit states, which then agree with the target now and then."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drafter = new_drafter("kangaroo", model, **sizes).eval()
    with torch.no_grad():
        drafter.layer.out.weight.mul_(0.2)
    return drafter.with_shape(Chain(length or ConfidenceStop(0.1, longest=4)))


@cache
def deep() -> nn.Module:
    """A narrow target of four layers, the later of which change little."""
    config = hf.LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = hf.LlamaForCausalLM(config).eval().requires_grad_(False)
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3 if ".2." in name or ".3." in name else 0.6)
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


def adapted(drafter: Kangaroo, states: torch.Tensor) -> torch.Tensor:
    """The adapter's outputs [1, n, H] for the exit states of a whole text, read at once."""
    rotary = drafter.layer.rotary_at(torch.arange(states.shape[1])[None], states.dtype)
    return drafter(states, states, rotary, SlotCache(1, 0), None)


DEFAULT = ("llava",)
KINDS = [*DEFAULT, *(pytest.param(kind, marks=pytest.mark.whole) for kind in (*VLMS, *TEXT) if kind not in DEFAULT)]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_transformers(kind: str) -> None:
    model = tiny(kind)
    inputs = dict(prompt(kind, images=int(kind in VLMS), batch=4), **GREEDY)
    watched = Watched(leaning(model))
    out = mmspec.generate(model, drafter=watched, return_dict=True, **inputs)
    assert torch.equal(out.sequences, model.generate(**inputs))
    assert out.stats.accept_length > 1 and out.stats.exact
    assert all(seen.draft.entry.layer == 1 for seen in watched.rounds if seen.draft.tree.nodes > 1)


@pytest.mark.parametrize(
    "length", (pytest.param(FixedLength(2), marks=pytest.mark.whole), ConfidenceStop(0.3, longest=6)), ids=repr
)
def test_the_adapter_holds_the_states_of_the_committed_tokens(length: object) -> None:
    """After full acceptances too, which leave the last drafted token unread by the adapter."""
    inputs = prompt("llama", batch=4)
    inputs["input_ids"] = inputs["input_ids"] % V
    model, drafter = deep(), leaning(deep(), length)
    run = start(model, drafter=drafter, max_new_tokens=24, do_sample=False, **inputs)
    while run.step():
        state, target = run.state, run.target
        if not all(target.live):
            break
        state.ready()
        for row in range(4):
            own = inputs["attention_mask"][row].bool()
            ids = torch.cat([inputs["input_ids"][row, own], torch.tensor(target.tokens[row])])[None]
            assert int(state.next_position[row]) == state.cache.lengths[row] == ids.shape[1] - 1
            states = model(ids, output_hidden_states=True).hidden_states[drafter.config.exit]
            root = adapted(drafter, states)[:, -1]
            torch.testing.assert_close(state.root[row], root[0], atol=1e-5, rtol=1e-4)
    accepted = [row for line in run.stats.accepted for row in line if row is not None]
    assert max(accepted) == length.longest or isinstance(length, ConfidenceStop) and max(accepted) > 1


def test_an_exit_behind_all_but_idle_layers_accepts_everything() -> None:
    """The layers behind the exit add nothing and the adapter is the identity, so drafts are the target's own tokens."""
    model = copy.deepcopy(deep())
    drafter = leaning(model, FixedLength(4))
    with torch.no_grad():
        drafter.layer.out.weight.zero_()
        for layer in model.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    out = mmspec.generate(
        model, drafter=drafter, input_ids=PROMPT, max_new_tokens=21, do_sample=False, return_dict=True
    )
    assert out.stats.accepted[1:] == [[4]] * 4


@pytest.mark.parametrize("rule", ("exact", pytest.param("token", marks=pytest.mark.whole)))
@pytest.mark.parametrize("setting", ("t1_top_p0.9", pytest.param("t0.7", marks=pytest.mark.whole)))
def test_sampled_words_have_the_targets_distribution(rule: str, setting: str) -> None:
    model, settings = deep(), LAWS[setting]
    out = mmspec.generate(
        model,
        input_ids=PROMPT.expand(2000, -1),
        drafter=leaning(model, ConfidenceStop(0.3, longest=3)),
        rule=rule,
        seed=0,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
        **settings,
    )
    assert out.stats.accept_length > 1.1
    assert p_value(out.sequences[:, 3 : 3 + STEPS], law_of(model, **settings)) > 1e-3


def law_of(model: nn.Module, temperature: float, top_p: float = 1.0) -> torch.Tensor:
    """float64 [V ** STEPS], the chance of every continuation."""
    joint, ids = torch.ones(1, dtype=torch.float64), PROMPT
    for _ in range(STEPS):
        scores = hf.TemperatureLogitsWarper(temperature)(ids, model(ids).logits[:, -1].float())
        scores = hf.TopPLogitsWarper(top_p)(ids, scores) if top_p < 1 else scores
        joint = (joint[:, None] * scores.double().softmax(-1)).flatten()
        ids = torch.cat([ids.repeat_interleave(V, 0), torch.arange(V).repeat(len(ids))[:, None]], 1)
    return joint


@pytest.mark.whole
def test_a_row_drafts_the_same_alone_and_in_a_batch() -> None:
    inputs, model = prompt("llama", batch=4), tiny("llama")
    options = dict(max_new_tokens=16, do_sample=True, top_k=6, return_dict=True)
    together = mmspec.generate(model, drafter=leaning(model), seed=[5, 6, 7, 8], **options, **inputs)
    for row in (1, 3):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, drafter=leaning(model), seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -16:], together.sequences[row, -16:])
        assert [line[row] for line in together.stats.accepted if line[row] is not None] == [
            line[0] for line in alone.stats.accepted
        ]


@pytest.mark.whole
@pytest.mark.parametrize("kind, apart", (("llava", False), ("qwen2_5_vl", True)))
def test_turns_of_a_conversation_match_fresh_prompts(kind: str, apart: bool) -> None:
    chat = talk(kind, apart)
    past, said, drafter = Past(chat.model), None, leaning(chat.model)
    for number in range(3):
        inputs = chat.turn(number, said)
        said = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY)
        assert torch.equal(said, chat.model.generate(**inputs, **GREEDY)), number


def test_training_predicts_the_next_token_from_the_exit_state() -> None:
    """The objective's students are the scores that a draft would be drawn from, for the same tokens."""
    from mmspec.vlm.training.objective import predictions
    from mmspec.vlm.training.teacher import teacher_pass

    model = deep()
    drafter, parts = leaning(model), take_apart(model)
    ids = torch.tensor([[1, 5, 2, 4, 3, 3, 6, 1, 2]])
    answer = torch.arange(9)[None] >= 4
    batch = teacher_pass(parts, {"input_ids": ids}, answer, drafter.levels)
    (only,) = predictions(drafter, parts, batch, 4)
    prediction = only.whole()
    assert prediction.token.tolist() == ids[0, 4:].tolist()
    torch.testing.assert_close(prediction.teacher, model(ids).logits[0, 3:8].float(), atol=1e-5, rtol=1e-4)
    states = model(ids, output_hidden_states=True).hidden_states[2]
    out = adapted(drafter, states)
    torch.testing.assert_close(prediction.student, model.lm_head(out)[0, 3:8].float(), atol=1e-5, rtol=1e-4)


def test_a_drafter_that_does_not_fit_is_refused() -> None:
    drafter = leaning(deep())
    with pytest.raises(ValueError, match="shape: expected a Chain for kangaroo, got a DynamicTree"):
        drafter.with_shape(DynamicTree())
    with pytest.raises(ValueError, match="exit: expected a number of layers from 1 to 3, got 4"):
        new_drafter("kangaroo", deep(), exit=4).check(take_apart(deep()))
    with pytest.raises(ValueError, match="exit: expected at least 1, got 0"):
        KangarooConfig(16, 2, V, exit=0)
    assert mmspec.methods.find("kangaroo").facts["drafts"] == ("sampled chain",)
    assert {setting.name for setting in mmspec.methods.find("kangaroo").settings} == {"chain", "length"}
