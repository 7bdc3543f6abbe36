"""Medusa: independent heads on the target's last state, a head for each depth."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import fill_drafter
from mmspec.methods import method
from mmspec.vlm.drafters.base.head_drafter import HeadBlock, HeadConfig, HeadDrafter
from mmspec.vlm.drafters.base.pretrained_drafter import require_fields
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, shift_rows


@method(
    "medusa", domain="vlm", kind="drafter", title="Medusa", exact=True, needs=("weights",), takes=shape_of, order=11,
    about="independent heads on the target's last state",
    paper="Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
)  # fmt: skip
class Medusa(HeadDrafter):
    """Predicts each depth from the target's state alone, with a head per depth. Exact in every shape.

    Paper: "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads". A head is a stack of
    residual blocks x + SiLU(Wx + b) and a linear map to the vocabulary without bias. Every block has its own weights.
    The paper's typical acceptance is the relaxed rule `TypicalAcceptance`.
    """

    kind: ClassVar[str] = "medusa"
    config_class = HeadConfig
    name = "medusa"

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(HeadBlock(config.hidden_size) for _ in range(config.layers))) for _ in range(config.heads)
        )

    def feature(self, index: int, states: Tensor) -> Tensor:
        """Return the output of head `index` for states [..., H], in the same shape."""
        return self.blocks[index](states)

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return each depth's head output for the slots from `first` on, from the state `depth` slots earlier.

        Returns:
            float [B, R - first, H] per depth.
        """
        states = slots.carry[:, first:]
        return [shift_rows(self.feature(depth, states), depth) for depth in range(min(depths, self.config.heads))]

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint.

        The config gives medusa_num_heads and medusa_num_layers, and the tensors give the widths, which published
        configs lack. In files of the whole model, names start with "medusa_head." and all other tensors are ignored as
        the target's own. In files of the heads alone, names start with the number of the head.
        """
        heads, layers = require_fields(config, "medusa_num_heads", "medusa_num_layers")
        prefix = "medusa_head." if any(name.startswith("medusa_head.") for name in state) else ""
        last = f"{prefix}0.{layers}.weight"
        if last not in state:
            raise ValueError(f"sd: expected the published keys; missing {last!r}, got {sorted(state)[:8]}")
        vocab, width = state[last].shape
        names = {}
        for head in range(heads):
            names[f"heads.{head}.weight"] = (f"{prefix}{head}.{layers}.weight",)
            for layer in range(layers):
                for part in ("weight", "bias"):
                    names[f"blocks.{head}.{layer}.linear.{part}"] = (f"{prefix}{head}.{layer}.linear.{part}",)
        drafter = cls(HeadConfig(hidden_size=width, vocab_size=vocab, heads=heads, layers=layers))
        return fill_drafter(drafter, state, names, unused=[name for name in state if name.startswith(_TARGETS)])

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: all 3 heads, 2 epochs, batch 32."""
        from mmspec.vlm.training.recipes import head_recipe

        return {cls.kind: head_recipe()}


_TARGETS = ("model.", "lm_head.")
