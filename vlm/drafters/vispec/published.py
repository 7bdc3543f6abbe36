"""ViSpec drafters as their authors publish them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import ONE_AXIS, feature_fields, fill, layer_names
from mmspec.vlm.drafters.vispec import ViSpec, ViSpecConfig

QUERIES = "imadpt.q"


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> ViSpec:
    """num_q is no field of the config: it is read off the adaptor's queries. Biases of queries, keys and values, the
    adaptor's among them, are there where the config says `qkv_bias`; fc and the injection have theirs unless it says
    `bias` false.

    Raises ValueError also for a file of the first stage, which has no adaptor: load that one as "eagle2".
    """
    fields = feature_fields(config, ONE_AXIS)
    if QUERIES not in state:
        raise ValueError(f"sd: expected {QUERIES} of a vision adaptor, got none; load a stage-1 file as 'eagle2'")
    names = {
        **layer_names("layers.0.", fields["qkv_bias"]),
        "fc.weight": ("fc.weight",),
        "inject.weight": ("img_fc.weight",),
        "adaptor.q": (QUERIES,),
        **{f"adaptor.{x}_proj.weight": (f"imadpt.{x}_proj.weight",) for x in "kvo"},
    }
    if fields["qkv_bias"]:
        names |= {f"adaptor.{x}_proj.bias": (f"imadpt.{x}_proj.bias",) for x in "kv"}
    if fields["bias"]:
        names |= {"fc.bias": ("fc.bias",), "inject.bias": ("img_fc.bias",)}
    return fill(ViSpec(ViSpecConfig(**fields, num_q=state[QUERIES].shape[0])), state, names)
