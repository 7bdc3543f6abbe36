"""The folder that an engine reads: its files, and the parts of config and tensors that all kinds of drafters share."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer
from mmspec.io.files import replacing, write_json_atomic
from mmspec.io.pretrained import CONFIG, WEIGHTS
from mmspec.io.validation import Size, check_fields
from mmspec.methods import methods
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter
from mmspec.vlm.drafters.reduced_vocabulary import ReducedHead
from mmspec.vlm.export.verifier import Verifier

SPECULATORS_VERSION = "0.9.0"  # the version of the format
Form = tuple[dict[str, Any], dict[str, Tensor]]  # the fields of config.json and the tensors


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The parts of an exported config that the drafter's own config does not give.

    Attributes:
        verifier: The target.
        dtype: The dtype of the stored weights.
        speculative_tokens: The default length of a draft; None for the kind's own.
        max_position_embeddings: The longest context, to which engines cut the target's; None for the target's.
    """

    verifier: Verifier
    dtype: torch.dtype = torch.bfloat16
    speculative_tokens: Size | None = None
    max_position_embeddings: Size | None = None

    __post_init__ = check_fields

    @property
    def positions(self) -> int:
        """The longest context."""
        return self.max_position_embeddings or self.verifier.max_position_embeddings


def export_drafter(
    drafter: PretrainedDrafter,
    folder: str | Path,
    *,
    engine: str = "vllm",
    verifier: Verifier | str,
    dtype: torch.dtype = torch.bfloat16,
    speculative_tokens: int | None = None,
    max_position_embeddings: int | None = None,
) -> Path:
    """Write config.json and model.safetensors that an engine serves; each file is written completely or not at all.

    vLLM serves the folder itself (`--model FOLDER`), SGLang beside its target (`--speculative-draft-model-path
    FOLDER`). vLLM's drafters embed token ids alone: picture slots get the placeholder's embedding with the target's
    true states. A drafter trained here read the merged embeddings, so its drafts are a little worse there until some
    text follows the picture.

    Args:
        drafter: A trained drafter.
        folder: The folder, created where it does not exist.
        engine: One of `engines`.
        verifier: The target; a text is a folder or a hub id, see `Verifier.of`.
        dtype: The dtype of the stored weights.
        speculative_tokens: The default length of a draft; None for the kind's own.
        max_position_embeddings: The longest context; None for the target's.

    Returns:
        The folder.

    Raises:
        ValueError: The engine does not support this kind, or computes a part of this drafter in another way.
    """
    write = _writer(drafter, engine)
    verifier = Verifier.of(verifier) if isinstance(verifier, str) else verifier
    config, tensors = write(drafter, ExportOptions(verifier, dtype, speculative_tokens, max_position_embeddings))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as path:
        save_file({name: _stored(value, dtype) for name, value in tensors.items()}, path, metadata={"format": "pt"})
    write_json_atomic(folder / CONFIG, config)
    return folder


def engines() -> tuple[str, ...]:
    return tuple(sorted({engine for info in methods("vlm", "drafter") for engine in info.facts.get("engines", ())}))


def _writer(drafter: PretrainedDrafter, engine: str) -> Any:
    writers = getattr(drafter, "writers", {})
    if engine in writers:
        module, _, name = writers[engine].partition(":")
        return getattr(import_module(module), name)
    kind = getattr(drafter, "kind", type(drafter).__name__)
    if engine not in engines():
        raise ValueError(f"engine: expected one of {', '.join(engines())}, got {engine!r}; choose one")
    supported = [info.name for info in methods("vlm", "drafter") if engine in info.facts.get("engines", ())]
    others = f"; {' and '.join(writers)} would" if writers else ""
    raise ValueError(f"drafter: expected one of {', '.join(supported)}, which {engine} supports, got {kind}{others}")


def _stored(value: Tensor, dtype: torch.dtype) -> Tensor:
    # a copy: slices of one weight share its storage, which the file format refuses
    kind = dtype if value.is_floating_point() else value.dtype
    return value.detach().to("cpu", kind, copy=True).contiguous()


def speculators_config(
    kind: str,
    architecture: str,
    drafted: int,  # the tokens that it can draft
    layer: dict[str, Any],  # the `transformer_layer_config`, see `layer_config`
    tokens: int,  # the length of its drafts where the options do not set it
    options: ExportOptions,
) -> dict[str, Any]:
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": options.speculative_tokens or tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": drafted,
        "tie_word_embeddings": False,
        "dtype": dtype_name(options.dtype),
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": options.verifier.name, "architectures": options.verifier.architectures},
        },
    }


def layer_config(config: Any, model_type: str, options: ExportOptions, layers: int = 1) -> dict[str, Any]:
    """Return the config of a "llama" or "qwen3" model, from a config with `layer` and the target's vocab_size."""
    layer = config.layer()
    return {
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": layer.groups,
        "head_dim": layer.dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": options.positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,  # read by older versions; `rope_parameters` by newer versions
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default", **layer.rope_scaling},
        "attention_bias": layer.qkv_bias,
        "tie_word_embeddings": False,
    }


def layer_tensors(layer: DraftLayer, prefix: str) -> dict[str, Tensor]:
    """Return weights, [out, in] as in torch, by the names of Llama and Qwen3 behind a prefix such as "layers.0."."""
    config = layer.config
    rows = [heads * config.dim for heads in (config.num_attention_heads, config.groups, config.groups)]
    gate, up = layer.gate_up.weight.chunk(2)
    weights = {
        **{f"self_attn.{x}_proj": part for x, part in zip("qkv", layer.qkv.weight.split(rows), strict=True)},
        "self_attn.o_proj": layer.out.weight,
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": layer.down.weight,
        "post_attention_layernorm": layer.norm.weight,
    }
    norms = {"input_layernorm": "input_norm", "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm"}
    modules = {name: getattr(layer, own, None) for name, own in norms.items()}
    weights |= {name: norm.weight for name, norm in modules.items() if isinstance(norm, nn.RMSNorm)}
    biases: dict[str, Tensor] = {}
    if layer.qkv.bias is not None:
        biases |= {f"self_attn.{x}_proj": part for x, part in zip("qkv", layer.qkv.bias.split(rows), strict=True)}
    if layer.gate_up.bias is not None:
        biases |= {f"mlp.{x}_proj": part for x, part in zip(("gate", "up"), layer.gate_up.bias.chunk(2), strict=True)}
    for name, linear in {"self_attn.o_proj": layer.out, "mlp.down_proj": layer.down}.items():
        biases |= {} if linear.bias is None else {name: linear.bias}
    named = {f"{prefix}{name}.weight": weight for name, weight in weights.items()}
    return named | {f"{prefix}{name}.bias": bias for name, bias in biases.items()}


def vocabulary_tensors(head: ReducedHead) -> dict[str, Tensor]:
    """Return the tables d2t int64 [draft] of offsets and t2d bool [vocab]; none if the head scores all tokens."""
    return {"d2t": head.d2t, "t2d": head.t2d} if head.reduced else {}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
