"""Medusa: independent heads on the target's last state, a head for each depth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import fill_drafter
from mmspec.methods import method
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.head_drafter import HeadBlock, HeadConfig, HeadDrafter
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, shift_rows


@method(
    "medusa",
    domain="vlm",
    kind="drafter",
    title="Medusa",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=11,
    about="independent heads on the target's last state",
    paper="Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
)
class Medusa(HeadDrafter):
    """Predicts each depth from the target's state alone, with a head per depth. Exact in every shape.

    Paper: "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads". A head is a stack of
    residual blocks x + SiLU(Wx + b) and a linear map to the vocabulary without bias. Every block has its own weights.
    The paper's typical acceptance is the relaxed rule `TypicalAcceptance`.
    """

    kind: ClassVar[str] = "medusa"
    config_class = HeadConfig
    name = "medusa"
    published_as = ("MedusaModel", "MedusaForCausalLM")
    padded_vocabulary: ClassVar[bool] = True

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(HeadBlock(config.hidden_size) for _ in range(config.layers))) for _ in range(config.heads)
        )

    def feature(self, index: int, states: Tensor) -> Tensor:
        """Return the output of head `index` for states [..., H], in the same shape."""
        return self.blocks[index](states)

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return float [B, R - first, H] per depth, from the state `depth` slots earlier."""
        states = slots.carry[:, first:]
        return [shift_rows(self.feature(depth, states), depth) for depth in range(min(depths, self.config.heads))]

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Names start with "medusa_head." in files of the whole model, whose other tensors are ignored as the target's,
        and with the head's number in files of heads alone. vLLM's files have "blocks" and "lm_heads". Heads without an
        output layer predict a state that the target's head reads."""
        state = _numbered(state)
        blocks = [tuple(map(int, match.groups())) for name in state if (match := _BLOCK.match(name))]
        if not blocks:
            raise ValueError(f"sd: expected the published keys; missing '0.0.linear.weight', got {sorted(state)[:8]}")
        heads, layers = (max(numbers) + 1 for numbers in zip(*blocks, strict=True))
        for field, count in (("medusa_num_heads", heads), ("medusa_num_layers", layers)):
            declared = config.get(field, count)
            if declared > count or field == "medusa_num_layers" and declared != count:
                raise ValueError(
                    f"{field}: expected {count} as in the tensors, got {declared}; fetch all tensors of the heads"
                )
        outputs = [f"{head}.{layers}.weight" for head in range(heads)]
        own = any(name in state for name in outputs)
        if not own and target is None:
            raise ValueError(
                "target: expected the model whose head these heads share, got none; load them with the target"
            )
        width = state["0.0.linear.weight"].shape[0] if "0.0.linear.weight" in state else 0
        vocab = len(state[outputs[0]]) if outputs[0] in state else config.get("vocab_size", 0)
        vocab = vocab or (0 if target is None else take_apart(target).vocab_size)
        names = {f"heads.{head}.weight": (name,) for head, name in enumerate(outputs) if own}
        for head, layer in product(range(heads), range(layers)):
            for part in ("weight", "bias"):
                names[f"blocks.{head}.{layer}.linear.{part}"] = (f"{head}.{layer}.linear.{part}",)
        drafter = cls(HeadConfig(width or 1, vocab or 1, heads, layers, own_head=own))
        return fill_drafter(drafter, state, names)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: all 3 heads, 2 epochs, batch 32."""
        from mmspec.vlm.training.recipes import head_recipe

        return {cls.kind: head_recipe()}


_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.weight$")
_HEAD = re.compile(r"(?:^|\.)medusa_heads?\.(\d+\..+)$")


def _numbered(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    heads = {match[1]: value for name, value in state.items() if (match := _HEAD.search(name))}
    if heads:
        return heads
    plain = {name.removeprefix("module."): value for name, value in state.items()}
    blocks = {re.sub(r"^blocks\.(\d+)\.layers\.", r"\1.", name): value for name, value in plain.items()}
    last = max((int(match[2]) + 1 for name in blocks if (match := _BLOCK.match(name))), default=1)
    return {re.sub(r"^lm_heads\.(\d+)\.", rf"\g<1>.{last}.", name): value for name, value in blocks.items()}
