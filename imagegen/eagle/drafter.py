"""The drafter: sizes, weights, and the shapes it drafts in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig
from mmspec.core.drafting.pretrained import Pretrained
from mmspec.core.drafting.shaped import Shaped
from mmspec.core.drafting.shapes import StaticTree
from mmspec.imagegen.eagle.rotary import grid_rotary
from mmspec.imagegen.eagle.templates import deep_tree
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.llamagen.rope import check_pairs
from mmspec.imagegen.model import FeatureModel


@dataclass(frozen=True, slots=True)
class ImageEagleConfig:
    """Sizes of the drafter; hidden_size and vocab_size (V, values) are the target's.

    num_key_value_heads: 0 for as many as queries have.   bias: of the fusing layer.
    positions: values of the images it was trained on, 0 for any: no weight depends on it.
    time_pairs: pairs of each head that turn with the frame of a video, as in LlamaGen's config.
    embedding: "target" reads values through the target's embedding, "own" stores one (as published drafters do).
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    bias: bool = True
    positions: int = 0
    time_pairs: int = 0
    embedding: Literal["target", "own"] = "target"

    def __post_init__(self) -> None:
        if self.vocab_size < 1 or self.positions < 0:
            raise ValueError(f"expected vocab_size from 1 and positions from 0 up, got {self.vocab_size} and "
                             f"{self.positions}; change them")  # fmt: skip
        if self.embedding not in ("target", "own"):
            raise ValueError(f"embedding: expected 'target' or 'own', got {self.embedding!r}; use one of these")
        check_pairs("hidden_size", self.layer().dim, self.time_pairs)

    def layer(self) -> LayerConfig:
        """The sizes of the decoder layer.   Raises ValueError where they do not fit together."""
        return LayerConfig.of(self)


class ImageEagle(Shaped, Pretrained):
    """Predicts the target's next hidden state from the last one and the next value's embedding ("EAGLE: Speculative Sampling
    Requires Rethinking Feature Uncertainty", as LANTERN uses it for images).

    One Llama layer without its first norm over Linear([embedding ; state]); no norm in front of the target's own head. A
    slot stands in the grid cell of the value it embeds: one place to the left of the target's own positions, so a prompt of
    P positions leaves P - 1 slots before the image. Those embed value 0 beside the prompt's true states and have zero
    rotary rows, as have slots behind the grid. In a guided request the drafter runs both branches as a pair, and its logits
    are guided and warped as the target's are.

    Exact: chains and trees drawn without replacement go with block and traversal verification, trees drawn with
    replacement with K-SEQ, greedy requests and `DynamicTree` with target-match. Laws of image values are flat, so fixed
    deep trees are the default (as "LANTERN++" found).
    The published drafters norm with eps 1e-6 where their target has 1e-5; each keeps its own.
    Weights and settings only: a request's state is what `open` returns.
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
        """Sizes of a drafter for `model`. intermediate_size: 0 for 8/3 of the width, rounded up to a multiple of 64."""
        inner = intermediate_size or -(-8 * model.width // (3 * 64)) * 64
        return ImageEagleConfig(model.width, inner, heads, model.size, positions=model.geometry.total,
                                time_pairs=time_pairs)  # fmt: skip

    def open(self, target: object) -> object:
        """State of one request over an `ImageTarget`; the prompt is read now.

        Raises ValueError where the target does not tell its states or the drafter was made for another one.
        """
        state = self.open_without_prefill(target)
        state.prefill()
        return state

    def open_without_prefill(self, target: object) -> object:
        """State of one request whose prompt is read before the first draft.   Raises as `open`."""
        from mmspec.imagegen.eagle.state import EagleState

        model, weight = target.model, self.fc.weight
        self.check(model)
        if (weight.device, weight.dtype) != (model.device, model.dtype):
            raise ValueError(f"drafter: expected {model.dtype} on {model.device} as the target, got {weight.dtype} on "
                             f"{weight.device}; call drafter.fitted(pipeline)")  # fmt: skip
        return EagleState(self, target)

    def check(self, model: FeatureModel) -> None:
        """Raises ValueError when the drafter was made for another target."""
        if not hasattr(model, "width"):
            raise ValueError(f"drafter: expected a target that tells its hidden states, got {model.name}; use a drafter that "
                             "needs none, such as SJD")  # fmt: skip
        config = self.config
        pairs = [("hidden_size", config.hidden_size, model.width), ("vocab_size", config.vocab_size, model.size)]
        if config.positions:
            pairs.append(("positions", config.positions, model.geometry.total))
        for field, own, theirs in pairs:
            if own != theirs:
                raise ValueError(f"drafter: expected {field} {theirs} as in the target, got {own}; train one for it")
        if model.geometry.frames > 1 and not config.time_pairs:
            raise ValueError(f"drafter: expected time_pairs of 1 or more for {model.geometry.frames} frames, got 0; train "
                             "one for videos")  # fmt: skip

    def fitted(self, target: object) -> Self:
        """Itself, checked against a pipeline or model and moved to the model's device and dtype."""
        model = getattr(target, "model", target)
        self.check(model)
        return self.to(device=model.device, dtype=model.dtype)

    def embed(self, model: FeatureModel, value: Tensor) -> Tensor:
        """[..., H] of values int64 [...]."""
        return model.embed(value) if self.embedding is None else F.embedding(value, self.embedding.weight)

    def fuse(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """The layer's input [R, n, H] from next embeddings and states, [R, n, H] each."""
        return F.linear(torch.cat([embeds, hidden], -1), self.fc.weight, self.fc.bias)

    def rotary(self, geometry: Geometry, beyond: int) -> Tensor:
        """Rotary rows of every value, float32 [total + beyond, 2, head_dim]; see `grid_rotary`."""
        layer = self.layer.config
        return grid_rotary(geometry, layer.dim, layer.rope_theta, beyond, self.fc.weight.device, self.config.time_pairs)
