"""Two lanes of text: what they show is what the model says."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

import mmspec
from mmspec.core.round.rules.typical import TypicalAcceptance
from mmspec.core.round.stats import Stats
from mmspec.run.scenes import demo_scenes
from mmspec.run.vlm_models import VlmResources, zoo_resources
from mmspec.run.vlm_requests import VlmPrompt, encode
from mmspec.run.vlm_runs import sampling_arguments
from mmspec.web.lanes.markup import figures
from mmspec.web.lanes.vlm import VlmLane, VlmLaneRequest, identical, offered, recommended, vlm_lanes
from mmspec.zoo.world.render import render

QUESTION = "Describe this picture in detail."


@pytest.fixture(scope="module")
def resources() -> VlmResources:
    return zoo_resources()


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return render(demo_scenes()[0])


def last(resources: VlmResources, asked: VlmLaneRequest) -> tuple[VlmLane, VlmLane]:
    *_, pair = vlm_lanes(resources, asked, 60)
    return pair


def called(resources: VlmResources, asked: VlmLaneRequest, name: str, rule: object) -> tuple[list[int], Stats]:
    """The public call's own tokens and statistics."""
    inputs = encode(resources.processor, [VlmPrompt(asked.text, (asked.picture,))])
    how = {"max_new_tokens": asked.tokens, **sampling_arguments(asked.temperature)}
    drafter = resources.drafter(name)
    out = mmspec.generate(
        resources.model, drafter=drafter, rule=rule, seed=asked.seed, return_dict=True, **inputs, **how
    )
    return out.sequences[0, inputs["input_ids"].shape[1] :].tolist(), out.stats


def same_figures(lane: VlmLane, stats: Stats) -> None:
    """What the page tells of a lane, its times aside, is what the public call tells."""
    told = figures(lane)
    for name in ("target_passes", "drafter_passes", "rule", "exact", "drafter"):
        assert told[name] == getattr(stats, name), name
    assert told["accept_length"] == round(stats.accept_length, 3) and told["values"] == sum(stats.emitted)
    assert [round_.accepted for round_ in lane.rounds] == [round_[0] or 0 for round_ in stats.accepted]


@pytest.mark.default_cells("lookup-0.0", "msd-1.0")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["msd", "lookup"])
def test_both_lanes_are_the_public_call(resources, picture, drafter: str, temperature: float) -> None:
    asked = VlmLaneRequest(picture, QUESTION, drafter, "exact", temperature, seed=3, tokens=40)
    plain, fast = last(resources, asked)
    for lane, name in ((plain, "none"), (fast, drafter)):
        ids, stats = called(resources, asked, name, "exact")
        assert lane.ids == ids
        same_figures(lane, stats)
    assert identical(plain, fast) == (plain.ids == fast.ids)
    assert identical(plain, fast) or temperature
    assert fast.stats.exact and fast.finished and plain.finished


def test_the_pieces_form_the_text_and_drafted_pieces_match_the_accepted_count(resources, picture) -> None:
    _, fast = last(resources, VlmLaneRequest(picture, QUESTION, "msd", tokens=60))
    pieces = [piece for round_ in fast.rounds for piece in round_.marks["pieces"]]
    assert "".join(text for text, _ in pieces) == fast.text
    said = resources.processor.tokenizer.decode(fast.ids, skip_special_tokens=True)
    assert fast.text == said.lstrip()
    kept = sum(round_.accepted for round_ in fast.rounds)
    # the end-of-text token has no text of its own
    assert 0 <= kept - sum(drafted for _, drafted in pieces) <= 1 and kept > len(fast.ids) / 2


def test_lanes_only_grow(resources, picture) -> None:
    before = [[], []]
    for pair in vlm_lanes(resources, VlmLaneRequest(picture, QUESTION, "lookup", tokens=24), 60):
        for place, lane in enumerate(pair):
            assert lane.ids[: len(before[place])] == before[place]
            before[place] = list(lane.ids)
    assert all(before)


def test_the_second_lane_begins_when_the_first_is_done(resources, picture) -> None:
    for plain, fast in vlm_lanes(resources, VlmLaneRequest(picture, QUESTION, "msd", tokens=12), 60):
        assert plain.finished or not fast.rounds


def test_relaxed_is_typical_acceptance_and_says_so(resources, picture) -> None:
    asked = VlmLaneRequest(picture, QUESTION, "recycling", "relaxed", 1.0, seed=1, tokens=30)
    _, fast = last(resources, asked)
    assert not fast.stats.exact and "relaxed" in fast.stats.rule
    ids, stats = called(resources, asked, "recycling", TypicalAcceptance())
    assert fast.ids == ids
    same_figures(fast, stats)


@pytest.mark.whole
def test_every_drafter_offered_answers(resources, picture) -> None:
    for law in ("exact", "relaxed"):
        names = [name for _, name in offered(law)]
        assert "none" not in names and len(set(names)) == len(names) >= 5
    for name in [name for _, name in offered("exact")]:
        _, fast = last(resources, VlmLaneRequest(picture, QUESTION, name, tokens=6))
        assert fast.finished and len(fast.ids) == 6, name


def test_nothing_is_kept_of_a_request(resources, picture) -> None:
    """Weights are shared by visitors, requests are not."""
    before = [p.data_ptr() for p in resources.model.parameters()], set(resources.model.__dict__)
    last(resources, VlmLaneRequest(picture, QUESTION, "msd", tokens=6))
    assert before == ([p.data_ptr() for p in resources.model.parameters()], set(resources.model.__dict__))
    assert torch.is_grad_enabled()


def test_the_default_drafter_is_the_zoos_recommendation_and_heads_the_list() -> None:
    from mmspec.zoo.files.table import MODELS

    assert recommended() == "dspark" and MODELS["vlm"].auto == "vlm/dspark"
    assert offered("exact")[0][1] == recommended() == VlmLaneRequest(None, QUESTION).drafter


@pytest.mark.default_cells("dspark-exact-0.0")
@pytest.mark.parametrize(
    ("drafter", "law", "temperature"),
    [("dspark", "exact", 0.0), ("lookup", "exact", 1.0), ("small", "exact", 0.0), ("recycling", "relaxed", 1.0)],
)
def test_the_copied_program_gives_the_answer_of_the_fast_lane(
    resources, picture, tmp_path, monkeypatch, capsys, drafter: str, law: str, temperature: float
) -> None:
    request = VlmLaneRequest(picture, QUESTION, drafter, law, temperature, seed=3, tokens=24)
    _, fast = last(resources, request)
    monkeypatch.chdir(tmp_path)
    picture.save("picture.png")
    exec(request.code(), {})
    assert capsys.readouterr().out.strip() == fast.text.strip()
