"""DSpark drafters as `speculators` saves them and as SpecForge trains them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import fill
from mmspec.vlm.drafters.context_files import context_fields, published_names, tensor_names, unused
from mmspec.vlm.drafters.dspark.drafter import DSpark, DSparkConfig

_PARTS = {"gated": ("gate_proj.weight", "gate_proj.bias"), "rnn": ("joint_proj.weight", "joint_proj.bias")}


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> DSpark:
    """The heads' sizes stand at the top of the config or in `dflash_config`; names with "logit_head." in front are older
    files'. Rows are read as they were trained, the root's with them, unless `sample_from_anchor` is false."""
    state = {name.removeprefix("logit_head."): value for name, value in published_names(state).items()}
    said = (config.get("dflash_config") or {}) | config
    fields = context_fields(state, config, target) | {"from_root": said.get("sample_from_anchor", True) is not False}
    drafter = DSpark(
        DSparkConfig(
            **fields,
            markov_rank=said.get("markov_rank", 256),
            markov_head_type=str(said.get("markov_head_type", "vanilla")).lower(),
            confidence_head=bool(said.get("enable_confidence_head", "confidence_head.proj.weight" in state)),
            confidence_with_markov=bool(said.get("confidence_head_with_markov", True)),
        )
    )
    reduced = bool(drafter.config.draft_vocab_size)
    same = ["markov_w1.weight", "markov_w2.weight", *_PARTS.get(drafter.config.markov_head_type, ())]
    same = [f"markov_head.{name}" for name in same]
    if drafter.confidence_head is not None:
        same += [f"confidence_head.proj.{part}" for part in ("weight", "bias")]
    names = tensor_names(state, drafter.config.num_hidden_layers, reduced) | {name: (name,) for name in same}
    return fill(drafter, state, names, unused(state, reduced))
