"""The head of judge decoding, which separates correct from wrong continuations by the target's own state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from mmspec.core.layers.fingerprint import module_like
from mmspec.core.round.rules.judge import Judge
from mmspec.io.validation import Size, check_fields
from mmspec.methods import MethodParts, method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter, weights_of


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    hidden_size: Size

    __post_init__ = check_fields


class JudgeHead(PretrainedDrafter):
    """Two logits of the target's last state at a token, wrong and correct; it drafts nothing, and `train_judge` trains
    it. Paper: "Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model Alignment"."""

    kind: ClassVar[str] = "judge"
    config_class = JudgeConfig
    name = "judge"
    config: JudgeConfig

    def __init__(self, config: JudgeConfig):
        super().__init__(config)
        self.linear = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden).float()

    def accepts(self, hidden: Tensor) -> Tensor:
        """Return the probability that the last token read is correct, float32 [...], from states [..., H]."""
        return module_like(self, hidden)(hidden).softmax(-1)[..., 1]

    def check(self, parts: Parts) -> None:
        if self.config.hidden_size != parts.hidden_size:
            raise ValueError(
                f"head: expected hidden_size {parts.hidden_size} as in the target, got "
                f"{self.config.hidden_size}; train a head for this target"
            )

    def rule(self, threshold: float = 0.5) -> Judge:
        return Judge(self.accepts, threshold, self.config.hidden_size)


@method(
    "judge",
    domain="vlm",
    kind="rule",
    title="judge",
    exact=False,
    needs=("weights",),
    order=14,
    saved=JudgeHead.kind,
    drafts=("sampled chain", "n-grams"),
    about="a head on the target's state accepts tokens that are correct without being likely",
    paper="Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model Alignment",
)
def judge(parts: MethodParts, threshold: float = 0.5) -> Judge:
    """Return the rule of an available head.

    Args:
        parts: The target and the head, "weights".
        threshold: The probability of a correct token above which it is accepted; from 1 on the rule is exact.
    """
    return weights_of(JudgeHead, parts).rule(threshold)
