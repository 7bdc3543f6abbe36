"""Rules as the command line writes them."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen import GSD, CoolSD, Lantern, LanternPlus, RunJoint
from mmspec.imagegen.multiscale.local_threshold import code_pools
from mmspec.methods import names, parse
from mmspec.methods.registry import ModelParts
from tests.imagegen.rules.cases import codebook


class Codes:
    """The only thing of a model that rules ask for."""

    def codebook(self) -> torch.Tensor:
        return codebook(50)


def rule_from_name(text: str, model: Codes):
    return parse(text, "image", "rule").make(ModelParts(model))


def test_names_with_settings() -> None:
    lantern = rule_from_name("lantern:delta=0.2,k=10,residual=static", Codes())
    assert type(lantern) is Lantern and (lantern.delta, lantern.k, lantern.variant) == (0.2, 10, "static")
    assert lantern.table.shape == (50, 11)
    wide = rule_from_name("lantern", Codes())
    assert wide.k == 49 and wide.delta == 0.1
    plus = rule_from_name("lantern++: factor = 2", Codes())
    assert type(plus) is LanternPlus and (plus.factor, plus.k) == (2.0, 10)
    gsd = rule_from_name("gsd:group=25,distance=0.5,cold=plain", Codes())
    assert type(gsd) is GSD and (gsd.group, gsd.distance, gsd.cold) == (25, 0.5, "plain") and len(gsd.table) == 50
    assert rule_from_name("gsd", Codes()).table is None
    cool = rule_from_name("coolsd:delta=1.3,decay=0,floor=0", Codes())
    assert type(cool) is CoolSD and (cool.delta, cool.decay, cool.mu, cool.floor) == (1.3, 0.0, None, 0.0)
    joint = rule_from_name("runjoint:longest=4", Codes())
    assert type(joint) is RunJoint and (joint.alpha, joint.longest) == (0.8, 4)


def test_neighbours_lie_in_the_models_own_geometry() -> None:
    class Long(Codes):
        def codebook(self) -> torch.Tensor:
            return codebook(50) * torch.rand(50, 1, generator=torch.Generator().manual_seed(3))

    rows = Long().codebook()
    apart = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    assert torch.equal(rule_from_name("lantern:k=5", Long()).table, apart.topk(6, largest=False).indices)
    assert torch.equal(code_pools(rows, 4)[:, 1:], apart.topk(3, largest=False).indices)


def test_every_name_works_alone() -> None:
    for name in names("image", "rule"):
        assert rule_from_name(name, Codes()).exact == (name in names("image", "rule", exact=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "expected one of exact, token.*lantern.*got 'fast'"),
        ("token:k=3", "expected no settings of token, got 'k'"),
        ("gsd:k=3", "expected a setting of gsd .group, delta_p"),
        ("gsd:group", "expected NAME, NAME:setting=value"),
        ("gsd:group=2.5", "group: expected a whole number, got '2.5'"),
        ("lantern:delta=x", "delta: expected a number, got 'x'"),
        ("lantern:delta=2", "delta: expected 0 to 1, got 2.0"),
        ("lantern:k=0", "k: expected"),
        ("lantern:residual=best", "residual: expected optimal, static"),
    ],
)
def test_invalid_rule_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule_from_name(text, Codes())


def test_a_table_is_made_once_for_a_codebook() -> None:
    class Trained(Codes):
        rows = codebook(50)

        def codebook(self) -> torch.Tensor:
            return self.rows

    model = Trained()
    table = rule_from_name("lantern:k=5", model).table
    assert rule_from_name("lantern++:k=5", model).table is table
    assert rule_from_name("lantern:k=5", Trained()).table is not table
    model.rows = model.rows.flip(0)
    assert torch.equal(rule_from_name("lantern:k=5", model).table, 49 - table.flip(0))
