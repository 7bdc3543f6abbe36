"""Layers of a target run apart: the states, the keys and the words are those of whole passes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.round.draft import Draft, EntryStates, Law, root_only
from mmspec.core.round.tree import chain
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.partial_passes import check_partial, read_ahead, slots_ahead
from mmspec.vlm.target import TextTarget
from tests.vlm.drafts import continuation
from tests.vlm.layer_kinds import committed, drafted, fresh, keep, model_with, opened, ragged, random_draft
from tests.vlm.tiny import TEXT, VLMS, prompt, tiny

ENTRY, LENGTH = 1, 4
DEFAULT = ("qwen2_5_vl", "qwen3_vl")


@dataclass
class Prefix:
    """Drafts a row's true continuation with an error at a depth that changes by round and row, through the first layer."""

    truth: list[list[int]]
    name: str = "prefix"
    passes: int = 0
    drafts: list[Draft] = field(default_factory=list)

    def open(self, target: TextTarget) -> Prefix:
        return self

    def propose(self, target: TextTarget, keys: object) -> Draft:
        rows = []
        for row, (truth, known) in enumerate(zip(self.truth, target.tokens, strict=True)):
            values = (truth[len(known) :] + [5] * LENGTH)[:LENGTH]
            wrong = (len(self.drafts) + row) % (LENGTH + 1)
            rows.append([v + (depth == wrong) for depth, v in enumerate(values)])
        value = torch.cat([target.pending[:, None], torch.tensor(rows)], 1)
        self.drafts.append(entered(target, Draft(value, chain(LENGTH), Law("deterministic"))))
        return self.drafts[-1]

    def observe(self, *outcome: object) -> None:
        return None


def entered(target: TextTarget, draft: Draft) -> Draft:
    """The draft of a chain, node by node through the first layer."""
    states = []
    for node in range(draft.tree.nodes):
        states.append(read_ahead(target, target.parts.embed(draft.value[:, node : node + 1]), node, 0, ENTRY))
    return replace(draft, entry=EntryStates(ENTRY, torch.cat(states, 1), draft.value))


def counted(model: nn.Module, run: object) -> list[Counter]:
    """The nodes of a row that each layer reads in a run, by nodes a call; the prompt's pass is left out."""
    counts = [Counter() for _ in model.get_decoder().layers]
    run.step()
    hooks = [
        layer.register_forward_pre_hook(lambda layer, args, n=n: counts[n].update([args[0].shape[1]]))
        for n, layer in enumerate(model.get_decoder().layers)
    ]
    while run.step():
        pass
    for hook in hooks:
        hook.remove()
    return counts


@pytest.mark.parametrize(
    "kind", [*DEFAULT, *(pytest.param(kind, marks=pytest.mark.whole) for kind in (*VLMS, *TEXT) if kind not in DEFAULT)]
)
def test_words_are_those_of_transformers_and_no_layer_runs_twice(kind: str) -> None:
    model = tiny(kind)
    inputs = dict(prompt(kind, images=int(kind in VLMS), batch=4), max_new_tokens=14, do_sample=False)
    expected = model.generate(**inputs)
    truth = continuation(expected, inputs["input_ids"].shape[1])
    before = [set(vars(module)) for module in model.modules()]
    drafter = Prefix(truth)
    run = start(model, drafter=drafter, **inputs)
    measured = run.target.pass_costs.measured.count(LENGTH + 1)
    low, high = counted(model, run)
    assert run.target.tokens == truth and len(drafter.drafts) < 12
    # a token has one pass through the first layer, and a draft one through the others
    assert set(low) == {1} and set(high) == {LENGTH + 1} and low[1] == (LENGTH + 1) * high[LENGTH + 1]
    accepted = {row for line in run.stats.accepted for row in line if row is not None}
    assert accepted == set(range(LENGTH + 1))
    assert [set(vars(module)) for module in model.modules()] == before
    assert run.target.pass_costs.measured.count(LENGTH + 1) == measured


def test_a_pass_that_begins_anew_is_seen() -> None:
    """The mutant of the count above: without the states, the first layer reads every node twice."""
    inputs = dict(prompt("llama"), max_new_tokens=14, do_sample=False)
    truth = continuation(tiny("llama").generate(**inputs), inputs["input_ids"].shape[1])
    drafter = Prefix(truth)
    propose = drafter.propose
    drafter.propose = lambda target, keys: replace(propose(target, keys), entry=None)
    low, high = counted(tiny("llama"), start(tiny("llama"), drafter=drafter, **inputs))
    assert set(low) == {1, LENGTH + 1} and low[LENGTH + 1] == high[LENGTH + 1]


@pytest.mark.parametrize("name", ("LlamaForCausalLM", "MistralForCausalLM"))
def test_keys_and_values_after_a_commit_are_those_of_a_fresh_prompt(name: str) -> None:
    """Mistral's window is shorter than the prompts."""
    target, rng = opened(name, ragged((14, 9, 12))), torch.Generator().manual_seed(1)
    for nodes in ((3, 0, 1), (0, 3, 2), (3, 3, 3)):
        draft, lengths = random_draft(chain(3), 3, rng, target), list(target.cache.lengths)
        whole = target.score(draft)
        draft = entered(target, draft)
        assert target.cache.lengths == lengths
        evidence = target.score(draft)
        assert target.scored == 0 and torch.allclose(evidence.scores, whole.scores, atol=1e-4)
        for row in range(3):
            ids = committed(target, row) + drafted(draft, row, 3)
            assert torch.allclose(fresh(name, ids)[0], evidence.scores[row, 3], atol=1e-4)
        keep(target, draft, evidence, list(nodes), 7)
        for row in range(3):
            held = fresh(name, committed(target, row))[1]
            count = len(committed(target, row))
            for layer in range(target.parts.layers):
                mine = [stored[row, :, : target.cache.lengths[row]][:, -count:] for stored in target.cache.at(layer)]
                own = held.layers[layer]
                for slots, true in zip(mine, (own.keys[0], own.values[0]), strict=True):
                    width = true.shape[1]  # transformers keeps a window alone
                    torch.testing.assert_close(slots[:, -width:], true, atol=1e-5, rtol=1e-5)


def test_states_count_for_their_own_values_alone() -> None:
    target = opened("LlamaForCausalLM", ragged((9,)))
    draft = entered(target, random_draft(chain(3), 1, torch.Generator().manual_seed(1), target))
    other = replace(draft, value=draft.value.clone().index_fill_(1, torch.tensor([2]), 6))
    assert torch.equal(target.score(other).scores, target.score(replace(other, entry=None)).scores)
    assert target.scored == 4
    assert target.score(root_only(target.pending)).scores.isfinite().all()


def test_levels_are_recorded_from_the_states_on() -> None:
    inputs = dict(prompt("llama"), max_new_tokens=8, do_sample=False)
    run = start(tiny("llama"), **inputs)
    run.step()
    target = run.target
    draft = entered(target, Draft(torch.tensor([[int(target.pending), 7, 8]]), chain(2), Law("deterministic")))
    for levels in (None, (1,), (1, 2), (2,), (0, 1)):
        target.levels = levels
        mine, whole = target.score(draft), target.score(replace(draft, entry=None))
        assert torch.allclose(mine.hidden, whole.hidden, atol=1e-5) and mine.hidden.shape == whole.hidden.shape, levels


def test_sub_layers_are_left_out() -> None:
    target = opened("LlamaForCausalLM", ragged((9,)))
    decoder, hidden = target.parts.decoder, target.parts.embed(target.pending[:, None])
    attention, mlp = (0, "attention"), (0, "mlp")
    block = decoder.layers[0]
    assert torch.equal(read_ahead(target, hidden, 0, 0, 1, {attention, mlp}), hidden)
    only = hidden + block.mlp(block.post_attention_layernorm(hidden))
    assert torch.equal(read_ahead(target, hidden, 0, 0, 1, {attention}), only)
    rest = read_ahead(target, hidden, 0, 0, 1, {mlp})
    whole = read_ahead(target, hidden, 0, 0, 1)
    assert torch.allclose(rest + block.mlp(block.post_attention_layernorm(rest)), whole, atol=1e-6)


def test_a_view_of_the_cache_leaves_its_lengths_alone() -> None:
    target = opened("LlamaForCausalLM", ragged((9, 5)))
    lengths, length = list(target.cache.lengths), target.cache.length.clone()
    view = slots_ahead(target.cache, 3)
    assert view.lengths == [n + 3 for n in lengths] and torch.equal(view.length, length + 3)
    assert target.cache.lengths == lengths and torch.equal(target.cache.length, length)


@pytest.mark.whole
def test_strict_passes_are_whole() -> None:
    inputs = dict(prompt("llama"), max_new_tokens=10, do_sample=False)
    expected = mmspec.generate(tiny("llama"), strict=True, **inputs)
    truth = continuation(expected, inputs["input_ids"].shape[1])
    assert torch.equal(mmspec.generate(tiny("llama"), drafter=Prefix(truth), strict=True, **inputs), expected)


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        ("Qwen3_5ForCausalLM", "recurrent states"),
        pytest.param("Gemma3nForCausalLM", "share keys and values", marks=pytest.mark.whole),
        ("Gemma3ForCausalLM", "the decoder Gemma3TextModel"),
    ],
)
def test_decoders_whose_layers_need_more_are_refused(name: str, obstacle: str) -> None:
    with pytest.raises(ValueError, match=f"layers can run apart .* got .*{obstacle}"):
        check_partial(take_apart(model_with(name)), 1)


def test_obstacles_and_exits_are_named() -> None:
    parts = take_apart(tiny("llama"))
    for entry in (0, 2):
        with pytest.raises(ValueError, match=f"exit: expected a number of layers from 1 to 1, got {entry}"):
            check_partial(parts, entry)
    check_partial(take_apart(tiny("qwen3_vl")), 1)
    with pytest.raises(ValueError, match="DeepStack .* below layer 1, got 0"):
        check_partial(take_apart(tiny("qwen3_vl")), 0)
    with pytest.raises(ValueError, match="depend on the length"):
        check_partial(replace(parts, rotary=(nn.Identity(),)), 1)
    config = parts.model.config
    config.hidden_size_per_layer_input = 4
    try:
        with pytest.raises(ValueError, match="inputs of its own for every layer"):
            check_partial(parts, 1)
    finally:
        del config.hidden_size_per_layer_input
