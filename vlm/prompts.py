"""One prompt for two models: what the caller gave, prepared for a model other than the target."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from mmspec.core.cache import SlotCache
from mmspec.core.layers.plan import Plan
from mmspec.vlm.architectures import Parts
from mmspec.vlm.capture import masked
from mmspec.vlm.unwrapping import class_generate

_NOT_PROMPT = {"streamer", "logits_processor", "stopping_criteria", "generation_config", "prefix_allowed_tokens_fn",
               "custom_generate", "tokenizer", "past_key_values", "assistant_model", "synced_gpus"}  # fmt: skip
# settings of a model's own defaults that need a tokenizer
PROMPT_ALONE = {"stop_strings": None, "token_healing": False}


def own_inputs(inputs: dict | None, config: GenerationConfig) -> dict | None:
    """The prompt among the arguments of a `generate` call: ids, masks, pictures, and how often each row is repeated."""
    if inputs is None:
        return None
    prompt = {k: v for k, v in inputs.items() if v is not None and k not in _NOT_PROMPT and not hasattr(config, k)}
    return prompt | {"num_return_sequences": config.num_return_sequences or 1}


def healed(inputs: dict | None, ids: Tensor, config: GenerationConfig) -> dict | None:
    """The arguments of a `generate` call with the ids int64 [B, P] that token healing has made of the prompt's."""
    if inputs is None or not config.token_healing:
        return inputs
    copies = config.num_return_sequences or 1
    return {name: one for name, one in inputs.items() if name != "inputs"} | {"input_ids": ids[::copies]}


def prepare(model: nn.Module, inputs: dict) -> tuple[Tensor, dict]:
    """What `model.generate` makes of `inputs` (see `own_inputs`): the ids [B, P] and the arguments of its first pass.

    Runs the model's own vision tower where the prompt holds pictures.
    """
    return class_generate(model)(**inputs, **PROMPT_ALONE, do_sample=True, max_new_tokens=1, custom_generate=_take)


def first_inputs(parts: Parts, ids: Tensor, kwargs: dict, cache: SlotCache) -> dict:
    """The arguments of the pass that reads a prompt into `cache`. kwargs: as `prepare` gives them."""
    kwargs = dict(kwargs, past_key_values=cache, use_cache=True) | last_logits_only(parts, ids)
    inputs = parts.model.prepare_inputs_for_generation(ids, is_first_iteration=True, **kwargs)
    # some classes leave an empty cache out, and would make one of their own
    return dict(inputs, past_key_values=cache)


def last_logits_only(parts: Parts, ids: Tensor) -> dict:
    """What asks a forward over `ids` [B, n] for the last logits alone, where it can be asked."""
    if not parts.last_only:
        return {}
    if any(layer.kind == "shared" for layer in parts.plan.layers):
        # a number would let layers that store nothing skip the prompt, whose states drafters read
        return {"logits_to_keep": ids.new_tensor([ids.shape[1] - 1])}
    return {"logits_to_keep": 1}


def first_tokens(kwargs: dict, count: int) -> dict:
    """`kwargs` of one unpadded prompt, as `prepare` gives them, for its first `count` tokens, which hold its pictures."""
    alike = ("position_ids", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
    return {
        name: value[..., :count] if name in alike and value is not None else value for name, value in kwargs.items()
    }


def first_positions(inputs: dict, ids: Tensor, given: Tensor) -> Tensor:
    """Positions of a prompt, int64 [..., B, P] or [1, P]: what the class makes of those `given`; its slots, padding included,
    where it wants none.

    inputs: as `first_inputs` gives them.
    """
    if "position_ids" not in inputs:
        return given
    positions = inputs["position_ids"]
    return torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions


def lasting(plan: Plan, inputs: dict) -> dict[str, Tensor]:
    """What later passes are given again of a prompt's inputs: which pictures the last token sees, [B, 1, ...]."""
    seen = inputs.get("cross_attention_mask") if any(layer.kind == "cross" for layer in plan.layers) else None
    return {} if seen is None else {"cross_attention_mask": seen[:, -1:]}


def wrapped_logits(parts: Parts, inputs: dict) -> Tensor:
    """Logits [B, N, V] of a pass through the model's wrapper, whose decoder gets one mask for each type of layer: wrappers
    know only the first.   inputs: with an `attention_mask` as `masks` makes it."""
    mask = inputs["attention_mask"]
    if not isinstance(mask, dict):
        return parts.model(**inputs, return_dict=True).logits
    with masked(parts.decoder, mask):
        return parts.model(**inputs | {"attention_mask": mask["full_attention"]}, return_dict=True).logits


def _take(model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None, **model_kwargs):
    return input_ids, model_kwargs
