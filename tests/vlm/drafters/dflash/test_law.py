"""Sampled text has the target's law whatever form a block's draft has: the joint of three tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from tests.vlm.drafters.mutants import best_on_record_as_drawn, evenly_on_record
from tests.vlm.drafters.test_vision_law import LAWS, PROMPT, STEPS, V, exact_law, narrow, p_value, pictures
from tests.vlm.drafters.trained import make

ROWS = 2000
TREE = (0, 0, 0, 1, 1, 2, 2)
FORMS: dict[str, tuple[str, Shape, str]] = {  # drafter, shape, rule
    "best tokens": ("dflash", Chain(FixedLength(3), "deterministic"), "exact"),
    "best tokens, some": ("dflash", Chain(ConfidenceStop(0.3, 4), "deterministic"), "exact"),
    "marginals, token by token": ("dflash", Chain(FixedLength(3)), "token"),
    "marginals, matched": ("dflash", Chain(FixedLength(3)), "match"),
    "likeliest prefixes": ("dflash", DynamicTree(nodes=6, depth=3, width=6), "exact"),
    "siblings apart": ("dflash", StaticTree(TREE), "traversal"),
    "siblings shared": ("dflash", StaticTree(TREE, shared=True), "exact"),
    "walk through best candidates": ("dflash2", Chain(FixedLength(3)), "exact"),
    "best walk": ("dspark", Chain(FixedLength(3), "deterministic"), "exact"),
    "tree of walks": ("dflash2", StaticTree(TREE), "recursive"),
    "corrected walk": ("dspark", Chain(FixedLength(3)), "token"),
    "tree of corrected walks": ("dspark", DynamicTree(nodes=6, depth=3, width=3), "exact"),
}


def drawn(drafter: BlockDrafter, rule: str, settings: dict, rows: int = ROWS) -> tuple[Tensor, float]:
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(rows, -1),
        pixel_values=pictures(rows),
        drafter=drafter,
        rule=rule,
        seed=4,
        do_sample=True,
        max_new_tokens=STEPS + 3,
        top_k=0,
        return_dict=True,
        **settings,
    )
    return out.sequences[:, PROMPT.shape[1] :][:, :STEPS], out.stats.accept_length


# marginals and corrected walks stand in the law of all drafters
@pytest.mark.default_cells("likeliest prefixes", "siblings shared", "tree of walks")
@pytest.mark.parametrize("form", FORMS)
def test_joint_distribution(form: str) -> None:
    name, shape, rule = FORMS[form]
    tokens, length = drawn(make(name, vocab=V).with_shape(shape), rule, LAWS["t1_top_p0.9"])
    assert p_value(tokens, exact_law(**LAWS["t1_top_p0.9"])) > 1e-3
    assert length > 1.05


def test_a_block_that_stops_at_a_predicted_rejection_keeps_the_distribution() -> None:
    drafter = make("dspark", vocab=V)
    tokens, length = drawn(drafter.with_shape(Chain(drafter.stop(0.4))), "exact", LAWS["t1"])
    assert p_value(tokens, exact_law(1.0)) > 1e-3
    assert length > 1.05


def test_by_default_a_sampled_block_is_its_best_tokens_and_a_walk_is_drawn() -> None:
    assert make("dflash").shape_for(greedy=False).drawn == "deterministic"
    assert make("dspark").shape_for(greedy=False).drawn == "without_replacement"


MUTANTS = {
    "marginals, token by token": best_on_record_as_drawn,
    "walk through best candidates": evenly_on_record,
    "corrected walk": evenly_on_record,
    "siblings apart": evenly_on_record,
    "siblings shared": evenly_on_record,
    "tree of walks": evenly_on_record,
}


@pytest.mark.default_cells("marginals, token by token", "siblings shared", "tree of walks")
@pytest.mark.parametrize("form", MUTANTS)
def test_another_distribution_on_record_is_detected(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[form](monkeypatch)
    name, shape, rule = FORMS[form]
    tokens, _ = drawn(make(name, vocab=V).with_shape(shape), rule, LAWS["t1"])
    assert p_value(tokens, exact_law(1.0)) < 1e-6


def test_shared_siblings_are_refused_where_levels_look_at_each_other() -> None:
    with pytest.raises(ValueError, match="shared: expected a drafter with independent levels"):
        drawn(make("dspark", vocab=V).with_shape(StaticTree(TREE, shared=True)), "exact", LAWS["t1"], rows=1)


def test_shared_siblings_are_refused_by_rules_that_look_ahead() -> None:
    with pytest.raises(ValueError):
        drawn(make("dflash", vocab=V).with_shape(StaticTree(TREE, shared=True)), "traversal", LAWS["t1"], rows=1)
    assert torch.is_tensor(drawn(make("dflash", vocab=V), "match", LAWS["t1"], rows=1)[0])
