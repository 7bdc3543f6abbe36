"""The domain of the page on domains: the joint law of its melodies, rows apart, and every round counted."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun
from mmspec.core.round.rules import TokenWise
from tests.docs.examples import imported, said

V, LENGTH, ROWS = 3, 4, 6000


def tables(seed: int = 0) -> tuple[Tensor, Tensor]:
    return 1.5 * torch.randn(2, V, V, generator=torch.Generator().manual_seed(seed))


def p_value(melodies: Tensor, table: Tensor) -> float:
    """Of all melodies of `LENGTH` notes behind note 0."""
    law = table.double().softmax(-1)
    joint = law[0]
    for _ in range(LENGTH - 1):
        joint = (joint.view(-1, V)[..., None] * law).flatten()
    code = sum(melodies[:, step] * V ** (LENGTH - 1 - step) for step in range(LENGTH))
    seen, expected = torch.bincount(code, minlength=V**LENGTH).double(), joint * len(melodies)
    common = expected >= 5
    seen, expected = (torch.cat([t[common], t[~common].sum()[None]]) for t in (seen, expected))
    keep = expected > 0
    seen, expected = seen[keep], expected[keep]
    return float(stats.chisquare(seen.numpy(), (expected * seen.sum() / expected.sum()).numpy()).pvalue)


@pytest.mark.parametrize(("length", "rule"), ((None, "exact"), (1, "token"), (3, "exact"), (3, "match")))
def test_melodies_have_the_targets_distribution(monkeypatch: pytest.MonkeyPatch, length: int | None, rule: str) -> None:
    module, (p, q) = imported(monkeypatch, "domain"), tables()
    drafter = None if length is None else module.Whistle(q, length)
    melodies, run = module.compose(p, drafter, torch.zeros(ROWS, dtype=torch.long), LENGTH, seed=2, rule=rule)
    assert melodies.shape == (ROWS, LENGTH) and p_value(melodies, p) > 1e-3
    assert run.exact and (run.accept_length > 1.05) == (length is not None)


def test_a_record_of_another_distribution_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    module, (p, q) = imported(monkeypatch, "domain"), tables()

    class Vain(module.Whistle):
        def propose(self, target, keys):
            draft = super().propose(target, keys)
            draft.law.scores = draft.law.scores * 0.5
            return draft

    melodies, _ = module.compose(p, Vain(q, 3), torch.zeros(ROWS, dtype=torch.long), LENGTH, seed=2)
    assert p_value(melodies, p) < 1e-6


def test_a_row_does_not_depend_on_the_others_and_ends_at_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    module, (p, q) = imported(monkeypatch, "domain"), tables()

    def notes(seeds: list[int]) -> list[list[int]]:
        target = module.Melody(p, torch.zeros(len(seeds), dtype=torch.long), 30)
        run = DecodingRun(target, module.Whistle(q, 5), TokenWise(), Keys.of(seeds, len(seeds))).run()
        kept = [[line[row] for line in run.accepted if line[row] is not None] for row in range(len(seeds))]
        # every round adds its correction, but for the last one, which may end within a draft
        assert all(30 <= sum(row) + len(row) <= 31 for row in kept)
        return target.notes

    together = notes([5, 6, 7])
    assert [len(row) for row in together] == [30] * 3 and together[1] == notes([6])[0]


def test_it_runs_as_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    melody, stats_line = said(monkeypatch, capsys, "use_domain")
    assert len(melody.split(",")) == 32 and stats_line.startswith("exact True notes a pass: ")
    assert float(stats_line.rsplit(" ", 1)[1]) > 1.5
