"""What a step is asked and what it may answer; everything else ends with one sentence."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

from mmspec.certify import Shape, StepFailed, certify
from mmspec.certify.cases import case_of, cases_of, chain_of
from mmspec.certify.independence import neighbour_rounds
from mmspec.certify.rules import step_of
from mmspec.certify.step import AcceptStep, load_step
from tests.certify import planted

CASE = case_of("random", chain_of(2), 3, 0)


def ask(answer: object) -> None:
    AcceptStep(lambda tokens: answer)(CASE.question, None)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, r"expected \(accepted, next token\).*got NoneType"),
        ((1, 2, 3, 4), "got 4 things"),
        ((torch.zeros(9, 2), torch.zeros(9)), r"accepted: expected int \[9\], got torch.float32 \[9, 2\]"),
        ((torch.zeros(9).long(), [[0]] * 9), r"next token: expected int \[9\], got torch.int64 \[9, 1\]"),
        ((torch.zeros(9).long(), torch.full((9,), 3)), "next token: expected numbers from 0 to 2, got 3 to 3"),
        ((torch.full((9,), -1), torch.zeros(9).long()), "accepted: expected numbers from 0 to 2, got -1 to -1"),
        ((torch.zeros(9).long(), torch.zeros(9).long(), "all"), "kept: expected 9 whole numbers, got str"),
        ((torch.zeros(9, dtype=torch.bool), torch.zeros(9).long()), "got torch.bool"),
    ],
)
def test_a_wrong_answer_reports_one_error(answer: object, sentence: str) -> None:
    with pytest.raises(StepFailed, match=sentence) as failed:
        ask(answer)
    assert "\n" not in str(failed.value)


def test_lists_and_arrays_are_read() -> None:
    answer = AcceptStep(lambda tokens: ([0] * 9, numpy.zeros(9, dtype="i4")))(CASE.question, None)
    assert answer.node.dtype == answer.value.dtype == answer.kept.dtype == torch.int64


def raises(tokens: Tensor) -> None:
    raise RuntimeError("the kernel is not built")


def leaves(tokens: Tensor) -> None:
    raise SystemExit(3)


class NeedsAnEngine:
    def __init__(self, engine: object):
        self.engine = engine

    def __call__(self, tokens: Tensor) -> None: ...


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (raises, r"got RuntimeError \(the kernel is not built\)"),
        (leaves, "got SystemExit"),
        (NeedsAnEngine, "expected a class that is made without arguments, got TypeError"),
        (lambda logits, tokens: None, "expected arguments among tokens, q, p.*got logits, tokens"),
        (lambda q, p: None, "tokens at least"),
        (lambda tokens, /: None, "wrap it in a function"),
        (3, "expected a callable, got int"),
    ],
)
def test_an_unsuitable_step_reports_one_error(step: Callable, sentence: str) -> None:
    with pytest.raises(StepFailed, match=sentence) as failed:
        certify(step)
    assert "\n" not in str(failed.value)


def test_a_step_may_work_in_place() -> None:
    def greedy_hands(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        answer = planted.judge(tokens, q, p, uniforms)
        for array in (tokens, q, p, uniforms):
            array.zero_()
        return answer

    assert certify(greedy_hands, laws=("random",)).exact


def test_only_arguments_that_are_named_are_given() -> None:
    seen: list[dict] = []

    def curious(tokens: Tensor, parents: Tensor, top_k: int = 0, **rest: object) -> tuple[Tensor, Tensor]:
        seen.append({"parents": parents, "top_k": top_k, **rest})
        return torch.zeros(len(tokens)).long(), torch.zeros(len(tokens)).long()

    AcceptStep(curious)(CASE.question, None)
    assert seen[0].keys() == {"parents", "top_k"} and seen[0]["parents"].tolist() == [0, 1] and seen[0]["top_k"] == 3


def test_a_question_holds_the_distributions_of_its_drafted_tokens() -> None:
    case = case_of("top-k", Shape((0, 0, 1)), 3, 5)
    asked = case.question
    assert asked.q.shape == (4, 3, 3) and asked.p.shape == (4, 4, 3) and asked.top_k == 2
    assert torch.equal(asked.q[:, 0], asked.q[:, 1])  # siblings have one law
    assert bool((asked.q.gather(2, asked.tokens[..., None]) > 0).all())
    assert bool(((asked.q > 0).sum(-1) == 2).all()) and bool(((asked.q_uncut > 0).sum(-1) == 3).all())
    assert float(case.drafts.chance.sum()) == pytest.approx(1)


def test_deterministic_drafts_have_one_hot_distributions_and_distinct_siblings() -> None:
    case = case_of("random", Shape((0, 0), "deterministic"), 3, 0)
    assert len(case.drafts.value) == 6 and bool((case.question.tokens[:, 0] != case.question.tokens[:, 1]).all())
    assert torch.equal(case.question.q.argmax(-1), case.question.tokens)
    assert len(case_of("random", Shape((0, 0), "deterministic", distinct=False), 3, 0).drafts.value) == 9


@pytest.mark.parametrize("shape", (Shape((0, 1)), Shape((0, 0, 1), "deterministic"), Shape((0, 0, 1, 1))))
def test_the_company_accepts_all_or_rejects_at_once(shape: Shape) -> None:
    accepting, rejecting = neighbour_rounds(shape, 3)
    step = AcceptStep(step_of("exact", shape.drawn))
    assert step(accepting.question, accepting.uniforms).node.item() > 0
    assert step(rejecting.question, rejecting.uniforms).node.item() == 0


def test_distributions_with_too_few_values_for_the_siblings_are_left_out() -> None:
    assert "disjoint" not in {case.kind for case in cases_of(Shape((0, 0, 0)), 4)}
    with pytest.raises(ValueError, match="no more siblings than values"):
        certify(planted.takes_trees, shapes=[Shape((0, 0, 0, 0))], values=3)


@pytest.mark.parametrize(
    ("parents", "drawn"),
    [((1,), "deterministic"), ((), "deterministic"), ((0, 0), "somehow"), ((-1,), "deterministic")],
)
def test_a_wrong_tree_is_refused(parents: tuple, drawn: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Shape(parents, drawn)


def test_a_tree_needs_a_step_with_an_argument_parents() -> None:
    with pytest.raises(ValueError, match="expected a step with an argument `parents`"):
        certify(planted.right, shapes=[Shape((0, 0))])
    with pytest.raises(ValueError, match="values: expected at least 2"):
        certify(planted.right, values=1)


def test_steps_are_found_by_name() -> None:
    assert load_step("tests.certify.planted:right") is planted.right
    assert load_step("tests.certify.planted:Tensor.clone") is Tensor.clone


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("planted", "expected MODULE:CALLABLE, got 'planted'"),
        (":right", "expected MODULE:CALLABLE"),
        ("no.such.module:step", "got 'no.such.module' .ModuleNotFoundError"),
        ("tests.certify.planted:nothing", "expected a name in tests.certify.planted, got 'nothing'"),
        ("tests.certify.planted:np.pi", "expected a callable, got 'np.pi', which is float"),
    ],
)
def test_a_wrong_name_reports_one_error(spec: str, sentence: str) -> None:
    with pytest.raises(StepFailed, match=sentence) as failed:
        load_step(spec)
    assert "\n" not in str(failed.value)
