"""A captured round asks nothing of the device: whoever would read a tensor inside one raises."""

from __future__ import annotations

import pytest

import mmspec
from mmspec.vlm.drafters import DynamicTree, StaticTree
from mmspec.vlm.graphs.rounds import Rounds
from tests.core.layers.graphs.deaf import Asked, deaf, in_deafness
from tests.vlm.graphs.cases import GREEDY, SAMPLED, WARM, alike, both, chain, narrow, rows
from tests.vlm.tiny import prompt, tiny


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("drafts", (False, True), ids=("plain", "chain"))
@pytest.mark.parametrize("settings", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
def test_a_round_over_pictures(settings: dict, drafts: bool) -> None:
    inputs = prompt("llava", images=1, batch=4)
    drafter = chain() if drafts else None
    assert alike(
        *both(tiny("llava"), Rounds(record=in_deafness), drafter=drafter, max_new_tokens=8, **settings, **inputs)
    )


@pytest.mark.parametrize("rule", ("token", "block", "match"))
def test_a_round_of_every_rule(rule: str) -> None:
    settings = dict(drafter=chain(kind="narrow"), rule=rule, max_new_tokens=12, eos_token_id=[2], **WARM)
    assert alike(*both(narrow(), Rounds(record=in_deafness), **settings, **rows(4)))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", (StaticTree(), DynamicTree(8, 3, 3)), ids=("static", "dynamic"))
@pytest.mark.parametrize("settings", (GREEDY, WARM), ids=("greedy", "sampled"))
def test_a_round_of_trees(shape: StaticTree | DynamicTree, settings: dict) -> None:
    drafter = chain(kind="narrow").with_shape(shape)
    assert alike(*both(narrow(), Rounds(record=in_deafness), drafter=drafter, max_new_tokens=8, **settings, **rows(2)))


@pytest.mark.parametrize("drafts", (False, True), ids=("plain", "chain"))
@pytest.mark.parametrize("settings", (GREEDY, WARM), ids=("greedy", "sampled"))
def test_a_round_of_the_ordinary_loop_does_ask(settings: dict, drafts: bool) -> None:
    request = mmspec.vlm.start(
        narrow(), drafter=chain(kind="narrow") if drafts else None, max_new_tokens=8, **settings, **rows(2)
    )
    request.step()
    request.step()
    with pytest.raises(Asked), deaf():
        request.step()
