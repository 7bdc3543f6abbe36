"""The rules of the page on rules: exact and relaxed as they say, on all laws and lengths, and through a model."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from mmspec.certify.enumeration import LAWS, contrasted_tables, enumerate_rule, expected_accepted, inexactness
from mmspec.core.round.rules import TokenWise, resolve
from mmspec.core.round.tree import chain, static_tree
from mmspec.imagegen import Geometry, ImagePipeline
from mmspec.methods import find, names
from tests.docs.examples import imported, said
from tests.evaluate.tiny_images import tiny_image_zoo
from tests.evaluate.tiny_zoo import tiny_zoo
from tests.imagegen.tiny import TableModel

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


def test_both_rules_refuse_unsupported_drafts_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_proof_runs_and_detects_the_wrong_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (line,) = said(monkeypatch, capsys, "rule_proof")
    words = line.replace(",", "").split()
    distances = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    assert distances["cautious"] < 1e-12 and min(distances["forgetful"], distances["eager"]) > 1e-2


def test_both_judge_the_drafts_of_models(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("mmspec.zoo.load", {**tiny_zoo(), **tiny_image_zoo()}.__getitem__)
    cautious, eager, picture = said(monkeypatch, capsys, "use_rule")
    assert cautious.startswith("cautious exact: True")
    assert all(line.startswith("eager (relaxed) exact: False") for line in (eager, picture))


def test_both_are_known_by_name_once_the_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"cautious", "eager"} & set(names(kind="rule"))
    module = imported(monkeypatch, "rule")
    assert find("cautious").exact and not find("eager").exact
    assert {"cautious", "eager"} <= set(names("image", "rule"))
    rule = resolve("eager:factor=2.5", greedy=False, domain="vlm")
    assert type(rule) is module.Eager and rule.factor == 2.5
    with pytest.raises(ValueError, match="factor: expected at least 1, got 0.5"):
        resolve("eager:factor=0.5", greedy=False)


def test_pictures_of_the_exact_rule_have_the_models_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, "rule")
    model = TableModel(Geometry.square(2), codes=3, seed=1)
    settings = dict(pixels=False, seed=2, guidance_scale=1.0)

    def p_value(rule: str) -> float:
        out = ImagePipeline(model)([0] * 6000, decoding="sjd:window=3", rule=rule, **settings)
        place = (out.tokens * torch.tensor([27, 9, 3, 1])).sum(1)
        seen, law = torch.bincount(place, minlength=81).double(), model.joint() * len(place)
        return float(chisquare(seen.numpy(), (law * seen.sum() / law.sum()).numpy()).pvalue)

    assert p_value("cautious:share=0.6") > 1e-3 and p_value("eager:factor=2") < 1e-6
