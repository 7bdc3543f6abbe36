"""A target pass in which probes join at later layers, each with a linear map of the state of the node before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import attention_masks
from mmspec.core.round.draft import Draft, Probes, gather_nodes
from mmspec.vlm.architectures import Parts
from mmspec.vlm.partial_passes import layers


@dataclass(slots=True)
class JoiningProbes(Probes):
    """Probes without input embeddings, see `Probes`."""

    node: Tensor  # int64 [B, P], the node behind whose state each probe starts
    offset: Tensor  # int64 [B, P], the index of its map
    starts: tuple[int, ...]  # per offset, the layer that its probes enter; never falling
    maps: Tensor  # float [K, H, H], per offset the map of the node's state that enters this layer

    def entering(self, layer: int, nodes: Tensor, own: Tensor) -> Tensor:
        """Return the states of probes entering a layer, float [B, P, H]: `own`, but maps of `nodes` [B, N, H] where
        they join."""
        source = gather_nodes(nodes, self.node)
        for offset, start in enumerate(self.starts):
            if start == layer:
                own = torch.where((self.offset == offset)[..., None], source @ self.maps[offset].to(source).mT, own)
        return own


def joined_pass(parts: Parts, draft: Draft, inputs: dict) -> tuple[Tensor, Tensor]:
    """Run a pass over the nodes of a draft and over JoiningProbes; return the nodes' logits [B, N, V] and the last
    states [B, N + P, H]. Layers below the first start run over the nodes alone. From there on a probe is a row like
    others; before its own start, only probes that start no earlier see it."""
    tree, probes, cache = draft.tree, draft.probes, inputs[CACHE]
    nodes, position, mask = tree.nodes, inputs["position_ids"], inputs["attention_mask"]
    seen, depth = tree.ancestor, tree.depth.expand(draft.batch, -1)
    below = attention_masks(parts.plan, cache, seen, depth, tree.max_depth, parts.dtype)
    starts = sorted(set(probes.starts))
    hidden = inputs["inputs_embeds"][:, :nodes]
    hidden = layers(parts, hidden, 0, starts[0], position[..., :nodes], cache, below)
    own = hidden.new_zeros(*probes.node.shape, hidden.shape[-1])
    for start, end in zip(starts, [*starts[1:], parts.layers], strict=True):
        own = probes.entering(start, hidden[:, :nodes], own)
        hidden = layers(parts, torch.cat([hidden[:, :nodes], own], 1), start, end, position, cache, mask)
        own = hidden[:, nodes:]
    last = parts.decoder.norm(hidden).to(draft.value.device)
    return parts.head(last[:, :nodes]), last
