"""The budget of a batch: who gets it, that it is kept, and that sampled text keeps its distribution."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.certify.enumeration import EnumeratedDrafts, every_draft, inexactness, random_tables
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength, grow_by, show_drawn
from mmspec.core.length.node_budget import BatchBudget, RequestBudget
from mmspec.core.round.rules import BlockVerification, Rule, TokenWise, Traversal
from mmspec.core.round.tree import chain
from mmspec.methods import parse
from mmspec.vlm.drafters import SmallModel
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched, noisy
from tests.vlm.test_sampled_law import PROMPT, ROWS, STEPS, exact_law, narrow, p_value
from tests.vlm.tiny import prompt, tiny

DEPTH = 3


def request(rooms: list[int], greedy: bool = False, **settings: int) -> RequestBudget:
    target = SimpleNamespace(
        rooms=lambda longest: [min(room, longest) for room in rooms], device="cpu", greedy=greedy, batch=len(rooms)
    )
    return BatchBudget(**settings).for_request(target)


def laws(*peaks: float) -> Tensor:
    """The log-weights of rows whose first value has these probabilities, [B, 3]."""
    return torch.tensor([[p, (1 - p) / 2, (1 - p) / 2] for p in peaks]).log()


def drafted(control: RequestBudget, scores: Tensor, columns: Tensor) -> list[int]:
    """The lengths of a draft whose every level has the distribution of `scores` and draws `columns`."""
    growth, growing, count = control.begin(), torch.ones(len(scores), dtype=torch.bool), torch.zeros(len(scores))
    for step in range(control.longest):
        growing = growing & grow_by(growth, step, scores, None)
        count += growing
        show_drawn(growth, scores, columns)
    return count.int().tolist()


def test_sure_rows_get_more_and_the_budget_is_kept() -> None:
    first = torch.zeros(3, dtype=torch.long)
    for nodes in range(1, 20):
        lengths = drafted(request([8, 8, 8], nodes=nodes, longest=6), laws(0.98, 0.8, 0.4), first)
        assert sum(lengths) <= nodes and lengths == sorted(lengths, reverse=True)
    assert drafted(request([8, 8, 8], nodes=18, longest=6), laws(0.98, 0.8, 0.4), first) == [6, 6, 6]


def test_a_row_with_unlikely_values_leaves_its_budget_to_the_others() -> None:
    control, scores = request([8, 8], nodes=5, longest=4), laws(0.6, 0.6)
    lucky, unlucky = drafted(control, scores, torch.tensor([0, 1]))
    assert lucky > unlucky
    assert drafted(control, scores, torch.tensor([1, 0])) == [unlucky, lucky]


def test_rows_that_are_stopped_or_near_their_end_take_nothing_they_cannot_use() -> None:
    scores, first = laws(0.9, 0.9, 0.9), torch.zeros(3, dtype=torch.long)
    assert drafted(request([0, 2, 9], nodes=6, longest=4), scores, first) == [0, 2, 4]


def test_the_calibration_follows_the_verdicts() -> None:
    for accepted, least, most in ((2, 0.9, 1.0), (0, 0.0, 0.3)):
        control = request([9, 9], nodes=4, longest=2)
        for _ in range(60):
            drafted(control, laws(0.7, 0.7), torch.zeros(2, dtype=torch.long))
            draft = SimpleNamespace(
                value=torch.zeros(2, 3), valid=None, law=SimpleNamespace(copies=None), tree=chain(2)
            )
            control.learn(draft, SimpleNamespace(depth=torch.tensor([accepted, accepted])))
        assert least <= control.share <= most
        assert (control.power < 1) == (accepted == 2)  # the drafter's own probabilities said 0.54


def deciding(q: list[Tensor], neighbour: list[Tensor]) -> object:
    """Decisions of the controller for the first of two rows, for every prefix of an enumeration.

    The second row has the distributions and the values of `neighbour`, float64 [DEPTH, V].
    """

    def of_prefix(prefix: list[int]) -> bool:
        growth, code = request([9, 9], nodes=3, longest=DEPTH).begin(), 0
        for step in range(len(prefix) + 1):
            scores = torch.stack([q[step][code], neighbour[step]]).log().float()
            goes_on = bool(grow_by(growth, step, scores, None)[0])
            if not goes_on or step == len(prefix):
                return goes_on
            show_drawn(growth, scores, torch.tensor([prefix[step], step % 3]))
            code = code * 3 + prefix[step]

    def grow(value: Tensor, valid: Tensor, node: int) -> Tensor:
        return torch.tensor([of_prefix(row) for row in value[:, 1:node].clamp_min(0).tolist()]) & valid[:, node - 1]

    return grow


@pytest.mark.parametrize("rule", (TokenWise(), BlockVerification(), Traversal()), ids=lambda rule: rule.name)
def test_no_neighbour_changes_a_rows_distribution(rule: Rule) -> None:
    p, q = random_tables(3, DEPTH + 1, 1, peak=2.0), random_tables(3, DEPTH, 4, peak=2.0)
    lengths = []
    for seed in (5, 6):
        neighbour = list(random_tables(3, DEPTH, seed, peak=4.0 * (seed - 5))[-1][:DEPTH])
        grow = deciding(q, neighbour)
        drafts = every_draft(chain(DEPTH), q, "without_replacement", grow)
        lengths.append(drafts.valid.sum(-1).tolist())
        assert inexactness(rule, chain(DEPTH), p, q, grow=grow) < 1e-12
    assert lengths[0] != lengths[1] and len(set(lengths[1])) > 1
    assert inexactness(rule, chain(DEPTH), p, q, drafts=_selected(q)) > 1e-3


def _selected(q: list[Tensor]) -> EnumeratedDrafts:
    """Drafts in full, of which only values with a high joint probability are verified: TETRIS as published."""
    drafts, reach = every_draft(chain(DEPTH), q, "without_replacement"), 1.0
    for node in range(1, DEPTH + 1):
        reach = reach * q[node - 1][drafts.code[:, node - 1]].gather(1, drafts.value[:, node, None])[:, 0]
        drafts.valid[:, node] = reach >= 0.15
    return drafts


@pytest.mark.whole
def test_sampled_rows_of_a_batch_have_the_targets_distribution() -> None:
    def sampled(length: object, rows: int) -> object:
        return mmspec.generate(
            narrow(),
            input_ids=PROMPT.expand(rows, -1),
            drafter=SmallModel(narrow(0.2), length),
            seed=4,
            do_sample=True,
            max_new_tokens=STEPS + 2,
            top_k=0,
            temperature=1.0,
            return_dict=True,
        )

    out, longest = sampled(BatchBudget(nodes=ROWS, longest=3), ROWS), sampled(FixedLength(3), 1000)
    assert p_value(out.sequences[:, 3 : 3 + STEPS], exact_law(1.0)) > 1e-3
    assert 1.05 < out.stats.accept_length < longest.stats.accept_length - 0.05


@pytest.mark.parametrize("name", ("small", "eagle"))
def test_greedy_text_is_the_models_and_no_round_exceeds_the_budget(name: str) -> None:
    budget, inputs = BatchBudget(nodes=7, longest=4), prompt("llama", batch=4)
    drafter = SmallModel(noisy("llama"), budget) if name == "small" else make(name).with_shape(Chain(budget))
    options = dict(max_new_tokens=16, do_sample=False)
    out = mmspec.generate(tiny("llama"), drafter=(watched := Watched(drafter)), **options, **inputs)
    assert torch.equal(out, tiny("llama").generate(**inputs, **options))
    counts = [sum(len(seen.drafted(row)) for row in range(4)) for seen in watched.rounds]
    assert max(counts) == 7 and len({seen.draft.tree.nodes for seen in watched.rounds}) > 1


def test_its_text_has_all_settings() -> None:
    assert parse("batch:nodes=9,longest=4", "image", "controller").make() == BatchBudget(9, 4)
    for wrong in ("batch:nodes=0", "batch:longest=0"):
        with pytest.raises(ValueError, match="expected at least 1, got 0"):
            parse(wrong, "vlm", "controller").make()
