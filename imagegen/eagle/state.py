"""One request of an image drafter: both branches in a cache of its own, and the drafts it proposes."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, gather_nodes, root_only
from mmspec.core.drafting import grow
from mmspec.core.drafting.pending_features import PendingFeatures
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.pool import SlotPool
from mmspec.core.tree import chain
from mmspec.core.verdict import Verdict
from mmspec.imagegen.eagle.prompt import prompt_slots
from mmspec.imagegen.target import ImageTarget


class EagleState:
    """Keeps the slots of committed pairs (state before value i, embedding of value i) in a cache of its own.

    Features are held with the branches side by side, [B, n, C * H], as the target's evidence holds its states; the layer
    and the head see them as rows [C * B, n, H].
    root: float [B, C * H], the predicted state behind the last committed value.   pending_features: pairs accepted since.
    read: int64 [B], index of the value that the next pair embeds.   turned: rotary rows of the draft under way, [B or
        C * B, 1 + longest, 2, dim], by depth.   index: int64 [B, 1], of the root's value.
    """

    def __init__(self, drafter: object, target: ImageTarget):
        self.drafter, self.target, self.passes = drafter, target, 0
        self.shape = drafter.shape_for(target.greedy)
        self.copies, self.model = target.copies, target.model
        self.pending_features = PendingFeatures()
        longest = self.shape.longest
        self.rotary = drafter.rotary(target.geometry, 2 * longest + 20)
        self.steps = torch.arange(longest + 1, device=target.device)
        self.read = torch.zeros(target.batch, dtype=torch.long, device=target.device)
        self.root = self.turned = self.index = None
        if target.prompt_hidden is None:
            raise ValueError(f"drafter: expected the prompt's hidden states, got none from {target.model.name}; use a drafter "
                             "that needs none, such as SJD")  # fmt: skip
        slots = prompt_slots(drafter, self.model, target.prompt_hidden, target.cache.hidden)
        self.cache = SlotPool(1, slots.attend.shape[1] + target.total + 64, copies=self.copies)
        self.passes += slots.write(drafter.layer, self.cache)

    def observe(self, target: ImageTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Notes the accepted pairs; they are read before a draft."""
        self.pending_features.note(target.paths, draft, evidence, verdict)

    @torch.no_grad()
    def propose(self, target: ImageTarget, keys: Keys) -> Draft:
        """A draft in the request's shape."""
        rooms = [max(min(self.shape.longest, target.total - filled - 1), 0) for filled in target.filled]
        if not any(rooms):
            return root_only(target.pending)
        if self.pending_features:
            self._catch_up()
        self.index = target.last[:, None]
        self.turned = self._rows(self.rotary[self.index + self.steps])
        return grow.draft(self, target, self.shape, keys, rooms)

    def _catch_up(self) -> None:
        """Extends the cache by the pairs noted since the last draft, in one pass."""
        hidden, value, counts = self.pending_features.take()
        tree = chain(value.shape[1] - 1, value.device)
        bias = None
        if value.shape[1] > 1 or not self.cache.uniform:
            bias = self.cache.bias(tree.ancestor, hidden.dtype)
        turned = self._rows(self.rotary[self.read[:, None] + tree.depth])
        out = self._pass(value, hidden, turned, bias)
        if len(counts) == 1:
            self.root = out[:, counts[0] - 1]
            self.read = self.read + counts[0]
            self.cache.advance(counts[0])
            return
        count = torch.tensor(counts, device=value.device)
        self.root = gather_nodes(out, (count - 1).clamp(min=0)[:, None])[:, 0]
        self.read = self.read + count
        self.cache.advance(counts)

    def _pass(self, value: Tensor, hidden: Tensor, turned: Tensor, bias: Tensor | None) -> Tensor:
        """One pass of the layer over new slots: predicted states [B, n, C * H] of values int64 [B, n] behind states
        [B, n, C * H]."""
        self.passes += 1
        drafter = self.drafter
        fused = drafter.fuse(self._rows(drafter.embed(self.model, value)), self._branches(hidden))
        return self._sides(drafter.layer(fused, fused, turned, self.cache, bias))

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """float32 [B, n, V], guided and warped as the target's, of predicted states [B, n, C * H].   depth: of the
        children, from 1."""
        index = (self.index + depth).expand(-1, out.shape[1])
        raw = self.model.logits(self._branches(out))
        return self.target.warped(self.target.guided(raw, index), index)

    law = logits

    def feature(self, out: Tensor, depth: int) -> Tensor:
        """The predicted states [B, n, C * H] that the children at `depth` are drawn from."""
        return out

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Predicted states [B, n, C * H] of one level of drafted nodes; arguments as in `grow.Stepping`."""
        bias = None
        if ancestor is not None or not self.cache.uniform:
            seen = token.new_ones(1, 1, back + 1, dtype=torch.bool) if ancestor is None else ancestor
            bias = self.cache.bias(seen, hidden.dtype, back)
        out = self._pass(token, hidden, self.turned[:, depth : depth + 1], bias)
        self.cache.advance(token.shape[1])
        return out

    def _rows(self, tensor: Tensor) -> Tensor:
        """What both branches share, [B, ...], as rows [C * B, ...]; of a single row a view."""
        if self.copies == 1:
            return tensor
        if tensor.shape[0] == 1:
            return tensor.expand(self.copies, *tensor.shape[1:])
        return tensor.repeat(self.copies, *[1] * (tensor.dim() - 1))

    def _branches(self, sides: Tensor) -> Tensor:
        """[B, n, C * H] as rows [C * B, n, H]; of a single value a view."""
        if self.copies == 1:
            return sides
        batch, count, _ = sides.shape
        return sides.reshape(batch, count, self.copies, -1).permute(2, 0, 1, 3).reshape(self.copies * batch, count, -1)

    def _sides(self, rows: Tensor) -> Tensor:
        """Rows [C * B, n, H] with the branches side by side, [B, n, C * H]; of a single value a view."""
        if self.copies == 1:
            return rows
        batch, count = rows.shape[0] // self.copies, rows.shape[1]
        return rows.view(self.copies, batch, count, -1).permute(1, 2, 0, 3).reshape(batch, count, -1)
