"""MTP layers in checkpoints of whole models, which transformers drops on loading, and in folders of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.io.pretrained import write_weights

# a tensor of an MTP layer, under "mtp." or as an additional layer behind the model's own
_MTP = re.compile(r"(?:^|\.)mtp\.(?P<name>.+)$")
_LAYER = re.compile(r"(?:^|\.)layers\.(?P<layer>\d+)\.(?P<name>.+)$")
_FOLDER = re.compile(r"^mtp_layers\.(?P<layer>\d+)\.(?P<name>.+)$")  # of the `speculators` library
# published name -> ours
_QWEN = {
    "pre_fc_norm_embedding.weight": "embedding_norm.weight",
    "pre_fc_norm_hidden.weight": "hidden_norm.weight",
    "fc.weight": "fc.weight",
    "norm.weight": "decoder.norm.weight",
}  # and Exaone
_DEEPSEEK = {
    "enorm.weight": "embedding_norm.weight",
    "hnorm.weight": "hidden_norm.weight",
    "eh_proj.weight": "fc.weight",
    "shared_head.norm.weight": "decoder.norm.weight",
}  # and GLM
SPECULATORS = {
    "token_layernorm.weight": "embedding_norm.weight",
    "hidden_layernorm.weight": "hidden_norm.weight",
    "input_proj.weight": "fc.weight",
    "final_layernorm.weight": "decoder.norm.weight",
}
_OWN_NAMES = _QWEN | _DEEPSEEK | SPECULATORS
COPIES = ("shared_head.head.weight", "embed_tokens.weight", "lm_head.weight")  # copies of the target's tensors
_OF_A_LAYER = ("model_type", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
               "rms_norm_eps", "vocab_size")  # fmt: skip
_EXPERT = re.compile(r"(?P<before>.*\bexperts)\.(?P<number>\d+)\.(?P<part>gate|up|down)_proj\.weight$")


def write_mtp(drafter: nn.Module, target: nn.Module, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write a layer as a checkpoint of the target's class stores it, for `load_drafter` with that target. `dtype` None
    is that of the layer. No checkpoint's layer reads states in front of the final norm, so this is refused."""
    if not drafter.config.normed:
        raise ValueError(
            "drafter: expected a layer that reads states behind the final norm, as in checkpoints, got a layer "
            "that reads them in front of it; train a layer with normed=True"
        )
    theirs = {ours: name for name, ours in _QWEN.items()}
    tensors = {}
    for name, value in drafter.state_dict().items():
        stored = theirs.get(name, name.removeprefix("decoder."))
        tensors[f"mtp.{stored}"] = value.detach().to(dtype or value.dtype).contiguous()
    # other libraries read the class of the layer from the target's own config
    config = json.loads(target.config.to_json_string())
    own = {"architectures": [type(target).__name__], "mtp_hidden_states_first": drafter.config.states_first}
    write_weights(tensors, {name: config[name] for name in config if name != "_name_or_path"} | own, folder)


def is_mtp_tensor(name: str, layers: int) -> bool:
    match = _LAYER.search(name)
    return bool(_MTP.search(name) or _FOLDER.match(name)) or (match is not None and int(match["layer"]) >= layers)


def mtp_tensors(state: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's MTP layer under our names, for a model of `layers` layers."""
    under = {match["name"]: value for name, value in state.items() if (match := _MTP.search(name))}
    folder = {match.groups(): value for name, value in state.items() if (match := _FOLDER.match(name))}
    stacks: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, value in state.items():
        match = _LAYER.search(name)
        if match and int(match["layer"]) >= layers and not _MTP.search(name):
            stacks.setdefault((name[: match.start()], int(match["layer"])), {})[match["name"]] = value
    behind = [tensors for tensors in stacks.values() if "eh_proj.weight" in tensors]  # vision towers have none
    if not under and not behind and not folder:
        raise ValueError(
            "sd: expected the checkpoint's MTP layer, named mtp.*, mtp_layers.* or layers.N.eh_proj, got none; "
            "it has none, or these are the tensors of a loaded model, which leaves them out"
        )
    inside = {match["layer"] for name in under if (match := _LAYER.search(name))} | {layer for layer, _ in folder}
    count = len(inside) or len(behind)
    if count > 1:
        raise ValueError(f"sd: expected one MTP layer, which is used again at every depth, got {count}")
    if under:
        return {_own_name(name.replace("layers.0.", "", 1), name.startswith("layers.")): v for name, v in under.items()}
    own = {name: value for (_, name), value in folder.items()} or behind[0]
    return {_own_name(name, name not in _OWN_NAMES): value for name, value in own.items()}


def check_layer_config(config: Mapping[str, Any], target: nn.Module) -> None:
    """Refuse the config of a folder of `speculators` with several layers, or another class or size than the target's."""
    if config.get("num_nextn_predict_layers", 1) != 1:
        raise ValueError(
            f"num_nextn_predict_layers: expected one MTP layer, which is used again at every depth, got "
            f"{config['num_nextn_predict_layers']}"
        )
    layer, text = config["transformer_layer_config"], target.config.get_text_config(decoder=True)
    for name in _OF_A_LAYER:
        value, own = layer.get(name), getattr(text, name, None)
        if None not in (value, own) and value != own:
            raise ValueError(
                f"transformer_layer_config: expected {name} {own!r} as in the target, got {value!r}; load the "
                "layer of this target"
            )


def _own_name(name: str, of_layer: bool) -> str:
    return f"decoder.layers.0.{name}" if of_layer else _OWN_NAMES.get(name, name)


def stack_experts(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with experts as in transformers: [experts, rows, columns], with gate and up in one tensor."""
    plain, experts = {}, {}
    for name, value in state.items():
        match = _EXPERT.match(name)
        if match is None:
            plain[name] = value
        else:
            experts.setdefault(match["before"], {}).setdefault(match["part"], {})[int(match["number"])] = value
    for before, parts in experts.items():
        if len({tuple(sorted(numbered)) for numbered in parts.values()}) > 1 or set(parts) != {"gate", "up", "down"}:
            raise ValueError(f"sd: expected gate, up and down of every expert of {before}, got some without")
        gate, up, down = (torch.stack([parts[x][n] for n in sorted(parts[x])]) for x in ("gate", "up", "down"))
        plain |= {f"{before}.gate_up_proj": torch.cat([gate, up], 1), f"{before}.down_proj": down}
    return plain
