"""ImageEagle: a decoder layer that drafts from the target's hidden states, its trees, and the state of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig
from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.request_shape import ShapeMixin
from mmspec.core.drafting.shapes import Chain, StaticTree, likeliest_tree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.grid_rope import cell_rotary, check_rotary_pairs
from mmspec.imagegen.model import FeatureModel
from mmspec.imagegen.target import ImageTarget
from mmspec.io.pretrained import Pretrained
from mmspec.io.validation import Count, Size, check_fields
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import MethodParts, method, value_of

# acceptance rates of the child drawn first, second, ...; only their ratios shape the tree
KEEP_RATES = (0.5, 0.2, 0.1, 0.07, 0.05)


def deep_tree(nodes: int = 57, depth: int = 5) -> tuple[int, ...]:
    """Return the parents of a fixed tree of `nodes` drafted nodes, widest at depth 3, with up to 5 children per node.
    The default has the size, depth and root's degree of LANTERN's static tree, but not the same nodes."""
    return likeliest_tree(nodes + 1, depth, KEEP_RATES)


@dataclass(frozen=True, slots=True)
class ImageEagleConfig:
    """Sizes of the drafter under transformers' field names; hidden_size and vocab_size (V) are the target's."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: Size
    num_key_value_heads: int = 0  # 0 for num_attention_heads
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    bias: bool = True  # of the fusing layer
    positions: Count = 0  # values of the training images, 0 for any: no weight depends on it
    time_pairs: int = 0  # rotary pairs that turn with the frame, as in LlamaGen's config
    embedding: Literal["target", "own"] = "target"  # "own" is stored, as in published drafters

    def __post_init__(self) -> None:
        check_fields(self)
        check_rotary_pairs("hidden_size", self.layer().dim, self.time_pairs)

    def layer(self) -> LayerConfig:
        return LayerConfig.of(self)


class ImageEagle(ShapeMixin, Pretrained):
    """A drafter that predicts the target's next hidden state from the last state and the next value's embedding. Exact.

    "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", as LANTERN uses it for images: a Llama layer
    without its first norm over Linear([embedding ; state]), and the target's head. A slot has the grid cell of the
    value that it embeds, one place left of the target's positions. P prompt positions leave P - 1 slots before the
    image, which embed value 0 and have zero rotary rows. Guided requests run both branches. Block and traversal
    verification fit draws without replacement, K-SEQ draws with replacement, target-match greedy requests and
    `DynamicTree`. Fixed deep trees are the default, as image distributions are flat ("LANTERN++").
    """

    kind: ClassVar[str] = "image_eagle"
    kinds: ClassVar[dict[str, type[Pretrained]]] = {}
    config_class = ImageEagleConfig
    name = "eagle"
    config: ImageEagleConfig

    def __init__(self, config: ImageEagleConfig):
        super().__init__(config)
        width = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, width) if config.embedding == "own" else None
        self.fc = nn.Linear(2 * width, width, bias=config.bias)
        self.layer = DraftLayer(config.layer())
        self.shapes = (StaticTree(deep_tree()), StaticTree(deep_tree()))

    @staticmethod
    def sizes_for(model: FeatureModel, heads: int, intermediate_size: int = 0, time_pairs: int = 0) -> ImageEagleConfig:
        """Return sizes for a model; intermediate_size 0 is 8/3 of the width, rounded up to a multiple of 64."""
        inner = intermediate_size or -(-8 * model.width // (3 * 64)) * 64
        return ImageEagleConfig(
            model.width, inner, heads, model.size, positions=model.geometry.total, time_pairs=time_pairs
        )

    def open(self, target: object) -> object:
        """Return the state of a request over an `ImageTarget`, and read the prompt at once."""
        state = self.open_without_prefill(target)
        state.prefill()
        return state

    def open_without_prefill(self, target: object) -> object:
        """Return the state of a request whose prompt is read before the first draft."""
        model, weight = target.model, self.fc.weight
        self.check(model)
        if (weight.device, weight.dtype) != (model.device, model.dtype):
            raise ValueError(
                f"drafter: expected {model.dtype} on {model.device} as the target, got {weight.dtype} on "
                f"{weight.device}; call drafter.fitted(pipeline)"
            )
        return ImageEagleState(self, target)

    def check(self, model: FeatureModel) -> None:
        """Check that the drafter was made for this model."""
        if not hasattr(model, "width"):
            raise ValueError(
                f"drafter: expected a target that returns its hidden states, got {model.name}; use a drafter "
                "that needs none, such as SJD"
            )
        config = self.config
        pairs = [("hidden_size", config.hidden_size, model.width), ("vocab_size", config.vocab_size, model.size)]
        if config.positions:
            pairs.append(("positions", config.positions, model.geometry.total))
        for field, own, theirs in pairs:
            if own != theirs:
                raise ValueError(
                    f"drafter: expected {field} {theirs} as in the target, got {own}; train one for this target"
                )
        if model.geometry.frames > 1 and not config.time_pairs:
            raise ValueError(
                f"drafter: expected time_pairs of 1 or more for {model.geometry.frames} frames, got 0; train "
                "a drafter for videos"
            )

    def fitted(self, target: object) -> Self:
        """Check the drafter against a pipeline or model, move it to the model's device and dtype, and return it."""
        model = getattr(target, "model", target)
        self.check(model)
        return self.to(device=model.device, dtype=model.dtype)

    def embed(self, model: FeatureModel, value: Tensor) -> Tensor:
        """Return the embeddings [..., H] of values int64 [...]."""
        return model.embed(value) if self.embedding is None else F.embedding(value, self.embedding.weight)

    def fuse(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """Return the layer's input [R, n, H] of next embeddings and states, [R, n, H] each."""
        return small_linear(torch.cat([embeds, hidden], -1), self.fc.weight, self.fc.bias)

    def rotary(self, geometry: Geometry, beyond: int) -> Tensor:
        """Return the rotary rows of every value, float32 [total + beyond, 2, head_dim]; see `cell_rotary`."""
        layer = self.layer.config
        return cell_rotary(geometry, layer.dim, layer.rope_theta, beyond, self.fc.weight.device, self.config.time_pairs)


def prompt_slots(drafter: object, model: FeatureModel, hidden: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return inputs float [R, S, H] of all unpadded prompt positions but the last, which the first pass completes, and
    their numbers int64 [R]. The prompt's states are float [R, P, H], R = C * B, `padding` bool [R, P or more]."""
    rows, slots = hidden.shape[0], hidden.shape[1] - 1
    hidden = hidden[:, :slots]
    count = torch.full((rows,), slots, device=hidden.device)
    padding = None if padding is None else padding[:, :slots]
    if padding is not None and bool(padding.any()):
        count = slots - padding.sum(1)
        order = padding.long().argsort(dim=1, stable=True)[:, : int(count.max())]
        hidden = hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[-1]))
    value = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
    embeds = drafter.embed(model, value).expand(rows, hidden.shape[1], -1)
    return drafter.fuse(embeds, hidden), count


class ImageEagleState(PairState):
    """A KV cache of committed pairs (state before value i, embedding of value i). Features have the branches side by
    side, [B, n, C * H], as in the target's evidence; the layer and the head see rows [C * B, n, H]."""

    def __init__(self, drafter: ShapeMixin, target: ImageTarget):
        super().__init__(drafter, target)
        self.copies, self.model = target.copies, target.model
        self.rotary: Tensor | None = None  # of every value, and some behind the last
        self.cache = SlotPool(1, 0, copies=self.copies)
        if target.prompt_hidden is None:
            raise ValueError(
                f"drafter: expected the prompt's hidden states, got none from {target.model.name}; use a drafter "
                "that needs none, such as SJD"
            )

    @torch.no_grad()
    def prefill(self) -> None:
        target, drafter = self.target, self.drafter
        self.rotary = drafter.rotary(target.geometry, 2 * self.shape.longest + 20)
        self.next_position = torch.zeros(target.batch, dtype=torch.long, device=target.device)  # of the next pair
        attend, count = prompt_slots(drafter, self.model, target.prompt_hidden, target.cache.hidden)
        slots = attend.shape[1]
        self.cache.capacity = slots + target.total + 64
        self.remember(attend, attend.new_zeros(1, slots, 2, drafter.layer.config.dim), count)

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        self.passes += 1
        drafter = self.drafter
        turned = self._rows(self.rotary[self.next_position[:, None] + ahead])
        fused = drafter.fuse(self._rows(drafter.embed(self.model, value)), self._branches(hidden))
        bias = self.bias(ancestor, back, hidden.dtype)
        return self._sides(drafter.layer(fused, fused, turned, self.cache, bias))

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """Return the guided and warped logits float32 [B, n, V] of states [B, n, C * H] for children at a depth from 1."""
        index = (self.next_position[:, None] + (depth - 1)).expand(-1, out.shape[1])
        raw = self.model.logits(self._branches(out))
        return self.target.warped(self.target.guided(raw, index), index)

    law = logits

    def _rows(self, tensor: Tensor) -> Tensor:
        """Expand a tensor [B, ...] that both branches share to rows [C * B, ...]; a view for a single row."""
        if self.copies == 1:
            return tensor
        if tensor.shape[0] == 1:
            return tensor.expand(self.copies, *tensor.shape[1:])
        return tensor.repeat(self.copies, *[1] * (tensor.dim() - 1))

    def _branches(self, sides: Tensor) -> Tensor:
        """Convert [B, n, C * H] to rows [C * B, n, H]; a view for a single value."""
        if self.copies == 1:
            return sides
        batch, count, _ = sides.shape
        return sides.reshape(batch, count, self.copies, -1).permute(2, 0, 1, 3).reshape(self.copies * batch, count, -1)

    def _sides(self, rows: Tensor) -> Tensor:
        """Convert rows [C * B, n, H] to [B, n, C * H], the branches side by side; a view for a single value."""
        if self.copies == 1:
            return rows
        batch, count = rows.shape[0] // self.copies, rows.shape[1]
        return rows.view(self.copies, batch, count, -1).permute(1, 2, 0, 3).reshape(batch, count, -1)


@method(
    "eagle",
    domain=("image", "video"),
    kind="decoding",
    title="EAGLE",
    exact=True,
    about="a trained drafter",
    paper="EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty",
    needs=("eagle",),
    order=5,
    models=("codes",),
    judged=True,
)
def eagle_decoding(
    parts: MethodParts,
    nodes: int = 57,
    depth: int = 5,
    chain: int = 0,
    drawn: Literal["without_replacement", "with_replacement"] = "without_replacement",
    length: str | None = None,
    shape: str | None = None,
) -> ImageEagle:
    """The trained drafter of a model.

    Args:
        parts: The model and its drafter, "eagle".
        nodes: The number of drafted nodes of the tree.
        depth: The levels of the tree.
        chain: The length of a chain that replaces the tree, 0 for the tree.
        drawn: How siblings are drawn.
        length: The controller of a chain that replaces the tree, such as (confidence:threshold=0.4,longest=8).
        shape: The shape of its drafts in place of these, such as (best:nodes=16).
    """
    control = value_of(length, "image", "controller", parts) or (FixedLength(chain) if chain else None)
    short = StaticTree(deep_tree(nodes, depth), drawn) if control is None else Chain(control)
    return parts.part("eagle").with_shape(value_of(shape, "image", "shape", parts) or short)
