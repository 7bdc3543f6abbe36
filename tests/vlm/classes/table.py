"""The table: every class, its variants, prompts and ways of drafting, as nested records."""

from __future__ import annotations

import copy

from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT

from tests.vlm.classes.build import model_of
from tests.vlm.classes.cells import ENABLED, WAYS, outcome, reference, told
from tests.vlm.classes.pictures import COUNTS, picture_kinds, picture_prompt
from tests.vlm.classes.prompts import LENGTHS, text_prompt
from tests.vlm.classes.variants import variants

TEXT = tuple(LENGTHS)
PROMPTS = (*TEXT, *COUNTS)
FIRST = ("ragged", "rows")  # prompts that are also a model's first use through `enable`


def class_names() -> list[str]:
    """Every class of both tables of transformers, once, causal ones first."""
    return list(dict.fromkeys((*CAUSAL.values(), *IMAGE_TEXT.values())))


def record(name: str, prompts: tuple[str, ...] = PROMPTS) -> dict:
    """Outcomes of a class by variant, prompt and way; or why it cannot be built."""
    try:
        configs = dict(variants(name))
        found = {"default": _row(name, "default", configs.pop("default"), prompts)}
    except Exception as error:  # reported, not skipped
        return {"unbuilt": told(error)}
    for label, config in configs.items():
        try:
            found[label] = _row(name, label, config, prompts)
        except Exception as error:  # a variant the class's own code does not build
            found[label] = f"unrunnable: {told(error)}"
    return {"variants": found}


def _row(name: str, label: str, config: PreTrainedConfig, prompts: tuple[str, ...]) -> dict:
    model = model_of(name, config)
    asked = [kind for kind in TEXT if kind != "long" or label != "default"]
    asked += [kind for kind in picture_kinds(name, model) if kind != "pictures" or label == "default"]
    ours = copy.deepcopy(model)  # one for all requests: none may leave anything behind
    return {kind: _cell(name, model, ours, kind) for kind in asked if kind in prompts}


def _cell(name: str, model: nn.Module, ours: nn.Module, kind: str) -> dict | str:
    try:
        inputs = text_prompt(kind) if kind in TEXT else picture_prompt(name, copy.deepcopy(model), kind)
        truth = reference(model, inputs)
    except Exception as error:  # of transformers' own code
        return f"unrunnable: {told(error)}"
    found = {way: outcome(ours, inputs, way, truth) for way in WAYS}
    return found | ({ENABLED: outcome(copy.deepcopy(model), inputs, ENABLED, truth)} if kind in FIRST else {})
