"""SpecDec++: a small head on the drafter's state says how likely its last token is accepted, see `control.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.pretrained import PretrainedDrafter


@dataclass(frozen=True, slots=True)
class AcceptanceConfig:
    """hidden_size: width of the drafter's state.   num_layers: residual blocks."""

    hidden_size: int
    num_layers: int = 3

    def __post_init__(self) -> None:
        if self.hidden_size < 1 or self.num_layers < 0:
            raise ValueError(
                f"expected hidden_size of at least 1 and num_layers of at least 0, got {self}; change them"
            )


class AcceptanceHead(PretrainedDrafter):
    """Blocks x + SiLU(W x + b), then two logits: reject and accept ("SpecDec++: Boosting Speculative Decoding via Adaptive
    Candidate Lengths").

    It reads the drafter's last hidden state at a drafted token and judges that token. Saved and loaded like a drafter,
    whose size it has to fit; it drafts nothing itself. As in Medusa's, a new block starts as the identity.

    Where we differ from the public code: that one makes its blocks by multiplying a list, so all of them are one block with
    one set of weights; here each block has its own, as the paper has it. Published files, which hold the one block several
    times, load as they are (`drafter_from_state_dict("specdecpp", ...)`) and compute what they always did.
    """

    kind: ClassVar[str] = "specdecpp"
    config_class = AcceptanceConfig
    name = "specdecpp"
    config: AcceptanceConfig

    def __init__(self, config: AcceptanceConfig):
        super().__init__(config)
        width = config.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(config.num_layers))
        self.judge = nn.Linear(width, 2)
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def forward(self, feature: Tensor) -> Tensor:
        """float32 [..., 2], logits of reject and accept, from states [..., H]."""
        x = feature
        for block in self.blocks:
            x = x + F.silu(F.linear(x, block.weight, block.bias))
        return F.linear(x, self.judge.weight, self.judge.bias).float()

    def accepts(self, feature: Tensor) -> Tensor:
        """float32 [...], the chance that the token read last is accepted, from states [..., H]."""
        return self(feature).softmax(-1)[..., 1]

    def check(self, parts: Parts) -> None:
        """Raises ValueError when the head was made for states of another width than a feature drafter of this target has."""
        if self.config.hidden_size != parts.hidden_size:
            raise ValueError(f"head: expected hidden_size {parts.hidden_size} as in the target, got "
                             f"{self.config.hidden_size}; train one for this drafter")  # fmt: skip
