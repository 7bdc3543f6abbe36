"""Every term against its definition, written out place by place and token by token."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training.losses import LOSSES, jsd, list_mle, terms_of
from tests.vlm.training.predictions import perfect, prediction


def laws(one: DraftPrediction) -> list[tuple[list[float], list[float]]]:
    """(drafter's law, target's law) of every place."""
    return [(q.tolist(), p.tolist()) for q, p in zip(one.student.softmax(-1), one.teacher.softmax(-1), strict=True)]


def smooth_l1(one: DraftPrediction) -> list[float]:
    def distance(d: float) -> float:
        return 0.5 * d * d if abs(d) < 1 else abs(d) - 0.5

    rows = (one.feature - one.truth).tolist()
    return [sum(map(distance, row)) / len(row) for row in rows]


def list_mle_of(one: DraftPrediction, top: int) -> list[float]:
    values = []
    for z, target in zip(one.student.tolist(), one.teacher.tolist(), strict=True):
        order = sorted(range(len(target)), key=lambda v: -target[v])[:top]
        tails = [sum(math.exp(z[v]) for v in order[i:]) for i in range(len(order))]
        values.append(-sum(z[v] - math.log(tail) for v, tail in zip(order, tails, strict=True)))
    return values


DEFINITIONS = {
    "smooth_l1": smooth_l1,
    "cross_entropy": lambda one: [-sum(b * math.log(a) for a, b in zip(q, p, strict=True)) for q, p in laws(one)],
    "hard_cross_entropy": lambda one: [
        -math.log(q[x]) for (q, _), x in zip(laws(one), one.token.tolist(), strict=True)
    ],
    "forward_kl": lambda one: [sum(b * math.log(b / a) for a, b in zip(q, p, strict=True)) for q, p in laws(one)],
    "reverse_kl": lambda one: [sum(a * math.log(a / b) for a, b in zip(q, p, strict=True)) for q, p in laws(one)],
    "jsd": lambda one: [
        sum(
            0.5 * b * math.log(2 * b / (a + b)) + 0.5 * a * math.log(2 * a / (a + b)) for a, b in zip(q, p, strict=True)
        )
        for q, p in laws(one)
    ],
    "l1": lambda one: [sum(abs(a - b) for a, b in zip(q, p, strict=True)) for q, p in laws(one)],
    "total_variation": lambda one: [1 - sum(map(min, q, p)) for q, p in laws(one)],
    "list_mle": lambda one: list_mle_of(one, 10),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_term_is_its_definition(name: str) -> None:
    one = prediction()
    expected = torch.tensor(DEFINITIONS[name](one))
    assert torch.allclose(LOSSES[name].places(one), expected, atol=1e-5)
    assert torch.allclose(LOSSES[name](one), expected.mean(), atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_reach_the_drafter(name: str) -> None:
    one = prediction()
    LOSSES[name](one).backward()
    read = one.feature if name == "smooth_l1" else one.student
    assert read.grad.isfinite().all() and (read.grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("name", ["smooth_l1", "forward_kl", "reverse_kl", "jsd", "l1", "total_variation"])
def test_a_distance_is_zero_at_equality(name: str) -> None:
    assert LOSSES[name](perfect()).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["cross_entropy", "forward_kl", "reverse_kl", "jsd", "smooth_l1"])
def test_equality_is_where_a_smooth_term_is_flat(name: str) -> None:
    one = perfect()
    LOSSES[name](one).backward()
    for read in (one.student, one.feature):
        assert read.grad is None or read.grad.abs().max() < 1e-6


@pytest.mark.parametrize("name", LOSSES)
def test_no_place_costs_nothing(name: str) -> None:
    one = prediction(n=0)
    loss = LOSSES[name](one)
    loss.backward()
    assert loss.item() == 0


def test_the_order_that_counts_is_the_targets() -> None:
    def value(student: list[float]) -> float:
        return list_mle(3)(
            DraftPrediction(torch.tensor([student]), torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.zeros(1), 0)
        ).item()

    right = value([3.0, 2.0, 1.0, 0.0])
    assert right == value([3.0, 2.0, 1.0, 50.0])  # the fourth token is outside of the top three
    assert right < value([3.0, 1.0, 2.0, 0.0]) < value([1.0, 2.0, 3.0, 0.0])


def test_beta_weighs_both_sides_of_the_jensen_shannon_divergence() -> None:
    one, beta = prediction(), 0.2
    expected = []
    for q, p in laws(one):
        m = [beta * b + (1 - beta) * a for a, b in zip(q, p, strict=True)]
        expected.append(
            sum(beta * b * math.log(b / c) + (1 - beta) * a * math.log(a / c) for a, b, c in zip(q, p, m, strict=True))
        )
    assert torch.allclose(jsd(beta).places(one), torch.tensor(expected), atol=1e-5)
    with pytest.raises(ValueError, match="jsd: expected beta between 0 and 1, got 1"):
        jsd(1)


def test_tvd_plus_plus_is_the_scaled_gradient_of_the_total_variation() -> None:
    """A constant baseline drops out of an expectation in full, so all that is left is one over the deviation."""
    one, other = prediction(), prediction()
    LOSSES["total_variation"](one).backward()
    LOSSES["tvd_plus_plus"](other).backward()
    q, p = other.student.softmax(-1), other.teacher.softmax(-1)
    share = (q * (p > q)).sum(-1).mean().item()
    assert torch.allclose(other.student.grad, one.student.grad / math.sqrt(share * (1 - share)), atol=1e-6)


def test_tokens_left_out_of_a_reduced_vocabulary_do_not_count() -> None:
    one = prediction()
    one.token[2] = -100
    values = LOSSES["hard_cross_entropy"].places(one)
    assert values[2] == 0 and (values[[0, 1, 3, 4]] > 0).all()
    torch.testing.assert_close(LOSSES["hard_cross_entropy"](one), values[[0, 1, 3, 4]].mean())


def test_places_that_do_not_count_do_not_thin_the_mean() -> None:
    """log 6 at every place that counts is log 6 in the mean, however many others there are."""
    even = torch.zeros(8, 6, requires_grad=True)
    token = torch.tensor([1, -100, 2, -100, 3, -1, 4, -100])
    loss = LOSSES["hard_cross_entropy"](DraftPrediction(even, torch.zeros(8, 6), token, 0))
    assert loss.item() == pytest.approx(math.log(6))
    loss.backward()
    assert not even.grad[token < 0].any() and even.grad[token >= 0].any(1).all()
    none = torch.zeros(2, 6, requires_grad=True)
    assert (
        LOSSES["hard_cross_entropy"](DraftPrediction(none, torch.zeros(2, 6), torch.tensor([-100, -1]), 0)).item() == 0
    )


def test_terms_are_read_from_text() -> None:
    assert terms_of("l1:10, list_mle:0.1,cross_entropy") == (
        (10.0, LOSSES["l1"]),
        (0.1, LOSSES["list_mle"]),
        (1.0, LOSSES["cross_entropy"]),
    )
    for text, sentence in (
        ("magic", "expected names of smooth_l1"),
        ("l1:x", "expected a positive"),
        ("", "expected names"),
    ):
        with pytest.raises(ValueError, match=f"loss: {sentence}"):
            terms_of(text)


def test_feature_losses_require_drafters_that_predict_features() -> None:
    one = prediction()
    with pytest.raises(ValueError, match="smooth_l1: expected a drafter that predicts features"):
        LOSSES["smooth_l1"](DraftPrediction(one.student, one.teacher, one.token, 0))
