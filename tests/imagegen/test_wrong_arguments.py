"""Numbers and truth values of a wrong type stop image requests and their settings with the argument's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from inspect import signature

import numpy as np
import pytest
import torch

from mmspec import imagegen
from mmspec.imagegen.adapters.prompts import token_rows
from mmspec.imagegen.conditioning import class_labels
from mmspec.imagegen.continuous.causal.causal_drafter import SmallCausal
from mmspec.imagegen.continuous.masked_target import TokenGuidance
from tests.imagegen.continuous.causal.test_causal import model
from tests.imagegen.continuous.tiny import pipeline as mar
from tests.imagegen.tiny import TinyModel
from tests.wrong_values import cases, refused

TABLE = torch.zeros(4, 3, dtype=torch.long)
# what makes the settings -> how it is called where all its arguments are right
SETTINGS: dict[Callable, Callable] = {
    imagegen.Annealing: imagegen.Annealing,
    imagegen.CSpD: partial(imagegen.CSpD, mar().model, window="truncate"),
    imagegen.CoolSD: imagegen.CoolSD,
    imagegen.GSD: imagegen.GSD,
    imagegen.HeadSampling: imagegen.HeadSampling,
    imagegen.Lantern: partial(imagegen.Lantern, TABLE),
    imagegen.LanternPlus: partial(imagegen.LanternPlus, TABLE),
    imagegen.Lazy: imagegen.Lazy,
    imagegen.MuLo: partial(imagegen.MuLo, object(), object()),
    imagegen.PJD: imagegen.PJD,
    imagegen.PixelUpsampler: partial(imagegen.PixelUpsampler, torch.clone, torch.clone),
    imagegen.Proactive: imagegen.Proactive,
    imagegen.Relaxation: imagegen.Relaxation,
    imagegen.RowDrafts: imagegen.RowDrafts,
    imagegen.RunJoint: imagegen.RunJoint,
    imagegen.SCD: imagegen.SCD,
    imagegen.SJD: imagegen.SJD,
    imagegen.ScheduledSteps: imagegen.ScheduledSteps,
    imagegen.Warp: imagegen.Warp,
    imagegen.ZipAR: imagegen.ZipAR,
    SmallCausal: partial(SmallCausal, object()),
}


# an entry -> the arguments of a call of its own, its number-like arguments, and what else none of them may be
CALLS: dict[str, tuple[Callable[[], Callable], dict[str, tuple[object, ...]]]] = {
    "codes": (
        lambda: partial(imagegen.ImagePipeline(TinyModel()), [1]),
        {"guidance_scale": (1e30, -1.0), "temperature": (math.inf, -1.0), "top_p": (0.0, 2.0), "top_k": (-1,)},
    ),
    "masked": (
        lambda: partial(mar(), 1),
        {"guidance_scale": (1e30, -1.0), "temperature": (1e30, -1.0), "num_iter": (0,)},
    ),
    "causal": (
        lambda: partial(imagegen.ContinuousARPipeline(model()), 1),
        {"guidance_scale": (1e30, -1.0), "temperature": (1e30, -1.0)},
    ),
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one.__name__)
def test_settings_refuse_invalid_numbers_and_booleans(settings: Callable) -> None:
    tried = list(cases(settings))
    assert tried
    for name, value in tried:
        refused(SETTINGS[settings], name, value)


def test_guidance_refuses_invalid_numbers() -> None:
    for guidance, names in ((imagegen.Guidance, ("final", "interval")), (TokenGuidance, ())):
        for name, value in cases(guidance, names):
            refused(guidance, "guidance_scale" if name == "final" else name, value, name)
        for value in (True, math.nan, "2", 1e30, -1.0):
            refused(guidance, "guidance_scale", value, "scale")


@pytest.mark.parametrize("entry", CALLS)
def test_a_request_for_images_refuses_wrong_numbers_before_it_computes(entry: str) -> None:
    made, beyond = CALLS[entry]
    call = partial(made(), pixels=False)
    for name, value in cases(type(call.func).__call__, (*beyond, "seed")):
        refused(call, name, value)
    for name, values in beyond.items():
        for value in values:
            refused(call, name, value)
    for value in ("no", 1, None):
        refused(call, "pixels", value)
    refused(call, "seed", [True])


def test_labels_are_whole_numbers_and_no_truth_values() -> None:
    assert class_labels(torch.tensor([1, -1]), 4, -1).tolist() == [1, -1]
    for label in (True, [1, False], torch.tensor([True]), 1.0, math.nan, "1", None, [None], [[1]], [], -2, 4):
        with pytest.raises(ValueError, match="^prompts: expected "):
            class_labels(label, 4, -1)
    with pytest.raises(ValueError, match="^prompts: expected labels from 0 to 3"):
        class_labels(-1, 4, None)  # a model without a label for no class


def test_labels_of_numpy_and_torch_are_labels() -> None:
    for labels in (np.int64(2), np.uint8(2), np.array(2), torch.tensor(2)):
        assert class_labels(labels, 4, -1).tolist() == [2]
    for labels in (
        np.arange(2),
        torch.arange(2),
        range(2),
        [np.int64(0), torch.tensor(1)],
        np.arange(2, dtype=np.uint8),
    ):
        assert class_labels(labels, 4, -1).tolist() == [0, 1] and class_labels(labels, 4, -1).dtype == torch.int64
    for labels in (
        np.array([True]),
        np.array([1.0]),
        np.float32(1),
        np.True_,
        torch.tensor(1.0),
        [2**70],
        np.array([4]),
    ):
        with pytest.raises(ValueError, match="^prompts: expected [^\n]* got [^\n]*; (give|use)"):
            class_labels(labels, 4, -1)


def test_token_ids_of_numpy_are_prompts() -> None:
    for ids in ([1, 2], np.array([1, 2]), np.array([[1, 2]]), [np.int64(1), np.int64(2)], [np.array([1, 2])]):
        assert [row.tolist() for row in token_rows(ids)] == [[1, 2]]
    for ids in ([True, False], np.array([0.5]), [0.5, 1.5]):
        with pytest.raises(ValueError, match="^prompts: expected "):
            token_rows(ids)


def test_parts_that_are_missing_are_named() -> None:
    for value in (None, 3, "draft", True):
        with pytest.raises(ValueError, match="^drafter: expected MaskedModel"):
            imagegen.CSpD(value)
    for name in ("order", "noise"):
        refused(partial(mar(), 1, pixels=False), name, 3)
    assert imagegen.CSpD(mar()).drafter.total == mar().model.total


@pytest.mark.parametrize("entry", CALLS)
def test_an_unknown_argument_is_refused_with_the_known_arguments(entry: str) -> None:
    pipe = CALLS[entry][0]().func
    known = [name for name in signature(pipe.start).parameters if name != "prompts"]
    assert "decoding" in known and "pixels" not in known and "keys" not in known
    for name in ("window", "keys", "pixel"):
        with pytest.raises(ValueError, match=f"^{name}: expected an argument among {', '.join(known)}, got"):
            pipe(1, pixels=False, **{name: None})


@pytest.mark.parametrize("entry", CALLS)
def test_a_decoding_that_is_none_is_refused(entry: str) -> None:
    for value in (3, "scdd", True):
        refused(partial(CALLS[entry][0](), pixels=False), "decoding", value)
