"""The reference round of the page on the code: the core emits the same tokens from the same random numbers."""

from __future__ import annotations

import pytest
import torch

from mmspec.core import Keys, Purpose
from mmspec.core.round.loop import DecodingRun
from mmspec.core.round.rules import TokenWise
from tests.docs.examples import imported

PURPOSES = {"draft": Purpose.DRAFT, "accept": Purpose.ACCEPT, "resample": Purpose.RESIDUAL}
VOCABULARY, TOKENS = 11, 40


def by_reference(module, tables: torch.Tensor, length: int, seed: int) -> tuple[list[int], list[int]]:
    """(tokens, accepted per round) of the reference, for first-order models with logits `tables` [2, V, V]."""
    keys, tokens, accepted = Keys.of(seed, 1), [0], []
    while len(tokens) <= TOKENS:
        new = module.step(
            lambda ids: tables[0, ids],
            lambda ids: tables[1, ids],
            tokens,
            length if accepted else 0,  # the first round is the prefill, which drafts nothing
            lambda purpose, n: keys.uniform(PURPOSES[purpose], n)[0].tolist() if n else [],
        )
        tokens, accepted = tokens + new, [*accepted, len(new) - 1]
        keys.round += 1
    return tokens[1 : TOKENS + 1], accepted


@pytest.mark.parametrize("length", (1, 4, 7))
def test_the_core_emits_the_tokens_of_the_reference_round(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    reference, domain = imported(monkeypatch, "reference_round"), imported(monkeypatch, "domain")
    generator = torch.Generator().manual_seed(length)
    rejected = 0
    for seed in range(20):
        tables = 1.5 * torch.randn(2, VOCABULARY, VOCABULARY, generator=generator)
        tables[1] = tables[0] + 0.7 * tables[1]
        target = domain.Melody(tables[0], torch.zeros(1, dtype=torch.long), TOKENS)
        run = DecodingRun(target, domain.Whistle(tables[1], length), TokenWise(), Keys.of(seed, 1)).run()
        tokens, accepted = by_reference(reference, tables, length, seed)
        assert target.notes[0] == tokens
        assert [row[0] for row in run.accepted][:-1] == accepted[:-1]  # the last round may end within its draft
        rejected += sum(number < length for number in accepted)
    assert rejected > 20  # residuals were drawn, not only bonus tokens


def test_a_wrong_residual_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, domain = imported(monkeypatch, "reference_round"), imported(monkeypatch, "domain")
    right, verify = reference.sample, reference.verify

    def wrong(target, drafted, laws, uniforms):
        accepted, _ = verify(target, drafted, laws, uniforms)
        return accepted, right(target[accepted], uniforms("resample", 1)[0])

    reference.verify = wrong
    tables = 1.5 * torch.randn(2, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
    target = domain.Melody(tables[0], torch.zeros(1, dtype=torch.long), TOKENS)
    DecodingRun(target, domain.Whistle(tables[1], 4), TokenWise(), Keys.of(0, 1)).run()
    assert target.notes[0] != by_reference(reference, tables, 4, 0)[0]
