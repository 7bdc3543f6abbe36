"""Decoding on a GPU: compiled kernels and CUDA graphs give the target's texts and the target's distribution."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.graphs import capture
from mmspec.vlm.drafters import DynamicTree, PromptLookup, SmallModel, StaticTree, TokenRecycling
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
        placed(narrow()), input_ids=PROMPT.expand(ROWS, -1).cuda(), drafter=made, rule=rule, seed=1, do_sample=True,
        max_new_tokens=STEPS + 2, top_k=0, return_dict=True, capture=captured,
    )  # fmt: skip
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
