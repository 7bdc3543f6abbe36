"""Online training: weights rest during a request, steps have to help, and a drifting stream is learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.vlm import load_drafter
from mmspec.vlm.training.examples import encode
from mmspec.vlm.training.online import Online
from mmspec.zoo.training.vlm.drafter_requests import HeldOutRequests, TextRequests
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny
from tests.vlm.training.test_lessons import CHAIN, SAMPLED, answer, chained


@pytest.mark.parametrize("settings", [SAMPLED, dict(SAMPLED, do_sample=False)], ids=["sampled", "greedy"])
def test_without_steps_every_output_is_the_drafters_own(settings: dict) -> None:
    drafter = chained()
    online = Online(drafter)
    plain, recorded = answer(drafter, **settings), answer(online, **settings)
    assert torch.equal(plain.sequences, recorded.sequences)
    assert plain.stats.accepted == recorded.stats.accepted and recorded.stats.exact


def test_steps_change_the_copy_and_later_requests_draft_with_the_new_weights(tmp_path: Path) -> None:
    drafter = chained()
    before = {name: value.clone() for name, value in drafter.state_dict().items()}
    online = Online(drafter, every=8, lr=0.01)
    answer(online)
    assert online.step() is None and online.steps == 0
    answer(online, seed=1)
    figures = online.step()
    assert figures["requests"] == 8 and figures["steps"] == online.steps == 1 and figures["loss"] > 0
    assert online.step() is None
    same = [name for name, value in online.drafter.state_dict().items() if torch.equal(value, before[name])]
    assert len(same) == len(before)  # the next requests decide about the step
    for seed in (2, 3):
        answer(online, seed=seed)
    assert online.step()["undone"] == 0
    assert all(torch.equal(before[name], value) for name, value in drafter.state_dict().items())
    online.save_pretrained(tmp_path)
    saved = load_drafter(tmp_path, target=tiny("llava")).with_shape(CHAIN, CHAIN)
    changed = [name for name, value in saved.state_dict().items() if not torch.equal(before[name], value)]
    assert "fc.weight" in changed and "layer.qkv.weight" in changed
    assert "trained online on 16 requests" in json.loads((tmp_path / "card.json").read_text())["training"]
    new, fresh = answer(online, seed=5), answer(saved, seed=5)
    assert torch.equal(new.sequences, fresh.sequences) and new.stats.accepted == fresh.stats.accepted
    laws = [answer(one, seed=5, do_sample=False).stats.accepted for one in (online, saved)]
    assert laws[0] == laws[1]


@pytest.mark.parametrize("helps", [True, False])
def test_a_step_serves_only_if_it_helps(helps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next requests decide, by their likelihood under the weights before the step and behind it."""
    online = Online(chained(), every=4, lr=0.01)
    seen: list[torch.Tensor] = []

    def likelihood(drafter, parts, lessons):
        seen.append(drafter.fc.weight.clone())
        return float(helps) if len(seen) == 2 else 0.5

    monkeypatch.setattr("mmspec.vlm.training.online.mean_likelihood", likelihood)
    start = online.drafter.fc.weight.clone()
    answer(online, seed=1)
    online.step()
    assert torch.equal(online.drafter.fc.weight, start) and not seen
    answer(online, seed=2)
    assert online.step()["undone"] == online.undone == int(not helps)
    assert torch.equal(seen[0], start) and not torch.equal(seen[1], start)
    assert torch.equal(online.drafter.fc.weight, seen[1] if helps else start)
    assert online.lessons == [] and online.steps == 2


def test_a_step_during_a_request_is_refused() -> None:
    online = Online(chained(), every=1)
    run = mmspec.vlm.start(tiny("llava"), drafter=online, seed=0, **SAMPLED, **prompt("llava", images=1))
    run.step()
    run.step()
    with pytest.raises(ValueError, match="between requests"):
        online.step()
    run.run()
    assert online.step()["requests"] == 1
    abandoned = mmspec.vlm.start(tiny("llava"), drafter=online, seed=1, **SAMPLED, **prompt("llava", images=1))
    abandoned.step()
    abandoned.step()
    del abandoned
    assert online.step() is not None


def test_old_lessons_leave_and_wrong_arguments_are_refused() -> None:
    online = Online(chained(), keep=30, every=99)
    for seed in range(3):
        answer(online, seed=seed)
    online.step()
    assert online.requests == 12
    assert 15 < sum(len(lesson.wrong) for lesson in online.lessons) <= 30
    for wrong in (dict(every=0), dict(lr=0.0), dict(keep=0)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Online(chained(), **wrong)
    with pytest.raises(ValueError, match="EAGLE family"):
        Online(make("dflash"))
    other = dict(prompt("qwen2_5_vl"), max_new_tokens=4)
    with pytest.raises(ValueError, match="new Online"):
        mmspec.generate(tiny("qwen2_5_vl"), drafter=online, **other)


def test_lessons_of_a_target_in_half_precision() -> None:
    online = Online(chained(), every=4, lr=1e-3)
    inputs = prompt("llava", images=2, batch=4)
    inputs["pixel_values"] = inputs["pixel_values"].bfloat16()
    mmspec.generate(tiny("llava", dtype=torch.bfloat16), drafter=online, seed=0, **SAMPLED, **inputs)
    assert online.step()["loss"] > 0 and next(online.drafter.parameters()).dtype == torch.float32


def served(online: object, requests: object, count: int) -> float:
    """Tokens a pass over the first requests; an Online learns meanwhile."""
    model, processor = mmspec.zoo.load("vlm")
    tokens = passes = 0
    for example in (requests[n] for n in range(count)):
        inputs = encode(processor, [example])
        out = mmspec.generate(model, drafter=online, max_new_tokens=48, do_sample=False, return_dict=True, **inputs)
        tokens, passes = tokens + sum(out.stats.emitted), passes + out.stats.target_passes
        if isinstance(online, Online):
            online.step()
    return tokens / passes


@pytest.mark.whole
def test_a_steady_stream_never_falls_and_a_shifted_stream_rises() -> None:
    """The zoo's EAGLE knows captions. Requests without a picture are new to it, and it learns them within 64 requests."""
    start = mmspec.zoo.load("vlm/eagle").with_shape(Chain(FixedLength(7)))
    steady = Online(start)
    served(steady, HeldOutRequests(48), 48)
    held = [HeldOutRequests(200)[180 + n] for n in range(12)]
    assert steady.steps >= 5
    assert served(steady.drafter.with_shape(Chain(FixedLength(7))), held, 12) > 0.98 * served(start, held, 12)
    shifted, texts = Online(start), TextRequests(200)
    served(shifted, texts, 64)
    held = [texts[180 + n] for n in range(10)]
    assert served(shifted.drafter.with_shape(Chain(FixedLength(7))), held, 10) > 1.15 * served(start, held, 10)
