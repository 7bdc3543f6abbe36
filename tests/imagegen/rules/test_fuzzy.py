"""Fuzzy acceptance over groups of codes: the emitted law, the groups, the exact settings and the text form."""

from __future__ import annotations

import pytest
import torch

from mmspec.certify.enumeration import (
    as_inputs,
    contrasted_tables,
    enumerate_rule,
    every_draft,
    joint_law,
    target_law,
    total_variation,
)
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import verify
from mmspec.core.round.rules import RecursiveRejection, TokenWise
from mmspec.core.round.rules.fuzzy import Fuzzy, jensen_shannon
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.imagegen.rules.fuzzy import GroupedFuzzy, code_groups
from mmspec.methods import parse
from mmspec.methods.registry import ModelParts
from tests.imagegen.rules.cases import codebook
from tests.imagegen.tiny import TinyModel, generate

WITHOUT = "without_replacement"
FAN = static_tree([0, 0, 0, 1, 1, 2])
GROUP = torch.tensor([0, 1, 0])  # codes 0 and 2 look alike


def grouped(threshold: float, group: torch.Tensor) -> GroupedFuzzy:
    """The rule over given groups."""
    rule = GroupedFuzzy(threshold)
    rule.group = group
    return rule


def pooled(law: torch.Tensor) -> torch.Tensor:
    return torch.stack([law[..., 0] + law[..., 2], law[..., 1]], -1)


@pytest.mark.parametrize("tree", (chain(3), FAN), ids=("chain", "tree"))
def test_a_position_has_the_drafters_law_where_the_groups_are_close(tree: Tree) -> None:
    seen_both = set()
    for kind in ("random", "far", "both with zeros"):
        p, q = contrasted_tables(kind, 3, tree.max_depth, seed=4)
        apart = [jensen_shannon(pooled(a), pooled(b)) for a, b in zip(p, q, strict=False)]
        least = float(torch.cat(apart).median()) + 1e-9
        rule = grouped(least, GROUP)
        close = [one <= least for one in apart]
        law = [torch.where(near[:, None], b, a) for near, a, b in zip(close, p, q, strict=False)] + [p[-1]]
        seen = enumerate_rule(rule, tree, p, q)
        assert total_variation(joint_law(seen, law), target_law(law)) < 1e-12
        single = [jensen_shannon(a, b) <= least for a, b in zip(p, q, strict=False)]
        seen_both.add(all(torch.equal(a, b) for a, b in zip(single, close, strict=True)))
    assert False in seen_both  # groups accept where single codes do not


def test_groups_of_one_code_are_the_rule_of_text_and_a_single_group_accepts_all() -> None:
    p, q = contrasted_tables("random", 3, 3, seed=4)
    draft, evidence = as_inputs(every_draft(FAN, q, WITHOUT), FAN, p, q, WITHOUT)

    def threshold(rule: Fuzzy) -> torch.Tensor:
        return rule.weigh(evidence, draft).threshold

    single = grouped(0.2, torch.arange(3))
    assert torch.equal(threshold(single), threshold(Fuzzy(0.2))) and not torch.equal(
        threshold(single), threshold(Fuzzy(-1))
    )
    assert (threshold(grouped(1e-9, torch.zeros(3, dtype=torch.long)))[:, 1:] == 1).all()


@pytest.mark.parametrize("tree", (chain(3), FAN), ids=("chain", "tree"))
def test_below_zero_it_is_the_exact_rule_bit_for_bit(tree: Tree) -> None:
    p, q = contrasted_tables("both with zeros", 3, tree.max_depth, seed=2)
    draft, evidence = as_inputs(every_draft(tree, q, WITHOUT), tree, p, q, WITHOUT)
    exact, keys = RecursiveRejection() if tree.max_rank else TokenWise(), Keys.of(3, draft.batch)
    (_, own), (_, other) = (verify(rule, draft, evidence, keys) for rule in (grouped(-1, GROUP), exact))
    assert torch.equal(own.path, other.path) and torch.equal(own.correction, other.correction)


def test_groups_hold_neighbouring_codes() -> None:
    centre = torch.eye(4)
    rows = centre.repeat_interleave(5, 0) + 0.05 * torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    group = code_groups(rows * torch.arange(1, 21)[:, None], 4).view(4, 5)
    assert (group == group[:, :1]).all() and len(set(group[:, 0].tolist())) == 4
    assert sorted(code_groups(rows, 20).tolist()) == list(range(20))
    with pytest.raises(ValueError, match="groups: expected 1 to 20"):
        code_groups(rows, 21)


def test_values_that_are_no_codes_are_a_group() -> None:
    rule = grouped(0.05, torch.tensor([0, 1, 0]))
    law = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25])
    assert torch.allclose(rule._pooled(law), torch.tensor([0.4, 0.2, 0.4]))


def test_the_text_form_takes_the_models_codebook() -> None:
    class Codes:
        def codebook(self) -> torch.Tensor:
            return codebook(50)

    def made(text: str) -> GroupedFuzzy:
        return parse(text, "image", "rule").make(ModelParts(Codes()))

    rule = made("fuzzygroups:threshold=0.2,divergence=tv,groups=8")
    assert (rule.threshold, rule.divergence) == (0.2, "tv") and torch.equal(rule.group, code_groups(codebook(50), 8))
    assert len(made("fuzzygroups").group) == 50 and made("fuzzygroups:groups=0").group is None
    with pytest.raises(ValueError, match="groups"):
        made("fuzzygroups:groups=-1")


def test_images_differ_from_plain_ones_unless_the_threshold_is_negative() -> None:
    model = TinyModel()
    settings = dict(guidance_scale=2.0, seed=[1, 2, 3])
    group = code_groups(model.codebook(), 4)
    drafts = parse("sjd:window=8", "image", "decoding").make()
    exact = generate(model, [0, 1, 3], drafts, "token", **settings)
    same = generate(model, [0, 1, 3], drafts, grouped(-1, group), **settings)
    loose = generate(model, [0, 1, 3], drafts, grouped(0.3, group), **settings)
    assert torch.equal(same.tokens, exact.tokens) and not loose.stats.exact
    assert loose.stats.target_passes < exact.stats.target_passes
