"""Several drafters for a request: one law on record, a route before the draw, and nothing but the speed changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.rules import RecursiveRejection, Rule, Traversal
from mmspec.vlm.drafters import PromptLookup
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.several import DraftMixture, Route, SeveralState
from tests.core.drafting.test_heap import Tables, codes_of, every_tree, inexactness, tables
from tests.vlm.drafters.test_merged import assert_rows_alone_and_together, assert_targets_law, leaning_eagle
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import prompt, tiny

TREE = StaticTree((0, 0, 0, 1, 1))
SHAPES = {"chain": Chain(FixedLength(3)), "tree": TREE, "best": BestFirst(6, 3, 2), "dynamic": DynamicTree(6, 3, 2)}


def pair(kind: type[Route], shape: Shape = TREE, names: tuple[str, str] = ("eagle", "msd")) -> Route:
    return kind([make(name) for name in names], shape)


class TableState(Tables, PairState):
    """A drafter's state over context tables."""

    deepest, shape = 9, None
    drafter = SimpleNamespace(name="tables")


class RecordedState(SeveralState):
    """The state over two tables, which notes the distributions that it means to draw from."""

    def __init__(self, control: Route, q: list[list[Tensor]], weight: Tensor, rows: int):
        super().__init__(control, [TableState(own, rows) for own in q])
        self.weight, self.q, self.laws = weight.log().expand(rows, -1), q, []

    def law(self, out: Tensor, depth: int) -> Tensor:
        code, share = out[..., 0].long(), self.weight.exp().double()
        self.laws.append(sum(own[depth - 1][code] * share[:, n, None, None] for n, own in enumerate(self.q)))
        return super().law(out, depth)


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_the_joint_law_of_a_mixture_is_the_targets(rule: Rule) -> None:
    shape, ((p, one), (_, two)) = BestFirst(4, 2, 2, 0.1), (tables(seed, 2) for seed in (3, 5))
    mean = [(a + b) / 2 for a, b in zip(one, two, strict=True)]
    states: list[RecordedState] = []

    def state(_: object, rows: int) -> RecordedState:
        states.append(RecordedState(SimpleNamespace(), [one, two], torch.tensor([[0.5, 0.5]]), rows))
        return states[-1]

    draft, chance, _ = every_tree(shape, mean, make_state=state)
    assert float(chance.sum()) == pytest.approx(1)
    assert inexactness(rule, draft, chance, p, mean) < 1e-12 < 1e-3 < inexactness(rule, draft, chance, p, one)
    code, depth = codes_of(draft), draft.tree.depth
    for node in range(1, draft.tree.nodes):
        above = draft.tree.parent[:, node]
        for row in torch.nonzero(draft.valid[:, node])[::7, 0].tolist():
            law = draft.law.scores[row, draft.law.row[int(above[row])]].softmax(-1)
            expected = mean[int(depth[row, node]) - 1][code[row, above[row]]].float()
            assert torch.allclose(law, expected, atol=1e-6)


@pytest.mark.parametrize("kind", (Route, DraftMixture))
@pytest.mark.parametrize(
    "shape", ("best", *(pytest.param(name, marks=pytest.mark.whole) for name in ("chain", "tree")))
)
@pytest.mark.parametrize("sampled", (pytest.param(False, marks=pytest.mark.whole), True), ids=("greedy", "sampled"))
def test_two_identical_drafters_are_a_single_drafter(kind: type[Route], shape: str, sampled: bool) -> None:
    drafter = make("eagle").with_shape(SHAPES[shape])
    options = dict(prompt("llava", 1, "start", 2), max_new_tokens=12, do_sample=sampled, seed=[1, 2], return_dict=True)
    one = mmspec.generate(tiny("llava"), drafter=drafter, **options)
    two = mmspec.generate(tiny("llava"), drafter=kind([drafter, drafter]), **options)
    assert torch.equal(one.sequences, two.sequences) and one.stats.accepted == two.stats.accepted


@pytest.mark.parametrize("kind", (Route, DraftMixture))
@pytest.mark.parametrize("shape", ("dynamic", pytest.param("chain", marks=pytest.mark.whole)))
@pytest.mark.parametrize(
    "names", (("eagle", "vispec"), pytest.param(("msd", "medusa"), marks=pytest.mark.whole)), ids="+".join
)
def test_greedy_words_are_the_targets_own(kind: type[Route], shape: str, names: tuple[str, str]) -> None:
    options = dict(prompt("llava", 2, "start", 3), max_new_tokens=12, do_sample=False)
    drafter = pair(kind, SHAPES[shape], names)
    assert torch.equal(mmspec.generate(tiny("llava"), drafter=drafter, **options), tiny("llava").generate(**options))


@pytest.mark.parametrize("kind", (DraftMixture, pytest.param(Route, marks=pytest.mark.whole)))
@pytest.mark.parametrize(
    ("shape", "rule"), (("tree", "exact"), pytest.param("best", "recursive", marks=pytest.mark.whole))
)
def test_sampled_words_have_the_targets_distribution(kind: type[Route], shape: str, rule: str) -> None:
    torch.manual_seed(0)
    assert_targets_law(kind([leaning_eagle(), leaning_eagle()], SHAPES[shape]), rule, rows=1200)


@pytest.mark.parametrize("kind", (Route, pytest.param(DraftMixture, marks=pytest.mark.whole)))
@pytest.mark.parametrize("shape", ("tree", pytest.param("best", marks=pytest.mark.whole)))
def test_a_row_alone_drafts_what_it_drafts_in_a_batch(kind: type[Route], shape: str) -> None:
    assert_rows_alone_and_together(pair(kind, SHAPES[shape], ("eagle", "medusa")))


def test_every_row_takes_the_surest_drafter_and_only_chosen_drafters_go_on() -> None:
    watched = Watched(pair(Route, SHAPES["chain"], ("eagle", "vispec")))
    run = mmspec.vlm.start(
        tiny("llava"),
        drafter=watched,
        max_new_tokens=20,
        seed=[1, 2, 3],
        do_sample=True,
        **prompt("llava", 2, "start", 3),
    )
    chosen = set()
    run.step()
    for _ in range(4):
        state, before = watched.state, [own.passes for own in watched.state.states]
        run.step()
        first = [own.law(own.root[:, None], 1)[:, 0].softmax(-1).amax(-1) for own in state.states]
        # a draft moves no root, so the first distributions can still be read
        best, weight = torch.stack(first, -1).argmax(-1), torch.zeros(3, 2)
        used = [state.states.index(own) for own in state.active]
        weight[:, used] = state.weight.exp()
        assert torch.equal(weight.argmax(-1), best) and set(weight.flatten().tolist()) <= {0.0, 1.0}
        steps = [own.passes - count for own, count in zip(state.states, before, strict=True)]
        assert all((count > 2) == (number in used) for number, count in enumerate(steps))
        chosen |= set(best.tolist())
    assert chosen


def test_drafters_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="drafters: expected two or more trained drafters.*got Eagle"):
        Route([make("eagle")])
    with pytest.raises(ValueError, match="drafters: expected two or more trained drafters.*PromptLookup"):
        DraftMixture([make("eagle"), PromptLookup()])
    with pytest.raises(ValueError, match="drafters: expected drafters that read the same states"):
        Route([make("eagle"), make("eagle3")])
    with pytest.raises(ValueError, match="drafters: expected drafters that grow drafts level by level.*xpress"):
        mmspec.generate(
            tiny("llama"),
            drafter=Route([make("xpress"), make("xpress")]),
            input_ids=torch.tensor([[3, 4]]),
            max_new_tokens=3,
        )
    for name in ("eagle", "msd"):
        make(name).save_pretrained(tmp_path / name)
    first, second = (f"({name}@{tmp_path / name})" for name in ("eagle", "msd"))
    made = drafter_from_text(f"mixture:first={first},second={second},shape=(best:nodes=6)", tiny("llava"))
    assert isinstance(made, DraftMixture) and made.name == "mixture(eagle, msd)"
    assert all(drafter.shapes == (BestFirst(6),) * 2 for drafter in made.drafters)
