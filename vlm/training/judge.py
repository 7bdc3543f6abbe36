"""Training of the head of judge decoding on labelled tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.vlm.drafters.judge_head import JudgeConfig, JudgeHead
from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.teacher import Teacher


@dataclass(slots=True)
class JudgedTokens:
    hidden: Tensor  # float32 [n, H], the target's last states after each token
    right: Tensor  # bool [n], whether the token is a correct continuation

    @classmethod
    def joined(cls, parts: Iterable[JudgedTokens]) -> JudgedTokens:
        parts = list(parts)
        return cls(torch.cat([part.hidden for part in parts]), torch.cat([part.right for part in parts]))


@torch.no_grad()
def judged_tokens(teacher: Teacher, examples: Sequence[Example], right: Mapping[str, Sequence[bool]]) -> JudgedTokens:
    """Return the labelled tokens of answers, with the states of the target that has read them. `right` has a label of
    every token by the key of a request, whose tokens have no limit."""
    batch = teacher(examples)
    hidden, labels = [], []
    for row, example in enumerate(examples):
        states = batch.last[row, batch.answer[row]]
        own = list(right[example.key])
        if len(own) != len(states):
            raise ValueError(
                f"right: expected a label for each of {len(states)} tokens of {example.key!r}, got {len(own)}"
            )
        hidden.append(states.float())
        labels += own
    return JudgedTokens(torch.cat(hidden), torch.tensor(labels, device=batch.last.device))


def judge_loss(logits: Tensor, right: Tensor) -> Tensor:
    """Return the cross-entropy in which wrong and right tokens have the same total weight. `logits` is float32 [n, 2],
    for wrong and correct, and `right` bool [n]."""
    each = F.cross_entropy(logits, right.long(), reduction="none")
    counts = torch.stack([(~right).sum(), right.sum()]).clamp_min(1)
    return (each / counts[right.long()]).sum() / 2


def train_judge(tokens: JudgedTokens, decay: float = 1e-4, steps: int = 100) -> JudgeHead:
    """Train a head on all tokens at once by at most `steps` of L-BFGS; the problem is convex. `decay` weighs the
    squared weights in the loss."""
    if bool(tokens.right.all()) or not bool(tokens.right.any()):
        raise ValueError(
            f"right: expected right and wrong tokens, got {len(tokens.right)} of one kind; label more answers"
        )
    head = JudgeHead(JudgeConfig(tokens.hidden.shape[-1])).to(tokens.hidden.device)
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.zero_()
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = judge_loss(head(tokens.hidden), tokens.right) + decay * head.linear.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return head.eval().requires_grad_(False)


@torch.no_grad()
def judge_figures(head: JudgeHead, tokens: JudgedTokens, threshold: float = 0.5) -> dict[str, float]:
    """Return the shares of right tokens and of wrong tokens that a head accepts."""
    accepted = head.accepts(tokens.hidden) > threshold
    return {
        "right_accepted": float(accepted[tokens.right].float().mean()),
        "wrong_accepted": float(accepted[~tokens.right].float().mean()),
    }
