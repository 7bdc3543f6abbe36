"""Random keys with one mistake each."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.certify.mutants import RuleMutant
from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import Weights


class ResidualIsDraft(Keys):
    """The residual is drawn with the number that drew the first drafted value."""

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        if purpose == Purpose.RESIDUAL:
            return Keys.uniform(self, Purpose.DRAFT, 1 + shape[0])[:, 1:]
        return Keys.uniform(self, purpose, *shape, step=step)


class AcceptIsDraft(Keys):
    """A value is tested with the number that drew it."""

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        return Keys.uniform(self, Purpose.DRAFT if purpose == Purpose.ACCEPT else purpose, *shape, step=step)


class OneRound(Keys):
    """The round is left out of the key."""

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        return Keys.uniform(Keys(self.seeds), purpose, *shape, step=step)


class ByPosition(Keys):
    """Tests are keyed by the position in the text, so a number seen in one round returns in the next."""

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        if purpose != Purpose.ACCEPT:
            return Keys.uniform(self, purpose, *shape, step=step)
        position = _POSITION.setdefault(id(self), torch.zeros_like(self.seeds))
        lanes = Keys.uniform(Keys(self.seeds), purpose, int(position.max()) + shape[0])
        return lanes.gather(1, position[:, None] + torch.arange(shape[0]))


class CountsPositions(RuleMutant):
    """Tells `ByPosition` how far each row has come."""

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        verdict = self.rule.resample(evidence, draft, weights, verdict, keys)
        _POSITION[id(keys)] = _POSITION[id(keys)] + verdict.depth + 1
        return verdict


_POSITION: dict[int, Tensor] = {}
