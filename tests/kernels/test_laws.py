"""The vocabulary-wide ops, against formulas written out."""

from __future__ import annotations

import pytest
import torch

from mmspec.kernels.block_verification import block_thresholds
from mmspec.kernels.law import law_of, mass_at, residual_law, residual_mass
from mmspec.kernels.reflection_coupling import reflect_point, reflect_threshold
from mmspec.kernels.sibling_thresholds import kseq_discount, kseq_residual, law_without, match_thresholds

SIZES = (1, 7, 127, 1013)


def laws(size: int, rows: int = 3, nodes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(2, rows, nodes, size, dtype=torch.float64).softmax(-1))


def test_distributions_keep_double_and_widen_half() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 1.0]])
    assert law_of(scores.double()).dtype == torch.float64
    assert law_of(scores.bfloat16()).dtype == torch.float32
    assert law_of(scores)[0, 1] == 0


@pytest.mark.parametrize("size", SIZES)
def test_masses_and_residuals(size: int) -> None:
    p, q = laws(size)
    alpha, beta = torch.rand(2, 3, 4, dtype=torch.float64)
    expected = (alpha[..., None] * p - beta[..., None] * q).clamp_min(0)
    torch.testing.assert_close(residual_mass(p, q, alpha, beta), expected.sum(-1))
    found = residual_law(p[:, 0], q[:, 0], alpha[:, 0], beta[:, 0])
    empty = expected[:, 0].sum(-1) == 0
    torch.testing.assert_close(found, torch.where(empty[:, None], p[:, 0], expected[:, 0]))
    torch.testing.assert_close(residual_law(p[:, 0], p[:, 0], *torch.ones(2, 3, dtype=torch.float64)), p[:, 0])
    poison = torch.full_like(p[:, 0], torch.nan)
    torch.testing.assert_close(residual_law(p[:, 0], poison, alpha[:, 0], beta[:, 0]), p[:, 0])


def test_lookups_stay_in_range() -> None:
    law = torch.arange(24.0).view(2, 3, 4)
    found = mass_at(law, torch.tensor([[2, -1, 0]]), torch.tensor([[1, 99, -5], [3, 0, 2]]))
    assert found.tolist() == [[9, 3, 0], [23, 12, 14]]


@pytest.mark.parametrize("size", SIZES)
def test_block_thresholds_are_the_recursion(size: int) -> None:
    p, q = laws(size, nodes=5)
    ratio = torch.rand(3, 4, dtype=torch.float64) * 2
    ratio[0, 1], ratio[1, 3] = 0, 1e30
    drawn = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4])
    child_p = torch.nn.functional.pad(ratio, (1, 0), value=1)
    live = torch.nn.functional.pad(drawn, (1, 0), value=True)
    found, weight, followed = block_thresholds(child_p, torch.ones_like(child_p), p, q, torch.arange(5), live)
    assert torch.equal(followed, torch.nn.functional.pad(drawn.double(), (0, 1)))
    for row in range(3):
        prefix = 1.0
        for i in range(int(drawn[row].sum()) + 1):
            prefix = prefix if i == 0 else min(1.0, prefix * float(ratio[row, i - 1]))
            if i < 4 and drawn[row, i]:
                mass = float((prefix * p[row, i] - q[row, i]).clamp_min(0).sum())
                height = mass / (mass + 1 - prefix) if mass + 1 - prefix > 0 else 1.0
            else:
                height = prefix
            assert float(weight[row, i]) == pytest.approx(prefix, abs=1e-12)
            assert float(found[row, i]) == pytest.approx(height, abs=1e-12)


def test_match_counts_a_token_once_and_ignores_undrawn_tokens() -> None:
    mass, token = torch.tensor([[0.0, 0.5, 0.5, 0.2, 0.1]]), torch.tensor([[0, 4, 4, 7, 8]])
    earlier = torch.zeros(1, 5, 5, dtype=torch.bool)
    for row in range(2, 5):
        earlier[0, row, 1:row] = True
    found = match_thresholds(mass, token, earlier, None)
    torch.testing.assert_close(found[0, 1:], torch.tensor([0.5, 0.0, 0.4, 0.1 / 0.3]))
    live = torch.tensor([[True, False, True, False, True]])
    torch.testing.assert_close(match_thresholds(mass, token, earlier, live)[0, 1:], torch.tensor([0, 0.5, 0, 0.2]))


def test_distributions_without_excluded_tokens() -> None:
    law = torch.tensor([[0.5, 0.3, 0.2]])
    token = torch.tensor([[0, 0, 2]])
    assert law_without(law, token, torch.tensor([[True, False, False]]))[0].tolist() == pytest.approx([0, 0.3, 0.2])
    assert torch.equal(law_without(law, token, torch.zeros(1, 3, dtype=torch.bool)), law)
    every = law_without(law, torch.tensor([[0, 1, 2]]), torch.ones(1, 3, dtype=torch.bool))
    assert torch.equal(every, law)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_kseq_leaves_a_residual(size: int, dtype: torch.dtype) -> None:
    p, q = (t.to(dtype) for t in laws(size))
    count = torch.tensor([[0, 1, 2, 5]]).expand(3, -1)
    rho, scale = kseq_discount(p, q, count)
    n, small = count.to(dtype), 2e-6 if dtype == torch.float32 else 1e-12
    assert (rho >= 1).all() and (rho <= n.clamp_min(1)).all() and (rho[:, :2] == 1).all()
    overlap = torch.minimum(p / rho[..., None], q)
    beta = overlap.sum(-1)
    torch.testing.assert_close(scale * beta, 1 - (1 - beta) ** n, atol=small, rtol=small)
    residual = p - scale[..., None] * overlap
    assert residual.min() > -small
    torch.testing.assert_close(residual.sum(-1), (1 - beta) ** n, atol=small * 10, rtol=0)
    law = kseq_residual(p[:, 3], q[:, 3], rho[:, 3], scale[:, 3])
    assert (law >= 0).all() and (law.sum(-1) > 0).all()


@pytest.mark.parametrize("width", (1, 3, 64))
def test_reflection_is_a_ratio_and_a_mirror(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    x, mq, mp = torch.randn(3, 50, width, generator=generator, dtype=torch.float64)
    scale = torch.rand(50, 1, generator=generator, dtype=torch.float64) + 0.2
    log_ratio = ((x - mq).square() - (x - mp).square()).sum(-1) / (2 * scale[:, 0] ** 2)
    torch.testing.assert_close(reflect_threshold(x, mq, mp, scale), log_ratio.clamp_max(0).exp())
    y = reflect_point(x, mq, mp, scale)
    # the image lies as far from p's mean as the value from q's, mirrored along the line between the means
    torch.testing.assert_close((y - mp).norm(dim=-1), (x - mq).norm(dim=-1))
    along = torch.nn.functional.normalize(mq - mp, dim=-1)
    torch.testing.assert_close(((y - mp) * along).sum(-1), -((x - mq) * along).sum(-1))
    assert reflect_point(x, mp, mp, scale).isfinite().all()
