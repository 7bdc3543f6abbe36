"""The decoding of the low-resolution drafter: a request of its own through the same loop, a few rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun, Drafter
from mmspec.core.round.rules.by_name import resolve
from mmspec.core.round.tree import chain
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.target import Guidance, ImageTarget, Warp


class PrefixTarget(ImageTarget):
    """Raster decoding that begins behind a prefix of values int64 [B, n], n from 0 up, and stops at `stop` values."""

    def __init__(
        self, model: ImageModel, condition: object, *, guidance: Guidance, warp: Warp, prefix: Tensor, stop: int
    ):
        super().__init__(model, condition, guidance=guidance, warp=warp)
        self.prefix, self.total = prefix, stop

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        count = self.prefix.shape[1]
        draft, evidence = super().prefill()
        if not count:
            return draft, evidence
        self.cache.advance(1)  # the prompt's last slot, which no commit counts here
        index = torch.arange(count, device=self.device).expand(self.batch * self.copies, -1)
        bias = self.cache.bias(chain(count - 1, self.device).ancestor, self.model.dtype)
        scored = self.model.forward(self.prefix.repeat(self.copies, 1), index, bias, self.cache)
        scored.logits, scored.hidden = scored.logits[:, -1:], scored.hidden[:, -1:]
        self.cache.advance(count - 1)  # the prefix's last value is the root now
        self.values[:, :count] = self.prefix
        self.filled = [count] * self.batch
        self.last, self.pending = self.last + count, self.prefix[:, -1]
        draft = root_only(self.pending)
        return draft, self._evidence(draft, scored)


def draft_low_resolution(
    model: ImageModel,
    condition: object,
    *,
    guidance: Guidance,
    warp: Warp,
    keys: Keys,
    drafter: Drafter | None,
    before: Tensor,
    rows: int,
) -> tuple[Tensor, int]:
    """Return the next `rows` rows int64 [B, rows, cols] behind the codes int64 [B, r, cols], and the forward passes.
    Condition, guidance and warp are the target's; the drafter must be exact."""
    geometry, device = model.geometry, before.device
    cells = geometry.code_index.to(device)
    done, stop = before.shape[1] * geometry.stride, (before.shape[1] + rows) * geometry.stride
    values = geometry.forced.to(device).clamp_min(0).repeat(len(before), 1)
    values[:, cells[: before[0].numel()]] = before.flatten(1)
    target = PrefixTarget(model, condition, guidance=guidance, warp=warp, prefix=values[:, :done], stop=stop)
    stats = DecodingRun(target, drafter, resolve("exact", greedy=warp.greedy), keys).run()
    wanted = cells[before[0].numel() : before[0].numel() + rows * geometry.cols]
    return target.values[:, wanted].view(-1, rows, geometry.cols), stats.target_passes
