"""The contract of every kind of layer: a pass changes nothing, a commit leaves what a fresh pass over the ids would leave."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from packaging.version import parse
from torch import Tensor

import mmspec
from mmspec.core.layers.compat import read_by_number
from mmspec.core.layers.tree_recurrence import CommittedPaths
from mmspec.core.round.cache import LayerStates, StateLayer
from mmspec.core.round.tree import static_tree
from mmspec.vlm.admission import take_apart
from mmspec.vlm.target import TextTarget
from tests.vlm.drafts import SHAPES, STATIC, Scripted, continuation, random_tree
from tests.vlm.layer_kinds import (
    KINDS,
    ONCE,
    STATEFUL_ONCE,
    committed,
    drafted,
    fresh,
    keep,
    model_with,
    opened,
    ragged,
    random_draft,
)

LENGTHS = (13, 6, 10)  # prompts longer and shorter than windows and chunks of 8


def off(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the values' own size."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1.0))


def states_of(layer: object) -> list[Tensor]:
    """Convolution windows and recurrent states of transformers' own layer, of its only row."""
    stored = read_by_number(layer.conv_states), read_by_number(layer.recurrent_states)
    return [states[0] for by_number in stored for states in by_number.values() if states is not None]


def held_in(states: LayerStates, row: int) -> list[Tensor]:
    return [x[row] for one in (states.conv, states.recurrent) for x in one.values() if x is not None]


def stateful(target: TextTarget) -> list[tuple[int, StateLayer]]:
    return [(n, layer) for n, layer in enumerate(target.cache.layers) if isinstance(layer, StateLayer)]


@pytest.mark.parametrize("name", ONCE)
def test_random_passes_and_commits_equal_fresh_passes(name: str) -> None:
    """Rows keep random paths, some passes are forgotten, and logits of drafted nodes stay those of their own sequences."""
    rng = torch.Generator().manual_seed(1)
    target = opened(name, ragged(LENGTHS))
    for turn in range(7):
        tree = static_tree(STATIC) if turn % 2 else random_tree(len(LENGTHS), 8, rng)
        if turn == 3:  # a pass that nobody commits
            target.score(random_draft(tree, len(LENGTHS), rng, target))
        draft = random_draft(tree, len(LENGTHS), rng, target)
        evidence = target.score(draft)
        nodes = torch.randint(tree.nodes, (len(LENGTHS),), generator=rng).tolist()
        for row in range(len(LENGTHS)):
            for node in {0, nodes[row]}:
                wanted, _ = fresh(name, committed(target, row) + drafted(draft, row, node))
                assert off(evidence.scores[row, node], wanted) < 1e-4, (turn, row, node)
        keep(target, draft, evidence, nodes, 20 + turn)
        if turn == 4:
            target.live[1] = False  # from now on its paths are empty
            held = [[x.clone() for x in held_in(layer.committed, 1)] for _, layer in stateful(target)]
            ids = committed(target, 1)
    for (_, layer), before in zip(stateful(target), held, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(held_in(layer.committed, 1), before, strict=True))
    assert committed(target, 1) == ids and target.cache.lengths == target.cache.length.tolist()


@pytest.mark.parametrize("name", STATEFUL_ONCE)
def test_states_behind_every_node_of_a_random_tree_equal_recomputation(name: str) -> None:
    rng = torch.Generator().manual_seed(2)
    target, batch = opened(name, ragged(LENGTHS)), len(LENGTHS)
    tree = random_tree(batch, 7, rng)
    draft = random_draft(tree, batch, rng, target)
    before = [
        [x.clone() for row in range(batch) for x in held_in(layer.committed, row)] for _, layer in stateful(target)
    ]
    target.score(draft)
    for (_, layer), old in zip(stateful(target), before, strict=True):  # the pass itself changed nothing
        now = [x for row in range(batch) for x in held_in(layer.committed, row)]
        assert all(torch.equal(a, b) for a, b in zip(now, old, strict=True))
    for node in range(tree.nodes):
        paths = [tree.path[row, node, : int(tree.depth[row, node]) + 1].tolist() for row in range(batch)]
        for index, layer in stateful(target):
            states = layer.committed
            for part in layer.pending:
                states = part.behind(states, CommittedPaths(paths))
            for row in range(batch):
                _, wanted = fresh(name, committed(target, row) + drafted(draft, row, node))
                for mine, own in zip(held_in(states, row), states_of(wanted.layers[index]), strict=True):
                    assert off(mine, own) < 1e-4, (node, index, row)


@pytest.mark.parametrize("name", KINDS, ids=[f"{kind}-{name}" for name, kind in KINDS.items()])
def test_greedy_words_are_those_of_generate_and_a_row_alone_says_the_same(name: str) -> None:
    """Generation crosses windows and chunks of 8; drafts are right down to random depths."""
    if name == "OlmoHybridForCausalLM" and parse(transformers.__version__) < parse("5.15"):
        pytest.skip(f"{name} of transformers {transformers.__version__} has a cache of its own")
    model, inputs = model_with(name), ragged((12, 5, 9, 3), seed=4)
    settings = dict(max_new_tokens=22, do_sample=False)
    expected = model.generate(**inputs, **settings)
    truth = continuation(expected, 12)
    for shape in (None, *SHAPES):
        drafter = None if shape is None else Scripted(truth, shape, invalid=True, vocab=61)
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **settings), expected), shape
    for row, length in enumerate((12, 5, 9, 3)):
        ids = inputs["input_ids"][row : row + 1, 12 - length :]
        alone = mmspec.generate(
            model, drafter=Scripted(truth[row : row + 1], "static", vocab=61), input_ids=ids, **settings
        )
        assert continuation(alone, length) == truth[row : row + 1], row


@pytest.mark.parametrize("name", ("Gemma3ForCausalLM", "Qwen3_5ForCausalLM", "Lfm2ForCausalLM", "JambaForCausalLM"))
def test_sampled_rows_alone_equal_rows_in_a_batch(name: str) -> None:
    model, inputs = model_with(name), ragged((12, 5, 9), seed=5)
    settings = dict(max_new_tokens=12, do_sample=True, temperature=0.8)
    drafter = Scripted([[9, 8, 7, 6, 5] * 3] * 3, "chain", vocab=61)
    together = continuation(mmspec.generate(model, drafter=drafter, seed=[1, 2, 3], **inputs, **settings), 12)
    for row, length in enumerate((12, 5, 9)):
        ids = inputs["input_ids"][row : row + 1, 12 - length :]
        alone = mmspec.generate(model, drafter=drafter, seed=[row + 1], input_ids=ids, **settings)
        assert continuation(alone, length) == together[row : row + 1]


@pytest.mark.parametrize("name", ("Gemma3ForCausalLM", "Qwen3_5ForCausalLM", "JambaForCausalLM"))
def test_alternating_requests_on_one_model_do_not_interfere(name: str) -> None:
    """Every state is its request's own; prompts down to a single token."""
    model, settings = model_with(name), dict(max_new_tokens=14, do_sample=False)
    prompts = [ragged((9,), seed=7)["input_ids"], ragged((1,), seed=8)["input_ids"]]
    truth = [model.generate(ids, **settings) for ids in prompts]
    runs = []
    for ids, words in zip(prompts, truth, strict=True):
        drafter = Scripted(continuation(words, ids.shape[1]), "static", vocab=61)
        runs.append(mmspec.vlm.start(model, drafter=drafter, input_ids=ids, **settings))
    going = list(runs)
    while going:
        going = [run for run in going if run.step()]
    for run, ids, words in zip(runs, prompts, truth, strict=True):
        assert run.target.tokens == continuation(words, ids.shape[1])
    assert "forward" not in {name for module in model.modules() for name in vars(module)}, "a forward was left behind"


def test_states_of_a_half_precision_model_stay_single() -> None:
    model = copy.deepcopy(model_with("Qwen3_5ForCausalLM")).bfloat16()
    run = mmspec.vlm.start(model, drafter=Scripted([[9] * 9], "chain"), max_new_tokens=8, **ragged((9,)))
    run.run()
    for _, layer in stateful(run.target):
        assert layer.committed.recurrent[0].dtype == torch.float32 and layer.committed.conv[0].dtype == torch.bfloat16


def test_a_forward_that_was_the_module_s_own_is_put_back() -> None:
    """As accelerate leaves it: a forward of the instance that calls the one it has put aside."""
    model, ids = copy.deepcopy(model_with("Lfm2ForCausalLM")), ragged((9,))["input_ids"]
    truth = model.generate(ids, max_new_tokens=8, do_sample=False)
    mixer = next(mixer.module for mixer in take_apart(model).mixers)
    calls, aside = [], mixer.forward
    mixer._old_forward, mixer._hf_hook = aside, object()
    mixer.forward = lambda *args, **kwargs: (calls.append(1), mixer._old_forward(*args, **kwargs))[1]
    outer = mixer.forward
    drafter = Scripted(continuation(truth, 9), "static", vocab=61)
    for _ in range(2):
        assert torch.equal(mmspec.generate(model, drafter=drafter, input_ids=ids, max_new_tokens=8), truth)
    assert calls and mixer.forward is outer and mixer._old_forward is aside
