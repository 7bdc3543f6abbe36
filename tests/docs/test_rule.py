"""The rules of the page on rules: exact and relaxed as they say, on all laws and lengths, and through a model."""

from __future__ import annotations

import pytest
import torch

from mmspec.certify.enumeration import LAWS, contrasted_tables, enumerate_rule, expected_accepted, inexactness
from mmspec.core.rules import TokenWise
from mmspec.core.tree import chain, static_tree
from tests.docs.examples import imported, said
from tests.evaluate.tiny_zoo import use_tiny_zoo

LENGTHS = (0, 1, 2, 3)


@pytest.mark.parametrize("kind", LAWS)
def test_the_exact_rule_is_exact_and_accepts_its_share(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    cautious = imported(monkeypatch, "rule").Cautious
    for length in LENGTHS:
        p, q = contrasted_tables(kind, 4, length, seed=length)
        for share in (0.0, 0.3, 1.0):
            assert inexactness(cautious(share), chain(length), p, q) < 1e-12
        if length == 1:
            kept = expected_accepted(TokenWise(), chain(1), p, q)
            assert expected_accepted(cautious(0.3), chain(1), p, q) == pytest.approx(0.3 * kept)


def test_the_relaxed_rule_says_so_and_has_an_exact_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = imported(monkeypatch, "rule").Eager
    p, q = contrasted_tables("random", 4, 2, seed=3)
    assert not eager.exact and "relaxed" in eager.name and inexactness(eager(1.5), chain(2), p, q) > 1e-2
    for kind in LAWS:
        tables = contrasted_tables(kind, 4, 2, seed=3)
        ours, theirs = (enumerate_rule(rule, chain(2), *tables).weights for rule in (eager(1.0), TokenWise()))
        assert torch.equal(ours.threshold, theirs.threshold)
        assert inexactness(eager(1.0), chain(2), *tables) < 1e-12


def test_both_refuse_what_they_are_not_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(monkeypatch, "rule")
    p, q = contrasted_tables("random", 3, 2, seed=0)
    for rule in (module.Cautious(), module.Eager()):
        with pytest.raises(ValueError, match="expected a chain"):
            inexactness(rule, static_tree((0, 0, 0, 1)), p, q)
        with pytest.raises(ValueError, match="expected drafts of kind categorical"):
            inexactness(rule, chain(2), p, q, drawn="deterministic")
    for wrong in (lambda: module.Cautious(1.1), lambda: module.Eager(0.9), lambda: module.Eager(float("nan"))):
        with pytest.raises(ValueError, match="expected .*, got .*; use"):
            wrong()


def test_the_proof_runs_and_tells_the_wrong_one_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (line,) = said(monkeypatch, capsys, "rule_proof")
    words = line.replace(",", "").split()
    distances = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    assert distances["cautious"] < 1e-12 and min(distances["forgetful"], distances["eager"]) > 1e-2


def test_both_judge_a_models_drafts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_zoo(monkeypatch)
    cautious, eager = said(monkeypatch, capsys, "use_rule")
    assert cautious.startswith("cautious exact: True") and eager.startswith("eager (relaxed) exact: False")
