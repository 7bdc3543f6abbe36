"""DFlash: a block of tokens from a single pass, each from its own marginal distribution; and its published files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import EMBEDDING, ONE_AXIS, PLAIN, SCALED, fill_drafter, layer_names, rotary_fields
from mmspec.methods import method
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_layers import UNLIMITED, BlockDrafterConfig, spread_taps
from mmspec.vlm.drafters.base.pretrained_drafter import require_fields
from mmspec.vlm.drafters.base.published_files import for_vocabulary, named_levels, plain_names, refuse_unread


@method(
    "dflash",
    domain="vlm",
    kind="drafter",
    title="DFlash",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=8,
    about="the tokens of a block in one pass",
    paper="DFlash: Block Diffusion for Flash Speculative Decoding",
)
class DFlash(BlockDrafter):
    """Drafts the tokens of a block side by side. Exact in every shape.

    Paper: "DFlash: Block Diffusion for Flash Speculative Decoding". Rows of mask tokens behind the root see the context
    and each other, and each row predicts the token at its own position. No row knows the tokens of the others, so a
    level's distribution is a marginal. By default each row picks its best token deterministically. `Chain` samples from
    the marginals. `DynamicTree` takes the likeliest prefixes ("Accelerating Speculative Decoding with Block Diffusion
    Draft Trees").
    """

    kind: ClassVar[str] = "dflash"
    config_class = BlockDrafterConfig
    name = "dflash"
    published_as = (
        "DFlashDraftModel",
        "QwenDFlashDraftModel",
        "Qwen3DFlashDraftModel",
        "MuseGlimmerAssistantModel",
        "speculators:dflash",
    )
    writers: ClassVar[Mapping[str, str]] = {"vllm": "mmspec.vlm.export.blocks:dflash_speculators"}

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint by z-lab, `speculators` or Muse Glimmer. `target_layer_ids`
        count the layers whose output is read; `aux_hidden_state_layer_ids` of `speculators` are larger by 1. The
        formats differ in the tokens that block rows see. z-lab: full layers see all. Sliding layers see fewer than W
        tokens back and no later row of the block, unless `is_causal` or `dflash_config.causal` says otherwise.
        `speculators`: sliding layers look W tokens back from the root, and at later rows only with
        `sliding_window_non_causal`. Muse Glimmer's assistant: W tokens to both sides."""
        state, fields = published_block(state, config, target)
        drafter = cls(BlockDrafterConfig(**fields))
        return fill_drafter(drafter, state, tensor_names(state, drafter.config), UNUSED_TENSORS)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: 6 epochs of 800k answers by the target, rows of 3072 tokens; and D-PACE's."""
        from mmspec.vlm.training.recipes import block_recipe

        return {cls.kind: block_recipe(), "dflash_dpace": block_recipe(weights="dpace", per="row")}


_SIZE_FIELDS = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_hidden_layers")
# in files of `speculators`: the target's tensors, or tensors that only training needs
UNUSED_TENSORS = (EMBEDDING, "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight", "d2t", "t2d")
_READ_INSIDE = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping", "sample_from_anchor")
_MUSE_NAMES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}


def published_block(
    state: Mapping[str, Tensor],
    config: Mapping[str, Any],
    target: nn.Module | None,
    named: Callable[[str], str] = lambda name: name,
    *tables: str,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a published file's tensors under the most common names, and the fields of a BlockDrafterConfig. A config
    with a `transformer_layer_config` is in the format of `speculators`, any other in that of z-lab. The target gives
    the vocabulary where the config does not, as Muse Glimmer's. `named` changes names in the kind's own way, and
    `tables` are the names of tables with a row for each token that is read."""
    state = {named(_MUSE_NAMES.get(name, name)): value for name, value in plain_names(state).items()}
    reduced = "d2t" in state
    state, config = for_vocabulary(state, dict(config), target, *tables)
    fields = _block_fields(state, config, target)
    listed, vocab = len(state.get("d2t", ())), fields["vocab_size"]
    if config.get("draft_vocab_size", listed or vocab) != (listed or vocab):
        raise ValueError(
            f"draft_vocab_size: expected {listed or vocab}, as many tokens as the file can draft, got "
            f"{config['draft_vocab_size']}; fetch all of its tensors"
        )
    return state, fields | {
        "draft_vocab_size": listed if listed < vocab else 0,
        "tied_head": bool(listed) and not (reduced and "lm_head.weight" in state),
    }


def _block_fields(state: Mapping[str, Tensor], config: Mapping[str, Any], target: nn.Module | None) -> dict[str, Any]:
    inner = config.get("transformer_layer_config")
    layer = dict(config if inner is None else inner)
    if "vocab_size" not in layer and target is not None:
        layer["vocab_size"] = take_apart(target).vocab_size
    sizes = dict(zip(_SIZE_FIELDS, require_fields(layer, *_SIZE_FIELDS), strict=True))
    refuse_unread(layer, "attention_bias", "use_sliding_window", "sample_from_anchor", "model_type")
    refuse_unread(config.get("dflash_config", {}), *_READ_INSIDE)
    declared, count = config.get("num_target_layers"), None if target is None else take_apart(target).layers
    if None not in (declared, count) and declared != count:
        raise ValueError(
            f"num_target_layers: expected {count} as in the target, got {declared}; load this target's drafter"
        )
    heads = layer["num_attention_heads"]
    fields = sizes | {
        "num_key_value_heads": layer.get("num_key_value_heads") or heads,
        "head_dim": layer.get("head_dim") or 0,
        # `speculators` trains with positions on a single axis whatever the target has
        **rotary_fields(layer, (*(PLAIN if inner is None else ONE_AXIS), *SCALED)),
        "rms_norm_eps": layer.get("rms_norm_eps", 1e-6),
        "attention_bias": bool(layer.get("attention_bias")),
        # the MLP of Qwen3 has no biases, whatever a config copied from another model says
        "mlp_bias": bool(layer.get("mlp_bias")) and "layers.0.mlp.gate_proj.bias" in state,
    }
    declared = _speculators_fields(state, config, layer) if inner is not None else _zlab_fields(config)
    return fields | declared


def _zlab_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    own = config.get("dflash_config", {})
    if own.get("projector_type", "dflash") not in ("dflash", "dspark"):
        raise ValueError(
            f"dflash_config.projector_type: expected dflash or dspark, got {own['projector_type']!r}; this kind is "
            "not supported"
        )
    windows, sliding = _windows(config, own)
    levels = named_levels(config)
    if levels is None:  # the public class spreads them then
        if "num_target_layers" not in config:
            raise ValueError(
                "config: expected the field target_layer_ids, got none; give the config the file was made with"
            )
        spread = spread_taps(config["num_target_layers"], config["num_hidden_layers"])
        levels = tuple(layer + 1 for layer in spread), "target_layer_ids"
    causal = next((x for x in (config.get("is_causal"), own.get("causal")) if x is not None), None)
    # a window of W shows W tokens, with the row's own; Muse Glimmer's class in transformers shows W to each side
    assistant = config.get("model_type") == "muse_glimmer_assistant"
    causal = False if assistant and causal is None else causal
    return {
        "taps": tuple(level - 1 for level in levels[0]),
        "from_root": bool(_flag(config, own, "sample_from_anchor")),
        "mask_token_id": single_value(config, own, "mask_token_id"),
        "block_size": single_value(config, own, "block_size"),
        "reach": tuple(UNLIMITED if window is None else window - (not assistant) for window in windows),
        "causal": tuple(slides if causal is None else bool(causal) for slides in sliding),
        "target_hidden_size": config.get("target_hidden_size") or 0,
        "embedding_scale": float(own.get("input_embedding_scale") or 1.0),
        "output_multiplier": float(own.get("output_multiplier") or 1.0),
        "softcap": float(own.get("final_logit_softcapping") or 0.0),
    }


def _speculators_fields(
    state: Mapping[str, Tensor], config: Mapping[str, Any], layer: Mapping[str, Any]
) -> dict[str, Any]:
    windows, sliding = _windows(layer, {})
    tapped = config.get("target_hidden_size") or layer["hidden_size"]
    ids = single_value(config, {}, "aux_hidden_state_layer_ids")
    fc = state.get("fc.weight")
    if fc is not None and fc.shape[-1] == (len(ids) - 1) * tapped:
        ids = ids[:-1]  # the last is the target's final state, which only training reads
    if min(ids, default=1) < 1:
        raise ValueError(f"aux_hidden_state_layer_ids: expected outputs of layers, from 1 up, got {list(ids)}")
    return {
        "taps": tuple(level - 1 for level in ids),
        "mask_token_id": single_value(config, {}, "mask_token_id"),
        "block_size": single_value(config, {}, "block_size"),
        "reach": tuple(UNLIMITED if window is None else window for window in windows),
        "reach_from_root": True,
        "causal": tuple(slides and not config.get("sliding_window_non_causal") for slides in sliding),
        "from_root": bool(config.get("sample_from_anchor")),
        "target_hidden_size": config.get("target_hidden_size") or 0,
    }


def _flag(config: Mapping[str, Any], own: Mapping[str, Any], name: str) -> bool | None:
    """Return a field of the config or of the drafter's part of it, None where neither has it."""
    return single_value(config, own, name) if name in config or name in own else None


def single_value(config: Mapping[str, Any], own: Mapping[str, Any], name: str) -> Any:
    """Return a field from the config or from the drafter's part of it, `own`; they may not differ."""
    values = [place[name] for place in (config, own) if place.get(name) is not None]
    if not values:
        raise ValueError(f"config: expected the field {name}, got none; give the config the file was made with")
    if any(value != values[0] for value in values):
        raise ValueError(
            f"{name}: expected one value, got {values[0]} and, inside dflash_config, {values[1]}; correct it"
        )
    return values[0]


def _windows(layer: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[list[int | None], list[bool]]:
    """Return the window of each layer, None without a window, and whether the layer is a sliding layer. With `use_swa`
    inside `dflash_config`, all layers slide, whatever `layer_types` says."""
    count, width = layer["num_hidden_layers"], own.get("swa_window_size") or layer.get("sliding_window")
    kinds = layer.get("layer_types")
    if own.get("use_swa"):
        if not width:
            raise ValueError(
                "dflash_config.use_swa: expected a window in swa_window_size or sliding_window, got none; correct "
                "the config"
            )
        kinds = ["sliding_attention"] * count
    if kinds is None:
        first = layer.get("max_window_layers", count) if layer.get("use_sliding_window") and width else count
        kinds = ["full_attention" if index < first else "sliding_attention" for index in range(count)]
    if len(kinds) != count or set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types: expected full_attention or sliding_attention for {count} layers, got {kinds}")
    sliding = [kind == "sliding_attention" for kind in kinds]
    return [width if slides else None for slides in sliding], sliding


def tensor_names(state: Mapping[str, Tensor], config: BlockDrafterConfig) -> dict[str, tuple[str, ...]]:
    """Return a dict from our names of the tensors that every block drafter has to the published names."""
    names = {name: (name,) for name in ("fc.weight", "hidden_norm.weight", "norm.weight")}
    if config.draft_vocab_size:
        names |= {"head.d2t": ("d2t",), "head.t2d": ("t2d",)}
        names |= {} if config.tied_head else {"head.weight": ("lm_head.weight",)}
    for index in range(config.num_hidden_layers):
        prefix = f"layers.{index}."
        own = layer_names(prefix)
        if (fused := f"{prefix}self_attn.qkv_proj.weight") in state:
            own["layer.qkv.weight"] = (fused,)
        biased = ["qkv", "out"] * config.attention_bias + ["gate_up", "down"] * config.mlp_bias
        for name in biased:
            group = own[f"layer.{name}.weight"]
            own[f"layer.{name}.bias"] = tuple(theirs.removesuffix("weight") + "bias" for theirs in group)
        own["layer.input_norm.weight"] = (f"{prefix}input_layernorm.weight",)
        own |= {f"layer.{x}_norm.weight": (f"{prefix}self_attn.{x}_norm.weight",) for x in "qk"}
        names |= {prefix + name.removeprefix("layer."): group for name, group in own.items()}
    return names
