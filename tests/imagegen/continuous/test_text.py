"""Decodings of continuous tokens by their text give what the objects give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmspec.imagegen import CSpD, HeadSampling, Lazy
from mmspec.imagegen.continuous.causal.causal_drafter import SmallCausal
from mmspec.imagegen.continuous.cspd.acceptance import Relaxation
from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps
from mmspec.imagegen.continuous.schedules.step_annealing import Annealing
from tests.evaluate.tiny_continuous import causal, masked

DRAFT = masked(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Smaller pipelines as they are saved."""
    root = tmp_path_factory.mktemp("drafts")
    for name, pipe in (("masked", DRAFT), ("causal", causal(1))):
        pipe.save_pretrained(root / name)
    return {name: str(root / name) for name in ("masked", "causal")}


MASKED: dict[str, Any] = {
    "ar": None,
    "head:window=3": ScheduledSteps(head_sampling=HeadSampling(3)),
    "scheduled:head=2,annealing=(anneal:first=4,last=2),checkerboard=1": ScheduledSteps(
        head_sampling=HeadSampling(2, Annealing(4, 2)), reconstruct=1
    ),
    "scheduled:lazy=(lazy:full=1,every=3,tokens=0.5)": ScheduledSteps(lazy=Lazy(1, 3, tokens=0.5)),
    "cspd@{masked}": CSpD(DRAFT),
    "cspd:window=truncate,gamma=2,relaxation=published,prefill=0@{masked}": CSpD(
        DRAFT, "truncate", 2, Relaxation(42.0, "published"), 0.0
    ),
    "cspd:gamma=2,tolerance=0@{masked}": CSpD(DRAFT, "truncate", 2, tolerance=0.0),
    "stack:gamma=2@{masked}": CSpD(
        DRAFT, gamma=2, head_sampling=HeadSampling(1, Annealing(4, 2)), reconstruct=1, lazy=Lazy()
    ),
}
CAUSAL: dict[str, Any] = {
    "ar": None,
    "head:window=3": HeadSampling(3),
    "small:gamma=2@{causal}": SmallCausal(causal(1).model.transformer, 2),
}


@pytest.mark.parametrize(("text", "same"), MASKED.items(), ids=MASKED)
def test_a_text_of_masked_models_is_its_object(text: str, same: Any, folders: dict[str, str]) -> None:
    pipe, asked = masked(), {"seed": 3, "pixels": False}
    by_text = pipe([1, 5], decoding=text.format_map(folders), **asked)
    by_hand = pipe([1, 5], decoding=same, **asked)
    assert torch.equal(by_text.tokens, by_hand.tokens) and by_text.stats.exact == by_hand.stats.exact


@pytest.mark.parametrize(("text", "same"), CAUSAL.items(), ids=CAUSAL)
@pytest.mark.parametrize("rule", (None, "reflection"))
def test_a_text_of_causal_models_is_its_object(text: str, same: Any, rule: str, folders: dict[str, str]) -> None:
    pipe, asked = causal(), {"seed": 3, "pixels": False, "rule": rule if "small" in text else None}
    by_text = pipe([2, 7], decoding=text.format_map(folders), **asked)
    by_hand = pipe([2, 7], decoding=same, **asked)
    assert torch.equal(by_text.tokens, by_hand.tokens) and by_text.stats.rule == by_hand.stats.rule


def test_a_drafter_is_read_once_for_a_pipeline(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    read, kind = [], type(DRAFT)
    whole = kind.from_pretrained
    monkeypatch.setattr(kind, "from_pretrained", lambda folder: read.append(folder) or whole(folder))
    pipe, other = masked(), masked()
    for one, text in ((pipe, "cspd@{masked}"), (pipe, "cspd:gamma=2@{masked}"), (other, "cspd@{masked}")):
        one.start([1], decoding=text.format_map(folders), seed=0)
    assert read == [folders["masked"]] * 2
    pipe.to(dtype=torch.float64)
    drafter = pipe.start([1], decoding="cspd@{masked}".format_map(folders), seed=0).drafter
    assert len(read) == 3 and drafter.drafter.dtype == torch.float64


WRONG = (
    ("cspdd@x", "decoding: expected one of ar, head, cspd, stack, scheduled, got 'cspdd'; did you mean 'cspd'"),
    ("small@x", "decoding: expected one of ar, head, cspd, stack, scheduled, got 'small'"),
    ("cspd:gama=2@x", "decoding 'cspd': expected a setting of cspd .*got 'gama'; did you mean 'gamma'"),
    (
        "cspd:window=path@x",
        "decoding 'cspd': window: expected patch or truncate or none, got 'path'; did you mean 'patch'",
    ),
    ("scheduled:lazy=lasy", "schedule: expected one of anneal, lazy, .*got 'lasy'; did you mean 'lazy'"),
    ("scheduled:annealing=anneal:last=x", "schedule 'anneal': last: expected a whole number or none, got 'x'"),
    ("cspd", "decoding 'cspd': expected weights of 'draft' behind @, as in 'cspd@FOLDER', got none; name a folder"),
    ("cspd@{causal}", "expected a MARPipeline, got 'ContinuousARPipeline'"),
    ("cspd@zoo:clip", "decoding 'cspd': expected a MARPipeline behind @, got .*; name another"),
    ("cspd@zoo:mra/draft", "expected one of .*, got 'mra/draft'"),
    ("head@{masked}", "decoding 'head': expected no weights, since it needs none, got @.*; leave them out"),
)


@pytest.mark.parametrize(("text", "sentence"), WRONG, ids=[text for text, _ in WRONG])
def test_a_wrong_text_ends_in_a_sentence(text: str, sentence: str, folders: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=sentence):
        masked().start([1], decoding=text.format_map(folders))


def test_rules_of_vectors_are_named_for_vectors(folders: dict[str, str]) -> None:
    with pytest.raises(
        ValueError, match="rule: expected one of exact, reflection, gaussian_block, got 'reflexion'; did"
    ):
        causal().start([1], decoding="small@{causal}".format_map(folders), rule="reflexion")
