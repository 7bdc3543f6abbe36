"""Losses in chunks of places: values and gradients of one prediction of all places, and the head's passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training import chunked_losses
from mmspec.vlm.training.chunked_losses import TermLosses, map_chunks, term_losses
from mmspec.vlm.training.losses import LOSSES
from mmspec.vlm.training.teacher_scores import TeacherScores

PLACES, WIDTH, VOCAB = 11, 8, 40
IDS = torch.tensor([0, 3, 4, 9, 17, 25, 39])
FACTORS = (0.3, 1.1, 0.7)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_losses, "CHUNK_SCORES", 3 * VOCAB)


def head(words: int, seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(WIDTH, words, bias=False)


def whole(names: list[str], seed: int = 0) -> tuple[TermLosses, list[Tensor]]:
    """Losses at all places, and the gradients of states and head."""
    torch.manual_seed(seed)
    rows, truth = torch.randn(PLACES, WIDTH, requires_grad=True), torch.randn(6, WIDTH)
    token, own, target = torch.randint(VOCAB, (PLACES,)), head(VOCAB, 1), head(VOCAB, 2)
    token[4] = -100
    teacher = TeacherScores.of(target, truth, None)
    source = torch.randint(6, (PLACES,)).sort().values

    def predict(places: Tensor) -> DraftPrediction:
        out = rows[places]
        return DraftPrediction(
            own(out), teacher(source[places]), token[places], 0, out, torch.tanh(truth[source[places]])
        )

    made = term_losses(
        predict, PLACES, VOCAB, [LOSSES[name] for name in names], rows.device, lambda one, places: places[:, None]
    )
    weight = torch.linspace(0.5, 2, PLACES)
    ((made.weighted(FACTORS[: len(names)]) * weight).sum() + made.mean(FACTORS[: len(names)])).backward()
    return made, [rows.grad, own.weight.grad]


@pytest.mark.parametrize(
    "names", (["cross_entropy", "hard_cross_entropy", "smooth_l1"], ["tvd_plus_plus"], ["l1"]), ids=str
)
def test_chunks_give_the_values_and_gradients_of_all_places(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, gradients = whole(names)
    monkeypatch.setattr(chunked_losses, "CHUNK_SCORES", 3 * VOCAB)
    made, found = whole(names)
    for one, two in zip((*gradients, expected.values), (*found, made.values), strict=True):
        torch.testing.assert_close(two, one, atol=1e-6, rtol=1e-5)
    assert torch.equal(made.counted, expected.counted) and torch.equal(made.hits, expected.hits)
    assert made.figures[:, 0].tolist() == list(range(PLACES))
    if "hard_cross_entropy" in names:
        assert not made.counted[4, 1] and made.counted.sum() == 3 * PLACES - 1


def test_the_mean_is_that_of_the_terms() -> None:
    torch.manual_seed(0)
    one = DraftPrediction(torch.randn(5, VOCAB), torch.randn(5, VOCAB), torch.tensor([3, -100, 7, 0, -100]), 0)
    terms = [LOSSES[name] for name in ("cross_entropy", "hard_cross_entropy")]
    made = term_losses(
        lambda places: DraftPrediction(one.student[places], one.teacher[places], one.token[places], 0),
        5,
        VOCAB,
        terms,
        torch.device("cpu"),
    )
    expected = 0.3 * terms[0](one) + 1.1 * terms[1](one)
    torch.testing.assert_close(made.mean(FACTORS[:2]), expected)


def test_a_chunk_is_as_wide_as_the_bound_allows(small_chunks: None) -> None:
    sizes = []
    passes = head(VOCAB, 0)
    passes.register_forward_hook(lambda module, given, out: sizes.append(len(out)))
    teacher = TeacherScores.of(passes, torch.randn(PLACES, WIDTH), IDS, with_mass=True)
    assert sizes == [3, 3, 3, 2]
    assert teacher(torch.arange(PLACES)).shape == (PLACES, len(IDS)) and len(sizes) == 4  # kept from now on


def test_a_chunk_of_repeated_places_costs_a_row_of_the_head_each() -> None:
    sizes = []
    target, states = head(VOCAB, 0), torch.randn(6, WIDTH)
    target.register_forward_hook(lambda module, given, out: sizes.append(len(out)))
    scores = TeacherScores.of(target, states, None)(torch.tensor([4, 4, 4, 1, 1]))
    assert sizes == [2]
    torch.testing.assert_close(scores, target(states[[4, 4, 4, 1, 1]]))


def test_a_reduced_vocabulary_keeps_its_scores_and_its_probability(small_chunks: None) -> None:
    target, states = head(VOCAB, 0), torch.randn(PLACES, WIDTH)
    teacher, logits = TeacherScores.of(target, states, IDS, with_mass=True), target(states)
    torch.testing.assert_close(teacher.scores, logits[:, IDS])
    torch.testing.assert_close(teacher.mass.exp(), logits.softmax(-1)[:, IDS].sum(-1))
    student, places = torch.randn(4, len(IDS)), torch.tensor([7, 0, 7, 3])
    q, p = torch.zeros(4, VOCAB), logits.softmax(-1)[places]
    q[:, IDS] = student.softmax(-1)
    torch.testing.assert_close(teacher.overlap(student, teacher(places), places), torch.minimum(q, p).sum(-1))


@pytest.mark.parametrize("count", (0, 1, 3, 10))
def test_no_place_is_lost(count: int, small_chunks: None) -> None:
    seen = []

    def compute(places: Tensor) -> tuple[Tensor, Tensor]:
        seen.extend(places.tolist())
        return places * 2, torch.ones(len(places), 4)

    with torch.no_grad():
        twice, ones = map_chunks(compute, count, VOCAB, torch.device("cpu"))
    assert twice.tolist() == [2 * place for place in range(count)] and ones.shape == (count, 4)
    assert seen == list(range(count))


def test_a_forward_pass_keeps_no_block_of_scores(small_chunks: None) -> None:
    """What autograd saves for the backward pass holds no tensor as wide as the vocabulary but the weights."""
    rows, own = torch.randn(PLACES, WIDTH, requires_grad=True), head(VOCAB, 1)
    saved: list[Tensor] = []

    def predict(places: Tensor) -> DraftPrediction:
        return DraftPrediction(own(rows[places]), torch.zeros(len(places), VOCAB), places, 0)

    def save(value: Tensor) -> Tensor:
        saved.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        made = term_losses(predict, PLACES, VOCAB, [LOSSES["cross_entropy"]], rows.device)
        loss = made.mean((1.0,))
    assert max((value.numel() for value in saved if value is not own.weight), default=0) < VOCAB
    loss.backward()
    assert float(own.weight.grad.abs().sum()) > 0
