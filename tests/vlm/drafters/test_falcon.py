"""Falcon: a request drafts the features that a plain formulation computes from the whole text, block by block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting import growth
from mmspec.core.drafting.growth import draft_of_chain
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import Draft
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.falcon import Falcon, FalconConfig, PairLstm
from mmspec.vlm.hidden_states import record_states
from mmspec.vlm.training.objective_wrappers import Glancing
from mmspec.vlm.training.recipes import equal_recipe, published_recipe
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Planted
from tests.vlm.test_sampled_law import LAWS, PROMPT, STEPS, exact_law, narrow, p_value
from tests.vlm.tiny import HIDDEN, prompt, tiny

GREEDY = dict(max_new_tokens=16, do_sample=False)
CHAIN = Chain(FixedLength(5))
SHAPES = (CHAIN, DynamicTree(9, 5, 3), StaticTree((0, 0, 0, 1, 1, 2, 3, 4, 7, 8)))
CLOSE = dict(atol=2e-5, rtol=1e-4)


def block_of(drafter: Falcon, pairs: Tensor) -> Tensor:
    """The features [block, H] behind pairs [n, 2 H]: torch's LSTM, then attention of the last slots over all slots."""
    lstm = torch.nn.LSTM(2 * HIDDEN, HIDDEN, 2)
    for number, cell in enumerate((drafter.lstm.first, drafter.lstm.second)):
        for name, weight in cell.named_parameters():
            getattr(lstm, f"{name}_l{number}").data.copy_(weight)
    with torch.no_grad():
        tops = lstm(pairs)[0]
        layer, place = drafter.layer, torch.arange(len(pairs))[None]
        query, key, value = layer.heads(tops[None], layer.rotary_at(place, tops.dtype))
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        weight = (query[:, :, -drafter.block :] @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        return layer.finish(tops[None, -drafter.block :], weight @ value)[0]


def drafted_features(drafter: Falcon, embeds: Tensor, hidden: Tensor, path: Tensor) -> Tensor:
    """The features [len(path) + 1, H] along a drafted path with embeddings [m, H], from the true pairs before it."""
    pairs, features = torch.cat([embeds, hidden], -1), []
    while len(features) <= len(path):
        block = block_of(drafter, pairs)
        for feature in block:
            features.append(feature)
            if len(features) <= len(path):
                pairs = torch.cat([pairs, torch.cat([path[len(features) - 1], feature])[None]])
    return torch.stack(features[: len(path) + 1])


@pytest.mark.parametrize("shape", (CHAIN, *(pytest.param(s, marks=pytest.mark.whole) for s in SHAPES[1:])), ids=str)
def test_every_node_has_the_feature_of_the_whole_text(shape: Shape) -> None:
    model, drafter, inputs, count = tiny("llama"), make("falcon").with_shape(shape), prompt("llama", batch=3), 0
    embed = model.get_input_embeddings()
    run = start(
        model, drafter=drafter, max_new_tokens=30, do_sample=not isinstance(shape, DynamicTree), seed=3, **inputs
    )
    for _ in range(4):
        run.step()
        state, seen = run.state, []
        expand = state.expand

        def watched(token, hidden, ancestor, back, depth, expand=expand, seen=seen):
            seen.append((token, ancestor, back, depth, expand(token, hidden, ancestor, back, depth)))
            return seen[-1][-1]

        state.expand = watched
        state.propose(run.target, run.keys)
        state.expand = expand
        for row in range(3):
            text = torch.cat([inputs["input_ids"][row], torch.tensor(run.target.tokens[row])])
            text = text[int((inputs["attention_mask"][row] == 0).sum()) :][None]
            with record_states(take_apart(model).decoder) as states:
                model(text[:, :-1])
            embeds, hidden, drafted = embed(text[0, 1:]), states.hidden[0], torch.zeros(0, dtype=torch.long)
            for token, ancestor, back, depth, out in seen:
                drafted = torch.cat([drafted[:back], token[row]])
                for node in range(token.shape[1]):
                    above = (
                        torch.ones(back + 1) > 0 if ancestor is None else ancestor[min(row, len(ancestor) - 1), node]
                    )
                    expected = drafted_features(drafter, embeds, hidden, embed(drafted[above]))
                    torch.testing.assert_close(state.feature(out[row, node], depth + 1), expected[-1], **CLOSE)
                    count += 1
    assert count > 30


def test_training_unrolls_what_is_drafted() -> None:
    """Also with shown pairs, which replace the drafted ones."""
    drafter, parts = make("falcon"), take_apart(tiny("llama"))
    ids = torch.randint(3, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    view = teacher_pass(parts, {"input_ids": ids}, torch.ones_like(ids) > 0).prompt_view(parts)
    outputs = drafter.unroll(drafter.read(view), view, 2, 5)
    embeds, hidden = view.embeds[0], view.hidden[0]
    for begin in (4, 6):
        expected = drafted_features(drafter, embeds[: begin + 1], hidden[: begin + 1], embeds[begin + 1 : begin + 5])
        made = torch.stack([outputs[depth][0, begin + depth - 2] for depth in range(5)])
        torch.testing.assert_close(made, expected, **CLOSE)
    shown = drafter.unroll(drafter.read(view), view, 2, 3, torch.ones(1, 11) > 0)
    torch.testing.assert_close(shown[2][0, 6], drafter.unroll(drafter.read(view), view, 2, 1)[0][0, 6], **CLOSE)


def test_a_mask_within_the_block_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first offset that does not see the last slot is another drafter."""
    model, drafter, inputs = tiny("llama"), make("falcon").with_shape(CHAIN), prompt("llama")
    features = Falcon.features
    run = start(model, drafter=drafter, max_new_tokens=30, do_sample=False, **inputs)
    run.step()
    run.state.ready()
    right = run.state.root.clone()

    def causal(self, tops, query, key, value, bias):
        last = int(bias.sum()) - 1
        own = torch.arange(key.shape[2]) <= last - self.block + 1 + torch.arange(self.block)[:, None]
        return features(self, tops, query, key, value, own)

    monkeypatch.setattr(Falcon, "features", causal)
    run = start(model, drafter=drafter, max_new_tokens=30, do_sample=False, **inputs)
    run.step()
    run.state.ready()
    assert (run.state.root - right)[:, :HIDDEN].abs().max() > 1e-3
    torch.testing.assert_close(run.state.root[:, HIDDEN : 2 * HIDDEN], right[:, HIDDEN : 2 * HIDDEN])


@pytest.mark.parametrize("shape", (CHAIN, pytest.param(SHAPES[1], marks=pytest.mark.whole)), ids=("chain", "tree"))
@pytest.mark.parametrize("kind", ("llava", pytest.param("qwen2_5_vl", marks=pytest.mark.whole)))
def test_words_are_those_of_transformers(kind: str, shape: Shape) -> None:
    inputs = prompt(kind, images=2, batch=4)
    expected = tiny(kind).generate(**inputs, **GREEDY)
    truth = (
        tiny(kind).generate(**inputs, max_new_tokens=24, do_sample=False)[:, inputs["input_ids"].shape[1] :].tolist()
    )
    planted = Planted(make("falcon").with_shape(shape), truth=truth)
    out = mmspec.generate(tiny(kind), drafter=planted, return_dict=True, **inputs, **GREEDY)
    assert torch.equal(out.sequences, expected) and out.stats.accept_length > 1.5


@pytest.mark.whole
@pytest.mark.parametrize("shape", (CHAIN, SHAPES[2]), ids=("chain", "tree"))
def test_a_row_drafts_the_same_alone_and_in_a_batch(shape: Shape) -> None:
    inputs, model, drafter = prompt("llama", batch=4), tiny("llama"), make("falcon").with_shape(shape)
    options = dict(max_new_tokens=12, do_sample=True, top_k=6, return_dict=True)
    together = mmspec.generate(model, drafter=drafter, seed=[5, 6, 7, 8], **options, **inputs)
    for row in (1, 3):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, drafter=drafter, seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -12:], together.sequences[row, -12:])


@pytest.mark.parametrize("lies", (False, True), ids=("record", "shifted"))
def test_sampled_words_have_the_targets_distribution(lies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of the other offset's distribution is noticed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drafter = new_drafter("falcon", narrow()).eval().requires_grad_(False)
        for weight in drafter.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.5)
    if lies:
        monkeypatch.setattr(growth, "draft_of_chain", swapped)
    settings = LAWS["t0.7"]
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(2000, -1),
        drafter=drafter.with_shape(Chain(FixedLength(3))),
        rule="exact",
        seed=0,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
        **settings,
    )
    chance = p_value(out.sequences[:, 3 : 3 + STEPS], exact_law(**settings))
    assert chance < 1e-6 if lies else chance > 1e-3


def swapped(target: object, tokens: list, laws: list, valid: list, ids: Tensor | None = None) -> Draft:
    return draft_of_chain(target, tokens, laws[::-1], valid, ids)


def test_the_lstm_is_torchs_and_settings_are_checked(tmp_path) -> None:
    lstm, pairs = PairLstm(HIDDEN), torch.randn(3, 5, 2 * HIDDEN)
    states = lstm.scan(pairs, torch.zeros(3, 4 * HIDDEN))
    assert states.shape == (3, 5, 4 * HIDDEN) and lstm.scan(pairs[:, :0], states[:, 0]).shape == (3, 0, 4 * HIDDEN)
    torch.testing.assert_close(lstm.scan(pairs[:, 2:], states[:, 1]), states[:, 2:])
    drafter = make("falcon")
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llama"))
    assert again.config == drafter.config and again.block == 2
    assert isinstance(equal_recipe(drafter).objective, Glancing) and equal_recipe(drafter).objective.depths == 4
    assert isinstance(published_recipe("falcon", drafter).objective, Glancing)
    with pytest.raises(ValueError, match="block: expected at least 1"):
        FalconConfig(32, 48, 4, 101, block=0)
