"""Decoding on a GPU: compiled kernels and CUDA graphs give the target's texts and the target's distribution."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.core.layers.graphs import capture
from mmspec.core.length.controls import FixedLength
from mmspec.vlm import Rounds
from mmspec.vlm.drafters import Chain, DynamicTree, PromptLookup, SmallModel, StaticTree, TokenRecycling
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from tests.vlm.drafters.trained import eagle
from tests.vlm.graphs.cases import GREEDY, SAMPLED, WARM, alike, both, chain
from tests.vlm.graphs.cases import rows as ragged_rows
from tests.vlm.test_sampled_law import PROMPT, ROWS, STEPS, exact_law, narrow, p_value
from tests.vlm.tiny import TEXT, VLMS, prompt, tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DRAFTERS = {
    "lookup": PromptLookup,
    "recycling": TokenRecycling,
    "EAGLE, dynamic tree": lambda: eagle().with_shape(DynamicTree()),
    "EAGLE, static tree": lambda: eagle().with_shape(StaticTree()),
    "EAGLE, chain": chain,
}


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Products in float32 are computed in float32, so that greedy texts are comparable."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def placed(part: Any) -> Any:
    """A copy on the GPU; the tiny models are shared with tests on the CPU."""
    return copy.deepcopy(part).cuda() if isinstance(part, nn.Module) else part


def sent(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


@pytest.mark.parametrize("kind", (*VLMS, *TEXT))
def test_greedy_texts_are_those_of_transformers(kind: str) -> None:
    model = placed(tiny(kind))
    inputs = sent(prompt(kind, images=1 if kind in VLMS else 0, batch=3))
    expected = model.generate(**inputs, max_new_tokens=14, **GREEDY)
    for name, make in DRAFTERS.items():
        found = mmspec.generate(model, drafter=placed(make()), max_new_tokens=14, **GREEDY, **inputs)
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("settings", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
@pytest.mark.parametrize("drafts", (False, True), ids=("plain", "chain"))
def test_a_cuda_graph_gives_the_tokens_of_the_ordinary_loop(settings: dict, drafts: bool) -> None:
    inputs = sent(prompt("llava", images=1, batch=4))
    drafter = placed(chain()) if drafts else None
    assert alike(*both(placed(tiny("llava")), drafter=drafter, max_new_tokens=14, **settings, **inputs))


@pytest.mark.parametrize("rule", ("exact", "token", "block", "match"))
def test_a_cuda_graph_replays_every_rule(rule: str) -> None:
    drafter = placed(chain(kind="narrow"))
    pair = both(placed(narrow()), drafter=drafter, rule=rule, max_new_tokens=40, **WARM, **sent(ragged_rows(4)))
    assert alike(*pair) and pair[1].stats.accept_length > 1.1


@pytest.mark.parametrize(
    ("drafter", "rule", "captured"),
    [
        (None, "exact", False),
        (None, "exact", True),
        ("chain", "block", False),
        ("chain", "block", True),
        ("small", "exact", False),
        ("static tree", "exact", False),
        ("static tree", "recursive", False),
    ],
)
def test_sampled_texts_have_the_distribution_of_the_target(drafter: str | None, rule: str, captured: bool) -> None:
    made = {
        None: lambda: None,
        "small": lambda: SmallModel(placed(narrow(0.2))),
        "chain": lambda: placed(chain(kind="narrow")),
        "static tree": lambda: placed(chain(kind="narrow").with_shape(StaticTree())),
    }[drafter]()
    out = mmspec.generate(
        placed(narrow()),
        input_ids=PROMPT.expand(ROWS, -1).cuda(),
        drafter=made,
        rule=rule,
        seed=1,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
        capture=captured,
    )
    assert p_value(out.sequences[:, 3 : 3 + STEPS].cpu(), exact_law(1.0)) > 1e-3
    assert out.stats.exact and (drafter is None or out.stats.accept_length > 1.05)


def test_a_row_alone_is_the_row_of_a_batch() -> None:
    model, drafter, inputs = placed(narrow()), placed(chain(kind="narrow")), sent(ragged_rows(4))
    seeds = [11, 12, 13, 14]
    arguments = {"drafter": drafter, "max_new_tokens": 20, "do_sample": True, "top_k": 0}
    whole = mmspec.generate(model, seed=seeds, **arguments, **inputs)
    for row in range(4):
        one = {name: value[row : row + 1] for name, value in inputs.items()}
        assert torch.equal(mmspec.generate(model, seed=seeds[row : row + 1], **arguments, **one)[0], whole[row])


def test_no_graph_is_destroyed_while_another_is_recorded() -> None:
    value = torch.zeros(4, device="cuda")
    old = [capture(lambda: value.add_(1), value.device) for _ in range(3)]

    def run() -> None:
        cycle: list[Any] = [old.pop()]
        cycle.append(cycle)  # only the garbage collector frees it
        del cycle
        value.add_(len([[] for _ in range(5000)]))

    replay = capture(run, value.device)
    value.zero_()
    replay()
    assert value.tolist() == [5000.0] * 4


LENGTHS = (170, 181)  # tokens of prompts


@cache
def wide() -> tuple[nn.Module, ShapedDrafter]:
    """A model in bfloat16 and a drafter, wide enough that cuBLAS splits their products and needs its workspace."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = dict(hidden_size=768, intermediate_size=2048, num_attention_heads=12, vocab_size=1200)
        config = LlamaConfig(**sizes, num_hidden_layers=4, max_position_embeddings=2048, tie_word_embeddings=False)
        model = LlamaForCausalLM(config).eval().to("cuda", torch.bfloat16)
        drafter = Eagle(EagleConfig(**sizes)).eval().requires_grad_(False).to("cuda", torch.bfloat16)
    return model, drafter.with_shape(Chain(FixedLength(3)))


def long_prompt(length: int) -> dict[str, Any]:
    ids = torch.randint(3, 1200, (1, length), generator=torch.Generator().manual_seed(length)).cuda()
    settings = dict(max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)


def texts(rounds: Rounds) -> list[list[int]]:
    """The texts of captured requests, with drafts and without."""
    model, drafter = wide()
    return [
        mmspec.generate(model, drafter=draft, capture=rounds, **long_prompt(length))[0].tolist()
        for length in LENGTHS
        for draft in (None, drafter)
    ]


def clear_workspaces() -> None:
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def generate_with_a_compiled_cache() -> None:
    for length in LENGTHS:
        wide()[0].generate(cache_implementation="static", **long_prompt(length))
    torch.cuda.empty_cache()


def destroy_recordings() -> None:
    """Record more graphs than torch has streams, and destroy them."""
    weight, x = (torch.randn(rows, 768, device="cuda", dtype=torch.bfloat16) for rows in (768, 4))
    for _ in range(33):
        capture(lambda: x @ weight, x.device)()
        gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    "others", (clear_workspaces, generate_with_a_compiled_cache, destroy_recordings), ids=lambda others: others.__name__
)
def test_a_recorded_round_keeps_its_workspace(others: Any) -> None:
    rounds = Rounds()
    expected = texts(rounds)
    others()
    assert texts(rounds) == expected
    torch.cuda.synchronize()


def test_a_round_outlives_the_thread_that_recorded_it() -> None:
    rounds, first = Rounds(), []
    thread = threading.Thread(target=lambda: first.extend(texts(rounds)))
    thread.start()
    thread.join()
    assert first and texts(rounds) == first
    torch.cuda.synchronize()
