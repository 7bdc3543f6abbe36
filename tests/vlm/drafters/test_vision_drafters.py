"""What every trained drafter must keep: the target's words, rows and requests that do not touch each other, and a cache
that holds what reading everything again would give."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import Draft
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.rows import row_of
from tests.vlm.drafters.trained import DRAFTERS, NAMES, make
from tests.vlm.drafters.watched import Planted, Watched
from tests.vlm.tiny import IMAGE, prompt, tiny

SHAPES = {
    "dynamic": DynamicTree(nodes=8, depth=3, width=3),
    "static": StaticTree((0, 0, 0, 1, 1, 2, 3)),
    "chain": Chain(FixedLength(4)),
}
CASES = (  # kind, images, where, batch, shape
    ("llava", 0, "middle", 4, "chain"),
    ("llava", 1, "end", 1, "dynamic"),
    ("llava", 1, "echo", 4, "chain"),
    ("llava", 3, "start", 4, "static"),
    ("qwen2_5_vl", 1, "start", 1, "static"),
    ("qwen2_5_vl", 3, "middle", 4, "dynamic"),
    ("qwen2_5_vl", 3, "end", 4, "chain"),
    ("llava_next", 3, "middle", 4, "static"),
    ("qwen3_vl", 3, "middle", 1, "dynamic"),
)
GREEDY = dict(max_new_tokens=12, do_sample=False)


@cache
def expected(kind: str, images: int, where: str, batch: int) -> Tensor:
    return tiny(kind).generate(**prompt(kind, images, where, batch), **GREEDY)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind, images, where, batch, shape", CASES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_words_are_the_targets_own(
    name: str, kind: str, images: int, where: str, batch: int, shape: str
) -> None:
    drafter = make(name).with_shape(SHAPES[shape])
    out = mmspec.generate(tiny(kind), drafter=drafter, **GREEDY, **prompt(kind, images, where, batch))
    assert torch.equal(out, expected(kind, images, where, batch))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
@pytest.mark.parametrize("name", NAMES)
def test_a_text_turn_after_pictures_keeps_the_words(name: str, kind: str) -> None:
    inputs = prompt(kind, 2)
    said = expected(kind, 2, "middle", 1)
    inputs["input_ids"] = torch.cat([said, torch.tensor([[11, 12, 13, 14]])], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).long()
    out = mmspec.generate(tiny(kind), drafter=make(name), **GREEDY, **inputs)
    assert torch.equal(out, tiny(kind).generate(**inputs, **GREEDY))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", ("chain", "static"))
@pytest.mark.parametrize("name", NAMES)
def test_a_row_drafts_the_same_alone_and_in_a_batch(name: str, shape: str) -> None:
    inputs, drafter = prompt("llava", 2, "start", 4), make(name).with_shape(SHAPES[shape])
    options = dict(max_new_tokens=8, do_sample=True, top_k=6, temperature=0.8, return_dict=True)
    together = mmspec.generate(tiny("llava"), drafter=drafter, seed=[5, 6, 7, 8], **options, **inputs)
    for row in range(4):
        alone = mmspec.generate(tiny("llava"), drafter=drafter, seed=[5 + row], **options, **row_of(inputs, row))
        assert torch.equal(alone.sequences[0, -8:], together.sequences[row, -8:])
        in_batch = [line[row] for line in together.stats.accepted if line[row] is not None]
        assert in_batch == [line[0] for line in alone.stats.accepted]


@pytest.mark.default_cells("eagle3", "specvlm", "flash", "dspark", "medusa")
@pytest.mark.parametrize("name", DRAFTERS)
def test_requests_that_take_turns_do_not_touch_each_other(name: str) -> None:
    drafter, model = make(name), tiny("qwen2_5_vl")
    prompts = [prompt("qwen2_5_vl", images, "middle", batch, seed=images) for images, batch in ((3, 1), (1, 4))]
    requests = [start(model, drafter=drafter, **GREEDY, **inputs) for inputs in prompts]
    going = list(requests)
    while going:
        going = [request for request in going if request.step()]
    for request, inputs in zip(requests, prompts, strict=True):
        alone = start(model, drafter=drafter, **GREEDY, **inputs)
        alone.run()
        assert request.target.tokens == alone.target.tokens
        assert request.stats.accepted == alone.stats.accepted


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_drafter_drafts_as_before(name: str, tmp_path) -> None:
    drafter = make(name)
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llava"))
    assert type(again) is type(drafter) and again.config == drafter.config
    inputs, drafts = prompt("llava", 2), []
    for one in (drafter, again):
        watched = Watched(one)
        mmspec.generate(tiny("llava"), drafter=watched, **GREEDY, **inputs)
        drafts.append([seen.draft.value.tolist() for seen in watched.rounds])
    assert drafts[0] == drafts[1]


def fresh_draft(drafter: object, inputs: dict, tokens: list[int]) -> Draft:
    """The first draft over the prompt and all tokens but the last, which the target then says itself."""
    ids = torch.cat([inputs["input_ids"], torch.tensor([tokens[:-1]], dtype=torch.long)], 1)
    mask = torch.ones_like(ids)
    request = start(
        tiny("llava"),
        drafter=drafter,
        max_new_tokens=30,
        do_sample=False,
        **dict(inputs, input_ids=ids, attention_mask=mask),
    )
    request.step()
    assert request.target.tokens == [tokens[-1:]]
    with torch.no_grad():
        return request.state.propose(request.target, request.keys)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", ("chain", "dynamic"))
@pytest.mark.parametrize(
    "name", [case for case in NAMES if getattr(case, "values", ()) not in (("ppd",), ("hidden_transfer",))]
)  # need a round more
def test_after_any_accept_length_the_cache_matches_a_fresh_read(name: str, shape: str) -> None:
    drafter, inputs = make(name).with_shape(SHAPES[shape]), prompt("llava", 2, "middle", 4)
    truth = tiny("llava").generate(**inputs, max_new_tokens=40, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    planted = Planted(drafter, truth=truth.tolist())
    request = start(tiny("llava"), drafter=planted, max_new_tokens=30, do_sample=False, **inputs)
    for _ in range(7):
        request.step()
    lengths = {n for line in request.stats.accepted[1:] for n in line}
    deepest = planted.rounds[0].draft.tree.max_depth
    assert lengths == set(range(deepest + 1))
    for number in (3, 5):
        seen = planted.rounds[number]
        for row in range(4):
            again = fresh_draft(drafter, row_of(inputs, row), seen.tokens[row])
            parent = seen.draft.tree.parent
            assert torch.equal(again.value[0], seen.draft.value[row])
            assert torch.equal(again.tree.parent[0], parent[min(row, len(parent) - 1)])


@pytest.mark.parametrize("kind", ("llava", "llava_next", "qwen2_5_vl", "qwen3_vl"))
def test_another_picture_changes_the_teacher_states(kind: str) -> None:
    inputs = prompt(kind, 1)
    answer = torch.arange(inputs["input_ids"].shape[1])[None] >= inputs["input_ids"].shape[1] - 4
    other = copy.deepcopy(inputs)
    other["pixel_values"] = other["pixel_values"].flip(-1)
    parts = take_apart(tiny(kind))
    one, two = (teacher_pass(parts, given, answer) for given in (inputs, other))
    assert (one.hidden - two.hidden).abs().amax(-1)[answer].min() > 1e-3
    shown = inputs["input_ids"] == IMAGE
    assert not torch.equal(one.embeds[shown], two.embeds[shown])
    assert torch.equal(one.embeds[~shown], two.embeds[~shown])
