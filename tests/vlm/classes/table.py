"""The table: every class, its variants, prompts and ways of drafting, as nested records."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT,
)

from tests.vlm.classes.build import model_of
from tests.vlm.classes.cells import WAYS, outcome, reference, told
from tests.vlm.classes.prompts import text_prompt
from tests.vlm.classes.variants import variants

TEXT_PROMPTS = ("one", "ragged", "long")


def class_names() -> list[str]:
    """Every class of both tables of transformers, once, causal ones first."""
    return list(dict.fromkeys((*CAUSAL.values(), *IMAGE_TEXT.values())))


def record(name: str) -> dict:
    """Outcomes of a class by variant, prompt and way; or why it cannot be built."""
    found: dict[str, dict] = {}
    plain: dict[str, Tensor] = {}
    try:
        configs = list(variants(name))
    except Exception as error:  # reported, not skipped
        return {"unbuilt": told(error)}
    for label, config in configs:
        try:
            model = model_of(name, config)
        except Exception as error:
            if label == "default":
                return {"unbuilt": told(error)}
            continue
        cells, same = {}, True
        for prompt in TEXT_PROMPTS:
            if prompt == "long" and label == "default":
                continue
            cells[prompt], sequences = _cell(model, text_prompt(prompt))
            if label == "default":
                plain[prompt] = sequences
            same &= prompt in plain and sequences is not None and torch.equal(plain[prompt], sequences)
        found[label] = cells
    return {"variants": found}


def _cell(model, inputs: dict[str, Tensor]) -> tuple[dict | str, Tensor | None]:
    try:
        truth = reference(model, inputs)
    except Exception as error:
        return f"unrunnable: {told(error)}", None
    return {way: outcome(model, inputs, way, truth) for way in WAYS}, truth.sequences
