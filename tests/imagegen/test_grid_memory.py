"""The grid memory: keys of neighbours, the law of sampled images with mutants, and what requests share."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from mmspec.certify.samples import chi_square
from mmspec.core.drafting.stored_laws import StoredLawTrees
from mmspec.core.round.draft import Law
from mmspec.imagegen import grid_memory
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.grid_memory import GridMemory, GridMemoryState, GridTable
from mmspec.imagegen.target import Guidance
from mmspec.methods import parse
from tests.imagegen.eagle.small import lined
from tests.imagegen.eagle.test_lossless import joint
from tests.imagegen.tiny import TinyModel, generate

LABELS = [0, 1, 3]


def test_keys_are_neighbours_on_the_grid() -> None:
    side = grid_memory._sources(Geometry.square(3))
    assert side[0] == (-1, -1, -1) and side[1] == (-1, -1, 0)
    assert side[3] == (-1, 0, -1)  # a row begins without a left neighbour, not with the end of the row above
    assert side[5] == (1, 2, 4)
    lines = grid_memory._sources(Geometry(((2, 2),), row_end=9, tail=(8,)))
    assert lines[5] == (1, 2, 4) and lines[6] == (-1, -1, -1)  # the row end, and the tail
    frames = grid_memory._sources(Geometry(((1, 2),), frames=2))
    assert frames[2] == (-1, -1, -1)  # another frame
    values = SimpleNamespace(sources=side)
    assert GridMemoryState.key(values, [1, 2, 3, 4]) == (1, 2, 4)  # not (2, 3, 4), the values before it
    assert GridMemoryState.key(values, [1, 2, 3]) == (-1, 1, -1)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_greedy_images_are_those_of_plain_decoding(scale: float) -> None:
    for model in (TinyModel(), lined(), TinyModel(Geometry(((2, 2),), frames=3))):
        plain = generate(model, LABELS, temperature=0, guidance_scale=scale)
        table = GridTable(4)
        runs = [generate(model, LABELS, memory(4, table), temperature=0, guidance_scale=scale) for _ in range(2)]
        assert all(torch.equal(run.tokens, plain.tokens) for run in runs)
        assert runs[1].stats.target_passes < runs[0].stats.target_passes


def memory(width: int = 3, table: GridTable | None = None, **settings: object) -> GridMemory:
    return GridMemory(nodes=5, depth=3, width=width, table=table, **settings)


SMALL = Geometry.square(2)


def sampled(drafter: GridMemory, rule: str = "exact", rows: int = 2500, seed: int = 0) -> tuple[Tensor, float]:
    """How often each image was drawn, int64 [V^total], and the accept length."""
    out = generate(small(), [1] * rows, drafter, rule, guidance_scale=2.0, temperature=0.9, seed=seed)
    weight = torch.tensor([27, 9, 3, 1])
    return torch.bincount((out.tokens * weight).sum(-1), minlength=81), out.stats.accept_length


def small() -> TinyModel:
    return TinyModel(SMALL, codes=3, sharp=0.7)


def warm(width: int = 2, **settings: object) -> GridMemory:
    """A memory that knows the small target's distributions, two of three codes each."""
    drafter = memory(width, GridTable(width), **settings)
    sampled(drafter, rows=60, seed=77)
    return drafter


def statistic(observed: Tensor) -> tuple[float, float]:
    test = chi_square(observed, joint(small(), 1, Guidance(2.0), 0.9) * observed.sum())
    return test.statistic, test.limit


@pytest.mark.parametrize(
    ("rule", "drawn"),
    [
        ("exact", "without_replacement"),
        pytest.param("recursive", "without_replacement", marks=pytest.mark.whole),
        pytest.param("match", "deterministic", marks=pytest.mark.whole),
    ],
)
def test_sampled_images_have_the_distribution_of_plain_decoding(rule: str, drawn: str) -> None:
    observed, length = sampled(warm(drawn=drawn), rule)
    value, limit = statistic(observed)
    assert value < limit and length > 1.2, f"chi-square {value:.1f} over the limit {limit:.1f}"


def test_a_record_that_is_not_renormalised_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    record = StoredLawTrees.record

    def with_rest(self: StoredLawTrees, laws: list, device: torch.device) -> Law:
        """The stored probabilities as they are, with the rest on a code that is not stored."""
        law = record(self, laws, device)
        rest = [[max(1 - sum(entry.mass), 1e-9) for entry in row] for row in laws]
        other = [[next(code for code in range(3) if code not in entry.ids) for entry in row] for row in laws]
        scores = torch.cat([law.scores, torch.tensor(rest)[..., None].log()], -1)
        return replace(law, scores=scores, ids=torch.cat([law.ids, torch.tensor(other)[..., None]], -1))

    drafter = warm()
    monkeypatch.setattr(StoredLawTrees, "record", with_rest)
    value, limit = statistic(sampled(drafter, rows=1500)[0])
    assert value > limit


def test_stored_distributions_are_guided() -> None:
    """The memory of a guided request holds the guided distribution of the first value, not a branch's."""
    model, table = small(), GridTable(3)
    generate(model, [1], memory(3, table), guidance_scale=4.0, temperature=0.9)
    target = generate_first(model, Guidance(4.0), 0.9)
    (part,) = table.parts.values()
    stored = part.laws[(-1, -1, -1)]
    assert torch.allclose(torch.tensor(stored.mass), target[torch.tensor(stored.ids)].float(), atol=1e-5)
    assert not torch.allclose(target, generate_first(model, Guidance(1.0), 0.9), atol=1e-2)


def generate_first(model: TinyModel, guidance: Guidance, temperature: float) -> Tensor:
    """float64 [V], the law of the first value."""
    return joint(model, 1, guidance, temperature).view(model.codes, -1).sum(-1)


def test_a_row_alone_is_the_row_in_a_batch() -> None:
    model, labels = TinyModel(), [0, 1, 3, 2]
    together = generate(model, labels, memory(), guidance_scale=2.0, seed=[5, 6, 7, 8]).tokens
    for row, label in enumerate(labels):
        alone = generate(model, [label], memory(), guidance_scale=2.0, seed=[5 + row]).tokens
        assert torch.equal(alone[0], together[row])


def test_requests_share_a_table_of_their_settings_only() -> None:
    model, table = TinyModel(), GridTable(3)
    for temperature, scale in ((1.0, 2.0), (0.7, 2.0), (1.0, 3.0), (1.0, 2.0)):
        generate(model, [0], memory(3, table), temperature=temperature, guidance_scale=scale, seed=0)
    assert len(table.parts) == 3
    with pytest.raises(ValueError, match="use one table per model"):
        generate(TinyModel(codes=12), [0], memory(3, table))


def test_the_text_form_and_refusals() -> None:
    made = parse("memory:nodes=5,depth=3,width=10,drawn=deterministic", "image", "decoding").make()
    assert made == GridMemory(5, 3, 10, "deterministic")
    for wrong in ({"nodes": 0}, {"width": 0}, {"depth": 0}, {"drawn": "never"}, {"table": GridTable(3)}):
        with pytest.raises(ValueError, match="expected"):
            GridMemory(**wrong)
    with pytest.raises(ValueError, match="expected at least 1"):
        GridTable(most=0)
