"""Block drafters in the files of engines: DFlash, DFlash 2, DSpark and XPress, in the format of `speculators`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.vlm.drafters.base.block_layers import UNLIMITED, BlockDrafterConfig
from mmspec.vlm.export.folder import (
    ExportOptions,
    Form,
    layer_config,
    layer_tensors,
    speculators_config,
    vocabulary_tensors,
)

if TYPE_CHECKING:
    from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
    from mmspec.vlm.drafters.dflash import DFlash
    from mmspec.vlm.drafters.dflash2 import DFlash2
    from mmspec.vlm.drafters.dspark import DSpark
    from mmspec.vlm.drafters.xpress import XPress

# fields of a config, and the only value that the library supports
_ONLY = {"latents": 0, "embedding_scale": 1.0, "output_multiplier": 1.0, "softcap": 0.0, "mlp_bias": False}


def dflash_speculators(drafter: DFlash, options: ExportOptions) -> Form:
    """Return DFlash's config and tensors as the `speculators` library saves them and vLLM reads them."""
    return _form(drafter, "dflash", "DFlashDraftModel", options)


def dflash2_speculators(drafter: DFlash2, options: ExportOptions) -> Form:
    own = drafter.config
    if own.from_root:
        raise ValueError(
            "from_root: expected False, got True; engines read no DFlash 2 whose root drafts, use a drafter without"
        )
    config, tensors = _form(drafter, "dflash2", "DFlash2DraftModel", options)
    sizes = {"conv_kernel_size": own.conv_taps, "conv_group_size": own.conv_group, "selector_rank": own.selector_rank,
             "selector_top_k": own.selector_top}  # fmt: skip
    return config | sizes, tensors | _named(drafter, "candidate_selector.", "_conv.")


def dspark_speculators(drafter: DSpark, options: ExportOptions) -> Form:
    """A correction that reads a reduced vocabulary gets a row for every token; tokens outside share their row."""
    own = drafter.config
    if own.markov_rank and own.markov_head_type == "rnn" and not own.from_root and not own.root_first:
        raise ValueError(
            "root_first: expected True for a recurrent correction, got False; the speculators library reads the "
            "root's row first, train with root_first=True"
        )
    config, tensors = _form(drafter, "dspark", "DSparkDraftModel", options)
    heads = {
        "markov_rank": own.markov_rank,
        "markov_head_type": own.markov_head_type,
        "enable_confidence_head": own.confidence_head,
        "confidence_head_with_markov": own.confidence_with_markov and own.markov_rank > 0,
    }
    tensors |= _named(drafter, "markov_head.", "confidence_head.")
    if own.reduced_markov and drafter.vocabulary is not None:
        rows = drafter.columns(torch.arange(own.vocab_size, device=drafter.vocabulary.device))
        tensors["markov_head.markov_w1.weight"] = drafter.markov_head.markov_w1.weight[rows]
    return config | heads, tensors


def xpress_speculators(drafter: XPress, options: ExportOptions) -> Form:
    own = drafter.config
    config, tensors = _form(drafter, "xpress", "XPressDraftModel", options)
    sizes = {"xpress_rank": own.refiner_rank, "xpress_mlp_ratio": own.refiner_ratio, "num_jacobi_passes": own.passes}
    return config | sizes, tensors | _named(drafter, "refiner_head.")


def _form(drafter: BlockDrafter, kind: str, architecture: str, options: ExportOptions) -> Form:
    own = drafter.config
    _check_config(own)
    layers = layer_config(own, "qwen3", options, own.num_hidden_layers)
    layers |= _window_fields(own)
    config = speculators_config(kind, architecture, drafter.width, layers, own.drafted, options) | {
        "block_size": own.block_size,
        "mask_token_id": own.mask_token_id,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in own.taps],
        "sample_from_anchor": own.from_root,
        "sliding_window_non_causal": _slides(own) and not any(own.causal),
        "target_hidden_size": None,
    }
    names = ("fc.weight", "hidden_norm.weight", "norm.weight")
    tensors = {name: drafter.get_parameter(name) for name in names}
    for index, layer in enumerate(drafter.layers):
        tensors |= layer_tensors(layer, f"layers.{index}.")
    head = drafter.head
    if head is not None and head.reduced:
        rows = head.rows_of(options.verifier.head) if head.weight is None else head.weight
        tensors |= {"lm_head.weight": rows} | vocabulary_tensors(head)
    return config, tensors


def _named(drafter: BlockDrafter, *parts: str) -> dict[str, Tensor]:
    """Return the tensors whose names hold one of `parts`; the library uses the same names."""
    return {name: value for name, value in drafter.state_dict().items() if any(part in name for part in parts)}


def _slides(config: BlockDrafterConfig) -> bool:
    return any(reach != UNLIMITED for reach in config.reach)


def _check_config(config: BlockDrafterConfig) -> None:
    for name, only in _ONLY.items():
        if (value := getattr(config, name)) != only:
            raise ValueError(
                f"{name}: expected {only}, got {value}; the speculators library has no such part, train a "
                "drafter without it"
            )
    if config.tapped != config.hidden_size:
        raise ValueError(
            f"target_hidden_size: expected {config.hidden_size} as of the drafter's own rows, got "
            f"{config.tapped}; the speculators library reads no states of another width"
        )
    if config.draft_vocab_size == config.vocab_size and not config.tied_head:
        raise ValueError(
            f"draft_vocab_size: expected fewer than all {config.vocab_size} tokens or the target's head, got a "
            "head of the drafter's own for all; the speculators library takes the target's"
        )


def _window_fields(config: BlockDrafterConfig) -> dict[str, Any]:
    sliding = [reach != UNLIMITED for reach in config.reach]
    reaches = {reach for reach in config.reach if reach != UNLIMITED}
    causal = {shown for shown, slides in zip(config.causal, sliding, strict=True) if slides}
    if any(shown for shown, slides in zip(config.causal, sliding, strict=True) if not slides):
        raise ValueError(
            "causal: expected full layers that show all of a block, got a causal layer; the speculators library "
            "has none"
        )
    if len(reaches) > 1 or len(causal) > 1:
        raise ValueError(
            f"reach, causal: expected the same of all sliding layers, got {config.reach} and {config.causal}; "
            "the speculators library has one window"
        )
    if reaches and not config.reach_from_root:
        raise ValueError(
            "reach_from_root: expected True, got False; windows of the speculators library count from the root"
        )
    return {
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding],
        "sliding_window": next(iter(reaches), None),
        "use_sliding_window": bool(reaches),
    }
