"""EAGLE-3 and P-EAGLE in the files of engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mmspec.vlm.export.folder import (
    ExportOptions,
    Form,
    dtype_name,
    layer_config,
    layer_tensors,
    speculators_config,
    vocabulary_tensors,
)

if TYPE_CHECKING:
    from mmspec.vlm.drafters.eagle3 import Eagle3
    from mmspec.vlm.drafters.peagle import PEagle

TOKENS = 3  # of a draft by default, as `speculators` trains


def eagle3_speculators(drafter: Eagle3, options: ExportOptions) -> Form:
    """EAGLE-3 as the `speculators` library saves it and vLLM reads it.

    Layer ids are written as they are: v is transformers' hidden_states[v] there too. `norm_before_residual` is always
    written, since vLLM takes its absence for True and the library for False.

    Raises:
        ValueError: The levels are not three rising ones from 1, see `_check_levels`.
    """
    _check_levels(drafter)
    layer = layer_config(drafter.config, "llama", options) | {"mlp_bias": False}
    config = speculators_config("eagle3", "Eagle3Speculator", drafter.config.drafted, layer, TOKENS, options)
    config |= _norm_fields(drafter) | {"embed_requires_grad": False}
    return config, _tensors(drafter, options) | {"embed_tokens.weight": _of_target(drafter, options)}


def peagle_speculators(drafter: PEagle, options: ExportOptions) -> Form:
    """P-EAGLE as the `speculators` library saves it and vLLM reads it; raises ValueError as `eagle3_speculators` does."""
    _check_levels(drafter)
    own = drafter.config
    layer = layer_config(own, "llama", options, own.num_hidden_layers) | {"mlp_bias": False}
    config = speculators_config("peagle", "PEagleSpeculator", own.drafted, layer, own.depths, options)
    config |= _norm_fields(drafter) | {"embed_requires_grad": True, "mask_token_id": own.mask_token_id}
    tensors = _tensors(drafter, options)
    for index, one in enumerate(drafter.rest, 1):
        tensors |= layer_tensors(one, f"layers.{index}.")
    return config, tensors | {
        "embed_tokens.weight": drafter.embed_tokens.weight,
        "mask_hidden": drafter.mask_hidden,
    }


def eagle3_sglang(drafter: Eagle3, options: ExportOptions) -> Form:
    """EAGLE-3 as SGLang reads it.

    Layer ids are written less one: SGLang adds one to ids that a config gives, so that v means the output of layer v.
    Its Llava class hands no such states to a drafter; those of Qwen2.5-VL, Qwen3-VL, Llama 4 and Gemma do. The embedding is
    the target's there, and is not written.

    Raises:
        ValueError: The levels are not three rising ones from 1, or the residual starts from the normed state.
    """
    _check_levels(drafter)
    if drafter.config.norm_before_residual:
        raise ValueError("norm_before_residual: expected False, got True; SGLang starts the residual from the state itself, "
                         "export for vLLM instead")  # fmt: skip
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_config(drafter.config, "llama", options),
        "mlp_bias": False,
        "draft_vocab_size": drafter.config.drafted,
        "norm_before_residual": False,
        "torch_dtype": dtype_name(options.dtype),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [level - 1 for level in drafter.levels],
        },
    }
    return config, _tensors(drafter, options)


def _check_levels(drafter: Eagle3) -> None:
    """Engines take three states in the order of the layers, each once, and none in front of the first layer."""
    levels = drafter.levels
    if len(levels) != 3 or levels[0] < 1 or not levels[0] < levels[1] < levels[2]:
        raise ValueError(f"levels: expected three rising layers from 1, got {levels}; train the drafter on such levels")


def _norm_fields(drafter: Eagle3) -> dict[str, Any]:
    return {
        "norm_before_residual": drafter.config.norm_before_residual,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(drafter.levels),
    }


def _tensors(drafter: Eagle3, options: ExportOptions) -> dict[str, Tensor]:
    """The weights of the first layer and around it."""
    head = drafter.head
    rows = head.rows_of(options.verifier.head) if head.weight is None else head.weight
    return layer_tensors(drafter.layer, "layers.0.") | vocabulary_tensors(head) | {
        "layers.0.input_layernorm.weight": drafter.embed_norm.weight,
        "layers.0.hidden_norm.weight": drafter.state_norm.weight,
        "fc.weight": drafter.fc.weight,
        "norm.weight": drafter.norm.weight,
        "lm_head.weight": rows,
    }  # fmt: skip


def _of_target(drafter: Eagle3, options: ExportOptions) -> Tensor:
    """The target's embedding, float [V, H].   Raises ValueError for that of another target."""
    rows, config = options.verifier.embedding, drafter.config
    if rows.shape != (config.vocab_size, config.hidden_size):
        raise ValueError(f"verifier: expected an embedding of shape {(config.vocab_size, config.hidden_size)} as of the "
                         f"drafter's target, got {tuple(rows.shape)}; name the target that it was trained for")  # fmt: skip
    return rows
