"""Decodings of videos of blocks by their text give what the objects give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.video import SDVG, Hybrid, Rebuilt, Strided
from tests.evaluate.tiny_video import blocks, saved, tiny_video_zoo
from tests.video.decoding.tiny import bright

PROMPT = "a red circle"


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.files.registry.load", lambda name: tiny_video_zoo()[name])


TEXTS: dict[str, Callable[[], Any]] = {
    "ar": lambda: None,
    "sdvg:threshold=0.5@zoo:video/draft": lambda: SDVG(blocks(1), bright, threshold=0.5),
    "sdvg:threshold=0.5,reward=zoo:video/reward@zoo:video/draft": lambda: SDVG(blocks(1), bright, threshold=0.5),
    "sdvg:router=strided:budget=2@zoo:video/draft": lambda: SDVG(blocks(1), router=Strided(2)),
    "sdvg:router=(hybrid:run=2,least=0.4),reduction=mean,sync=rebuilt@zoo:video/draft": lambda: SDVG(
        blocks(1),
        bright,
        router=Hybrid(2, SDVG(blocks(1), bright, 0.4).active_router),
        reduction="mean",
        sync=Rebuilt(),
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_its_object(text: str) -> None:
    pipe = blocks()
    by_text, by_hand = (pipe(PROMPT, decoding=one, seed=3) for one in (text, TEXTS[text]()))
    assert torch.equal(by_text.latents[0], by_hand.latents[0])
    assert (by_text.stats.rule, by_text.stats.drafter) == (by_hand.stats.rule, by_hand.stats.drafter)


def test_the_drafter_alone_matches_its_own_pipeline() -> None:
    alone = blocks()(PROMPT, decoding="draft@zoo:video/draft", seed=3)
    assert torch.equal(alone.latents[0], blocks(1)(PROMPT, seed=3).latents[0])
    assert not alone.stats.exact and alone.stats.rule == "drafter alone (relaxed)"


def test_a_drafter_of_a_folder_reads_with_its_own_encoder(tmp_path: Path) -> None:
    small, pipe = saved(tmp_path / "small", 1), blocks()
    text = f"sdvg:router=strided:budget=2@{small}"
    first, second = (pipe.start(PROMPT, decoding=text, seed=3).drafter for _ in range(2))
    assert first.drafter is second.drafter and first.drafter.encoder is not pipe.encoder
    alone = pipe(PROMPT, decoding=f"draft@{small}", seed=3)
    assert torch.equal(
        alone.latents[0], type(pipe).from_pretrained(small)(PROMPT, size=pipe.size, blocks=4, seed=3).latents[0]
    )


def test_a_router_may_be_a_text() -> None:
    assert SDVG(blocks(1), router="strided:budget=3").active_router.budgets == (3,)
    with pytest.raises(
        ValueError, match="^router: expected one of threshold, .*, got 'stride'; did you mean 'strided'"
    ):
        SDVG(blocks(1), router="stride:budget=3")


WRONG = (
    ("sdvgg@zoo:video/draft", "decoding: expected one of ar, draft, sdvg, got 'sdvgg'; did you mean 'sdvg'"),
    ("scd", "decoding: expected one of ar, draft, sdvg, got 'scd'"),
    ("sdvg:treshold=1@zoo:video/draft", "expected a setting of sdvg .*, got 'treshold'; did you mean 'threshold'"),
    ("sdvg:threshold=1,sync=eeger@zoo:video/draft", "sync: expected lazy, eager or rebuilt, got 'eeger'; did you mean 'eag"),
    ("sdvg:router=strided@zoo:video/draft", "router: expected strided:budget=..., got 'strided'; name budget too"),
    ("sdvg:router=stride:budget=3@zoo:video/draft", "router: expected one of .*, got 'stride'; did you mean 'strided'"),
    ("sdvg@zoo:video/draft", "decoding 'sdvg': threshold, router: expected one of them, got None and None; pass either"),
    ("sdvg:threshold=1", "decoding 'sdvg': expected weights of 'draft' behind @, as in 'sdvg:threshold=1@FOLDER', got none"),
    ("draft", "decoding 'draft': expected weights of 'draft' behind @, as in 'draft@FOLDER', got none; name a folder"),
    ("draft@zoo:video/tokens", "decoding 'draft': expected a BlockVideoPipeline behind @, got LlamaGenPipeline; name another"),
    ("sdvg:threshold=1,reward=pickscore:none@zoo:video/draft", "decoding 'sdvg': reward: expected a file, got 'none'"),
    ("sdvg:threshold=1,reward=magic@zoo:video/draft", "decoding 'sdvg': reward: expected zoo:NAME or imagereward:FILE, hps"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WRONG, ids=[text for text, _ in WRONG])
def test_a_wrong_text_ends_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        blocks().start(PROMPT, decoding=text)


def test_codes_of_videos_take_decodings_of_videos() -> None:
    pipe = tiny_video_zoo()["video/tokens"]
    asked = {"seed": 3, "pixels": False, "temperature": 0.0}
    plain, drafted = (pipe([PROMPT], decoding=text, **asked) for text in ("ar", "scd:window=4,init=frame"))
    assert torch.equal(plain.tokens, drafted.tokens) and drafted.stats.target_passes < plain.stats.target_passes
    with pytest.raises(ValueError, match="decoding: expected one of ar, sjd, scd, .*, got 'sdvg'"):
        pipe.start([PROMPT], decoding="sdvg")
