"""The target of a causal request over continuous tokens: paths of vectors, verified by the last step's Gaussian."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, expand_tree, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.continuous.causal.transformer import CausalTransformer
from mmspec.imagegen.continuous.head_sampling.head import Head, Trajectory
from mmspec.imagegen.continuous.head_sampling.sampling import HeadRequest, HeadSampling, Noise
from mmspec.imagegen.filled_target import Listener
from mmspec.imagegen.target import RasterTarget


class CausalTarget(RasterTarget):
    """A batch of images in raster order, values float32 [B, L, d], labels int64 [B]. Given the noise of all steps but a
    drawn last step, a token's distribution is the last step's Gaussian, which the evidence holds. So rules for
    Gaussians are exact for a drafter that shares the noise. A head without noise there has scale 0, and no draft can be
    verified against it. Random numbers of `head_sampling` belong to positions; speculation needs `keys`."""

    greedy = False
    not_finite = "expected finite tokens, got NaN or Inf"

    def __init__(
        self,
        model: CausalTransformer,
        labels: Tensor,
        *,
        head: Head,
        noise: Noise,
        temperature: float = 1.0,
        scale: float = 1.0,
        listener: Listener | None = None,
        head_sampling: HeadSampling | None = None,
        keys: Keys | None = None,
    ):
        self.paired, self.scale = scale != 1, scale
        self.copies = 2 if self.paired else 1
        total, like = model.config.tokens, torch.zeros(model.config.token_dim, device=labels.device)
        cache = SlotPool(model.config.depth, total + 64, copies=self.copies)
        super().__init__(len(labels), total, like, cache, listener)
        self.head_sampling, self.keys, self.head_calls = head_sampling or HeadSampling(), keys, 0
        self.head_sampling.check(temperature)
        self.model, self.labels, self.head, self.noise, self.temperature = model, labels, head, noise, temperature

    @property
    def branches(self) -> Tensor:
        """int64 [C * B], the labels of both branches."""
        return torch.cat((self.labels, torch.full_like(self.labels, -1))) if self.paired else self.labels

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        start = torch.zeros(1, dtype=torch.long, device=self.device)
        z = self.model(self.model.embed(self.branches), start, cache=self.cache)
        draft = root_only(self.pending)  # the class is the root of round 0; the commit counts its slot
        return draft, self._evidence(draft, z)

    @torch.no_grad()
    def score(self, draft: Draft) -> Evidence:
        # a node of index i has position i + 1, behind the class
        position = (self.last[:, None] + expand_tree(draft.tree.depth, self.batch) + 1).clamp(max=self.total - 1)
        plain = draft.tree.nodes == 1 and self.cache.uniform
        dtype = self.model.position.dtype
        bias = None if plain else self.cache.bias(draft.tree.ancestor, dtype)
        x = self.model.token_embed(draft.value.to(dtype)).repeat(self.copies, 1, 1)
        return self._evidence(draft, self.model(x, position.repeat(self.copies, 1), bias, self.cache))

    def _evidence(self, draft: Draft, z: Tensor) -> Evidence:
        index = self.last[:, None] + expand_tree(draft.tree.depth, self.batch) + 1  # the value that each node predicts
        last, shape = self.draw(self.head, z, index.clamp(max=self.total - 1)).last, (*index.shape, -1)
        mean, width = last.mean.view(shape), last.log_scale.view(shape)[..., :1].exp() * self.temperature
        bad = ~(mean.isfinite().all(-1) & width.isfinite()[..., 0])
        width = width if self.head.last_noise else torch.zeros_like(width)
        return Evidence(mean=mean.masked_fill(bad[..., None], 0), scale=width.masked_fill(bad[..., None], 1), bad=bad)

    def draw(self, head: Head, z: Tensor, index: Tensor) -> Trajectory:
        """Return the trajectories [B * N] of any head, of z [C * B, N, width] at the values' indices int64 [B, N]."""
        initial, noise = (x.flatten(0, 1) for x in self.noise.at(index))
        z, scale = z.flatten(0, 1).unflatten(0, (self.copies, -1)), None
        if self.paired:
            scale = torch.full((z.shape[1],), self.scale, device=z.device)
        keys = None if self.keys is None else self.keys.at(index)
        request = HeadRequest(z, initial, noise, scale, self.temperature, keys)
        drawn = self.head_sampling.draw(head, request, None)
        self.head_calls += request.calls
        return drawn
