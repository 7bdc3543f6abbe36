"""Drafters whose states cannot go on from an earlier turn are given the whole conversation again."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import mmspec
from mmspec.core.length.goodput import Goodput
from mmspec.vlm.conversation import Past
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from tests.vlm.conversation.talks import talk
from tests.vlm.drafters.trained import make
from tests.vlm.drafts import Script, Scripted, continuation

GREEDY = dict(max_new_tokens=8, do_sample=False)


@dataclass
class Reader:
    """Reads the target's states of the prompt when it opens, and drafts what it is told."""

    name = "reader"
    truth: list[list[int]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)

    def open(self, target: object) -> Script:
        self.reads.append(target.prompt_hidden.shape[1])
        return Script(Scripted(self.truth, "static"))


def turns(chat: object, drafter: object, told: Reader | None = None) -> tuple[list[int], list[int]]:
    """Tokens that passed the target in each turn, and those of each prompt."""
    past, said, passed, whole = Past(chat.model), None, [], []
    for number in range(3):
        inputs = chat.turn(number, said)
        truth = chat.model.generate(**inputs, **GREEDY)
        if told is not None:
            told.truth = continuation(truth, inputs["input_ids"].shape[1])
        out = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True)
        said = out.sequences
        assert torch.equal(said, truth), number
        passed.append(out.read)
        whole.append(inputs["input_ids"].shape[1])
    return passed, whole


@pytest.mark.parametrize("wrapped", (False, True), ids=("bare", "goodput"))
def test_a_state_that_cannot_follow_is_opened_on_the_whole_prompt(wrapped: bool) -> None:
    drafter = Reader()
    passed, whole = turns(talk("llava", apart=True), Goodput(drafter) if wrapped else drafter, drafter)
    assert passed == whole == drafter.reads


@pytest.mark.parametrize("says", (False, True), ids=("inherits", "says so"))
def test_a_state_that_reads_in_its_own_way_does_not_inherit_how_to_follow(
    says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, drafter = [], make("msd")

    class Own(FeatureState):
        if says:
            follow = FeatureState.follow

        def prefill(self) -> None:
            reads.append(self.target.prompt_hidden.shape[1])
            super().prefill()

    monkeypatch.setattr(type(drafter), "open_without_prefill", lambda self, target: Own(self, target))
    passed, whole = turns(talk("llava"), drafter)
    if says:
        assert reads == whole[:1] and all(few < count for few, count in zip(passed[1:], whole[1:], strict=True))
    else:
        assert passed == whole == reads


def test_two_conversations_match_the_rows_of_a_batch() -> None:
    """A row each: conversations share a model and a drafter, and neither is the other's."""
    chat, drafter = talk("llava"), make("msd")
    words = ([11, 12, 13, 14], [21, 22])
    pasts, said = [Past(chat.model) for _ in words], [chat.inputs["input_ids"] for _ in words]
    for number in range(3):
        said = [torch.cat([one, torch.tensor([new])], 1) for one, new in zip(said, words, strict=True)]
        most = max(one.shape[1] for one in said)
        rows = torch.cat([torch.nn.functional.pad(one, (most - one.shape[1], 0)) for one in said])
        pixels = torch.cat([chat.inputs["pixel_values"]] * 2)
        batch = mmspec.generate(
            chat.model,
            drafter=drafter,
            input_ids=rows,
            pixel_values=pixels,
            attention_mask=(rows != 0).long(),
            **GREEDY,
        )
        for n, past in enumerate(pasts):
            out = mmspec.generate(
                chat.model,
                drafter=drafter,
                past_key_values=past,
                input_ids=said[n],
                pixel_values=chat.inputs["pixel_values"],
                return_dict=True,
                **GREEDY,
            )
            assert torch.equal(out.sequences[0, said[n].shape[1] :], batch[n, most:])
            assert (out.read < said[n].shape[1]) == (number > 0)
            said[n] = out.sequences
