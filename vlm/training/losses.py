"""Terms a drafter's objective is made of; each a mean over the places of a Guess."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mmspec.vlm.drafters.guess import Guess


def smooth_l1(guess: Guess) -> Tensor:
    """Distance of features, mean over the width ("EAGLE")."""
    return F.smooth_l1_loss(guess.feature.float(), guess.truth.float())


def cross_entropy(guess: Guess) -> Tensor:
    """Soft cross-entropy -sum p log q against the target's law p ("EAGLE", "EAGLE-3")."""
    return -(guess.teacher.softmax(-1) * guess.student.log_softmax(-1)).sum(-1).mean()
