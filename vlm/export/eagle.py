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

TOKENS = 3  # the default length of a draft, as `speculators` trains


def eagle3_speculators(drafter: Eagle3, options: ExportOptions) -> Form:
    """Return EAGLE-3's config and tensors as the `speculators` library saves them and vLLM reads them. Layer ids are
    written unchanged: v is transformers' hidden_states[v] there too. `norm_before_residual` is always written, since
    vLLM defaults to True and the library to False."""
    config = speculators_config(
        "eagle3", "Eagle3Speculator", drafter.config.drafted, _layers(drafter, options), TOKENS, options
    )
    config |= _norm_fields(drafter) | {"embed_requires_grad": drafter.config.own_embedding}
    return config, _tensors(drafter, options)


def peagle_speculators(drafter: PEagle, options: ExportOptions) -> Form:
    own = drafter.config
    layers = _layers(drafter, options)
    config = speculators_config("peagle", "PEagleSpeculator", own.drafted, layers, own.depths, options)
    config |= _norm_fields(drafter) | {"embed_requires_grad": True, "mask_token_id": own.mask_token_id}
    return config, _tensors(drafter, options) | {"mask_hidden": drafter.mask_hidden}


def eagle3_sglang(drafter: Eagle3, options: ExportOptions) -> Form:
    """Return EAGLE-3's config and tensors as SGLang reads them. Layer ids are written less 1: SGLang adds 1 to the ids
    of a config, so that v means the output of layer v. SGLang passes such states to drafters for Qwen2.5-VL, Qwen3-VL,
    Llama 4 and Gemma, but not for Llava. It shares the target's embedding, so none is written."""
    for name, value in _PLAIN.items():
        if (own := getattr(drafter.config, name)) != value:
            raise ValueError(
                f"{name}: expected {value}, got {own}; SGLang's class of EAGLE-3 has no such option, export for "
                "vLLM instead"
            )
    tensors = _tensors(drafter, options)
    del tensors["embed_tokens.weight"]
    layers = {name: value for name, value in _layers(drafter, options).items() if name not in _WINDOW_FIELDS}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layers,
        "draft_vocab_size": drafter.config.drafted,
        "norm_before_residual": False,
        "torch_dtype": dtype_name(options.dtype),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [level - 1 for level in drafter.levels],
        },
    }, tensors


# the only values that SGLang's class supports
_PLAIN = {
    "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False, "windows": (0,),
    "num_hidden_layers": 1, "qk_norm": False, "attention_bias": False, "mlp_bias": False, "own_embedding": False,
}  # fmt: skip
_WINDOW_FIELDS = ("layer_types", "sliding_window", "use_sliding_window")


def _layers(drafter: Eagle3, options: ExportOptions) -> dict[str, Any]:
    """Engines take three states in the order of the layers, each once, and none in front of the first layer."""
    own, levels = drafter.config, drafter.levels
    if "mrope_section" in own.rope_scaling:
        raise ValueError(
            f"rope_scaling: expected positions on a single axis, got {own.rope_scaling}; engines give an exported drafter no "
            "others, use the publisher's own files there"
        )
    if len(levels) != 3 or levels[0] < 1 or not levels[0] < levels[1] < levels[2]:
        raise ValueError(f"levels: expected three rising layers from 1, got {levels}; train the drafter on such levels")
    windows = {window for window in own.windows if window}
    if len(windows) > 1:
        raise ValueError(
            f"windows: expected the same of all sliding layers, got {own.windows}; the speculators library has "
            "one window"
        )
    if own.qk_norm and own.mlp_bias:
        raise ValueError(
            "mlp_bias: expected False beside norms of queries and keys, got True; Qwen3's class has no such biases"
        )
    fields = layer_config(own, "qwen3" if own.qk_norm else "llama", options, own.num_hidden_layers)
    kinds = ["sliding_attention" if window else "full_attention" for window in own.windows]
    sliding = (kinds, next(iter(windows), None), bool(windows))
    return fields | {"mlp_bias": own.mlp_bias} | dict(zip(_WINDOW_FIELDS, sliding, strict=True))


def _norm_fields(drafter: Eagle3) -> dict[str, Any]:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: getattr(drafter.config, name) for name in names} | {
        "target_hidden_size": drafter.config.target_hidden_size or None,
        "eagle_aux_hidden_state_layer_ids": list(drafter.levels),
    }


def _tensors(drafter: Eagle3, options: ExportOptions) -> dict[str, Tensor]:
    head, embedding = drafter.head, drafter.embed_tokens
    tensors = vocabulary_tensors(head) | {
        "layers.0.input_layernorm.weight": drafter.embed_norm.weight,
        "layers.0.hidden_norm.weight": drafter.state_norm.weight,
        "fc.weight": drafter.fc.weight,
        "norm.weight": drafter.norm.weight,
        "lm_head.weight": head.rows_of(options.verifier.head) if head.weight is None else head.weight,
        "embed_tokens.weight": _of_target(drafter, options) if embedding is None else embedding.weight,
    }
    for index, layer in enumerate(drafter.layers):
        tensors |= layer_tensors(layer, f"layers.{index}.")
    if drafter.levels_norm is not None:
        tensors["input_norm.weight"] = drafter.levels_norm.weight
    return tensors | {f"fc_norm.{n}.weight": norm.weight for n, norm in enumerate(drafter.level_norms)}


def _of_target(drafter: Eagle3, options: ExportOptions) -> Tensor:
    """Return the target's embedding, float [V, H]."""
    rows, config = options.verifier.embedding, drafter.config
    if rows.shape != (config.vocab_size, config.hidden_size):
        raise ValueError(
            f"verifier: expected an embedding of shape {(config.vocab_size, config.hidden_size)} as of the "
            f"drafter's target, got {tuple(rows.shape)}; name the target that it was trained for"
        )
    return rows
