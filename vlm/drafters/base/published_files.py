"""Published files as any trainer writes them: the types of config fields, fields that are not read, tensor names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.io.pretrained import EMBEDDING
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.published import vocabulary_fits

_WHOLE = frozenset(
    "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim vocab_size draft_vocab_size "
    "num_hidden_layers target_hidden_size num_target_layers num_aux_hidden_states max_position_embeddings block_size "
    "mask_token_id sliding_window swa_window_size max_window_layers num_depths markov_rank xpress_rank "
    "xpress_mlp_ratio num_jacobi_passes speculative_tokens "
    "medusa_num_heads medusa_num_layers hydra_num_heads hydra_num_layers".split()
)
_REAL = frozenset("rms_norm_eps rope_theta partial_rotary_factor".split())
_FLAGS = frozenset(
    "bias fc_bias qkv_bias attention_bias mlp_bias norm_before_residual norm_before_fc fc_norm norm_output "
    "use_sliding_window sample_from_anchor use_aux_hidden_state is_causal causal tie_word_embeddings".split()
)
_TEXTS = frozenset(
    "hidden_act hidden_activation model_type speculators_model_type projector_type markov_head_type".split()
)
_LEVELS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids", "target_layers",
           "aux_layer_ids")  # fmt: skip
_LISTS = {"architectures": str, "layer_types": str, **dict.fromkeys(_LEVELS, int)}
_PARTS = frozenset("eagle_config dflash_config transformer_layer_config speculators_config text_config".split())

# fields that change a Llama layer and leave no trace in its tensors -> values that change nothing
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"), "hidden_activation": ("silu", "swish"), "attention_bias": (False,),
    "use_sliding_window": (False,), "norm_before_fc": (False,), "fc_norm": (False,), "norm_output": (False,),
    "logit_scale": (1,), "logits_scaling": (1,), "output_multiplier": (1,), "final_logit_softcapping": (0,),
    "attn_logit_softcapping": (0,), "query_pre_attn_scalar": (), "attention_multiplier": (), "clip_qkv": (),
    "embedding_multiplier": (1,), "residual_multiplier": (1,), "scale_emb": (1,), "scale_depth": (),
    "input_embedding_scale": (1,), "is_neox_style": (True,), "use_mtp_layernorm": (False,),
    "parallel_draft_step": (0, 1), "next_layer_regular": (True,), "sample_from_anchor": (False,),
    "shift_label": (True,), "position_embedding_type": ("rope",), "use_rotary_pos_emb": (True,), "no_rope_layers": ([],),
}  # fmt: skip
# model types whose layers have a Llama layer's tensor names and compute something else
_OTHER_LAYERS = ("gemma", "cohere", "granite", "gpt_oss", "deepseek", "minicpm", "olmo", "glm4", "nemotron", "starcoder2",
                 "stablelm", "falcon", "gpt2", "gptj", "opt", "bloom", "mpt", "llama4")  # fmt: skip

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "model", "draft_model", "eagle_module", "dflash_module",
             "drafter", "ea_layer", "spec_layer")  # fmt: skip
_WRAPPED = re.compile(rf"^(?:(?:{'|'.join(_WRAPPERS)})\.)+")
_BUFFER = re.compile(r"(?:^|\.)rotary_emb\.(?:inv_freq|original_inv_freq|cos_cached|sin_cached)$")


def checked_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a published config without those that are null, which readers take for absent."""
    if isinstance(inner := config.get("model"), Mapping):  # vLLM's form, whose own model_type is "eagle"
        own = {name: value for name, value in config.items() if name not in ("model", "model_type", "architectures")}
        config = {**inner, **own}
    fields = {name: value for name, value in config.items() if value is not None}
    for name, value in fields.items():
        if name in _PARTS:
            _expect(name, value, isinstance(value, Mapping), "a group of fields")
            fields[name] = checked_fields(value)
        elif name in _LISTS:
            of = _LISTS[name]
            is_list = isinstance(value, list | tuple) and all(isinstance(x, of) and x is not True for x in value)
            _expect(name, value, is_list, f"a list of {'texts' if of is str else 'whole numbers'}")
        elif name == "proposal_methods":
            groups = isinstance(value, list) and all(isinstance(group, Mapping) for group in value)
            _expect(name, value, groups, "a list of groups of fields")
            fields[name] = [checked_fields(group) for group in value]
        elif name in _WHOLE:
            _expect(name, value, isinstance(value, int) and not isinstance(value, bool), "a whole number")
        elif name in _REAL:
            _expect(name, value, isinstance(value, int | float) and not isinstance(value, bool), "a number")
        elif name in _FLAGS:
            _expect(name, value, isinstance(value, bool), "true or false")
        elif name in _TEXTS:
            _expect(name, value, isinstance(value, str), "a text")
    return fields


def _expect(name: str, value: object, right: bool, wanted: str) -> None:
    if not right:
        raise ValueError(f"{name}: expected {wanted}, got {value!r} in config.json; correct the config")


def refuse_unread(config: Mapping[str, Any], *read: str) -> None:
    """Refuse a config, without nulls, where a field outside `read` changes the layer, by the table of neutral values."""
    for name, neutral in _NEUTRAL.items():
        if name not in read and name in config and config[name] not in neutral:
            wanted = " or ".join(map(repr, neutral)) or "no such field"
            raise ValueError(
                f"{name}: expected {wanted}, got {config[name]!r}, which changes what the drafter computes and is "
                "not supported for this kind; use another drafter"
            )
    kind = str(config.get("model_type", ""))
    if "model_type" not in read and (kind.startswith(_OTHER_LAYERS) or kind == "phi"):
        raise ValueError(
            f"model_type: expected a drafter with a Llama or Qwen layer, got {kind!r}, whose layers compute "
            "something else; use another drafter"
        )


def plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a file's tensors without the names of wrappers in front, and without tables of rotary positions."""
    plain: dict[str, Tensor] = {}
    for name, value in state.items():
        inner = _WRAPPED.sub("", name)
        if _BUFFER.search(inner):
            continue
        if inner in plain:
            raise ValueError(
                f"sd: expected each tensor once, got {inner} under several names; it is no file of a single drafter"
            )
        plain[inner] = value
    return plain


def layer_count(names: Iterable[str]) -> int:
    """Return the number of decoder layers that a drafter's tensors belong to, under plain names."""
    matches = (re.match(r"(?:layers\.(\d+)|midlayer)\.self_attn\.(?:q|qkv)_proj\.weight$", name) for name in names)
    return max((int(match[1] or 0) + 1 for match in matches if match), default=0)


def named_levels(config: Mapping[str, Any]) -> tuple[tuple[int, ...], str] | None:
    """Return the levels of the target that a config names, and the field's name; None where it names none. Levels are
    transformers' `hidden_states`: v is the output of layer v - 1. `speculators` writes levels at the top of the config
    (`eagle_aux_hidden_state_layer_ids`, `aux_hidden_state_layer_ids`). All other fields, and those inside
    `eagle_config` or `dflash_config`, count the layers whose output is read. Fields that disagree are refused."""
    by_field: dict[str, tuple[int, ...]] = {}
    for part in ("", "eagle_config", "dflash_config"):
        fields = config.get(part, {}) if part else config
        for name in _LEVELS:
            if name in fields:
                own = not part and name.endswith("aux_hidden_state_layer_ids")
                by_field[f"{part}.{name}".lstrip(".")] = tuple(level + (not own) for level in fields[name])
    by_field = {
        name: levels for name, levels in by_field.items() if levels
    }  # an empty list stands for the usual levels
    if len(set(by_field.values())) > 1:
        raise ValueError(
            f"config: expected the same layers of the target in {' and '.join(by_field)}, got outputs of layers "
            f"{' and '.join(str([v - 1 for v in levels]) for levels in by_field.values())}; correct it"
        )
    return next(((levels, name) for name, levels in by_field.items()), None)


def ordered_vocabulary(state: dict[str, Tensor], vocab: int) -> dict[str, Tensor]:
    """Return a file's tensors, under plain names, with the tokens of its reduced vocabulary in rising order, and both
    of its tables. Files hold the tokens in any order and may lack `t2d`. `vocab` counts the whole vocabulary. Tables
    that disagree, repeat a token or leave the vocabulary are refused."""
    if "d2t" not in state:
        return state
    d2t = state["d2t"]
    if d2t.dim() != 1 or d2t.is_floating_point() or d2t.dtype == torch.bool:
        raise ValueError(
            f"d2t: expected a list of whole numbers, got shape {tuple(d2t.shape)} of {d2t.dtype}; fetch the file again"
        )
    if len(d2t) == vocab and not d2t.any():  # the whole vocabulary, in order
        return {name: value for name, value in state.items() if name not in ("d2t", "t2d")}
    ids, order = (d2t.long() + torch.arange(len(d2t), device=d2t.device)).sort()
    if len(ids) and (bool((ids[1:] == ids[:-1]).any()) or not 0 <= int(ids[0]) <= int(ids[-1]) < vocab):
        raise ValueError(
            f"d2t: expected offsets to tokens from 0 to {vocab - 1}, each once, got those of {ids[:4].tolist()} to "
            f"{ids[-4:].tolist()}; fetch the file again"
        )
    marked = torch.zeros(vocab, dtype=torch.bool, device=ids.device).index_fill_(0, ids, True)
    t2d = state.get("t2d")
    if t2d is not None and (t2d.shape != marked.shape or not torch.equal(marked, t2d.bool())):
        others = int((marked != t2d.bool()).sum()) if t2d.shape == marked.shape else f"a table of {tuple(t2d.shape)}"
        raise ValueError(f"t2d: expected the tokens that d2t leads to, got {others} others; fetch the file again")
    state = {**state, "d2t": ids - torch.arange(len(ids), device=ids.device), "t2d": marked}
    rising = bool((order[1:] > order[:-1]).all())
    head = state.get("lm_head.weight")
    if not rising and head is not None and len(head) == len(order):
        state["lm_head.weight"] = head[order.to(head.device)]
    return state


def for_vocabulary(
    state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None, *read: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a file's tensors, under plain names, and config for a target's vocabulary that begins with the drafter's.
    The tokens behind it are never drafted. A stored embedding takes the target's rows for them; other tables with a row
    for each token that is read, named in `read`, take zeros. Tokens of a reduced vocabulary are sorted."""
    layer, parts = config.get("transformer_layer_config", config), None if target is None else take_apart(target)
    vocab = layer.get("vocab_size", 0 if parts is None else parts.vocab_size)
    state = ordered_vocabulary(state, vocab) if vocab else state
    if parts is None or parts.vocab_size == vocab or not vocabulary_fits(vocab, parts.vocab_size):
        return state, config
    if config.get("target_hidden_size", layer.get("hidden_size")) != parts.hidden_size:
        return state, config  # of another target, which is refused later
    theirs = parts.vocab_size
    for name in (EMBEDDING, *read):
        if (rows := state.get(name)) is None:
            continue
        if len(rows) != vocab:
            raise ValueError(
                f"{name}: expected {vocab} rows by the config, got {len(rows)}; give the config the file was made with"
            )
        of_target = name == EMBEDDING and rows.shape[1] == parts.hidden_size
        more = embedding_rows(parts)[vocab:] if of_target else rows.new_zeros(theirs - vocab, rows.shape[1])
        state[name] = torch.cat([rows, more.to(rows)])
    if "d2t" not in state:
        state |= {"d2t": torch.zeros(vocab, dtype=torch.long), "t2d": torch.ones(vocab, dtype=torch.bool)}
    state["t2d"] = F.pad(state["t2d"], (0, theirs - vocab))
    larger = {"vocab_size": theirs}
    if layer is config.get("transformer_layer_config"):
        larger = {"transformer_layer_config": {**layer, **larger}}
    return state, {**config, **larger, "draft_vocab_size": len(state["d2t"])}


def copied_head(state: Mapping[str, Tensor], target: nn.Module | None) -> tuple[str, ...]:
    """Return the name of a file's head, which must copy the target's for a drafter without a head of its own."""
    head = state.get("lm_head.weight")
    if head is None or target is None:
        return () if head is None else ("lm_head.weight",)
    theirs = take_apart(target).head.weight[: len(head)]
    if theirs.shape != head.shape or not (theirs.is_meta or torch.equal(theirs.to(head), head)):
        raise ValueError(
            "lm_head.weight: expected the target's own head or none in the file, got another; this kind reads its tokens with "
            "the target's head"
        )
    return ("lm_head.weight",)


@torch.no_grad()
def embedding_rows(parts: Parts) -> Tensor:
    """Return the target's embedding of each token, float [V, H]; some classes scale or norm the rows of their table."""
    weight = parts.embed.weight
    return weight if weight.is_meta else parts.embed(torch.arange(len(weight), device=weight.device))
