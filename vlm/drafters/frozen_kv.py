"""LongSpec: a drafter that reads the target's own keys and values, so its memory does not grow with the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.validation import Count
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.committed_keys import committed_slots, recorded_keys, turned_at
from mmspec.vlm.drafters.base.cross_drafter import CrossConfig, CrossDrafter, CrossState, Seen
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.hidden_states import LastKeys
from mmspec.vlm.partial_passes import DECODERS


@dataclass(frozen=True, slots=True)
class LongSpecConfig(CrossConfig):
    """The sizes of LongSpec; heads are as many and as wide as the target's, whose keys they read."""

    shift: Count = 0  # training moves tokens behind the first few to random positions up to this


@method(
    "longspec",
    domain="vlm",
    kind="drafter",
    title="LongSpec",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=15,
    about="a short window of its own keys, and the target's own keys for everything else",
    paper="LongSpec: Long-Context Lossless Speculative Decoding with Efficient Drafting and Verification",
)
class LongSpec(CrossDrafter):
    """A layer over token embeddings that attends to its own window, then to the target's last layer. Exact in every shape.

    Paper: "LongSpec: Long-Context Lossless Speculative Decoding" (arXiv 2502.17421). Its input is text alone: pictures
    and old text are read from the keys and values that the target has cached, of verified tokens only. So it keeps no
    row for a picture, and as many bytes for a prompt of 16 pictures as for one word. Queries are rotated by the
    target's positions, its own keys by the number of text tokens before them.
    """

    kind: ClassVar[str] = "longspec"
    config_class = LongSpecConfig
    name, steps = "longspec", ("levels", 1, 0)
    from_ids = True
    config: LongSpecConfig

    def new_state(self, target: object) -> LongSpecState:
        return LongSpecState(self, target)

    @property
    def teacher_levels(self) -> tuple[LastKeys]:
        return (LastKeys(),)

    @property
    def most_shift(self) -> int:
        return self.config.shift

    def check(self, parts: Parts) -> None:
        super().check(parts)
        text, name = parts.model.config.get_text_config(decoder=True), type(parts.decoder).__name__
        obstacles = {
            "latent keys (MLA)": getattr(text, "kv_lora_rank", None) is not None,
            "a last layer without keys of its own": not parts.plan.layers[-1].slots,
            "rotary embeddings that depend on the length": bool(parts.rotary),
            f"the decoder {name}": name not in DECODERS,
        }
        if present := [obstacle for obstacle, holds in obstacles.items() if holds]:
            raise ValueError(
                f"model: expected a decoder whose last layer caches rotated keys ({', '.join(DECODERS)}), "
                f"got {present[0]}; use a drafter that reads states, such as eagle"
            )
        heads, own = (text.num_attention_heads, parts.decoder.layers[-1].self_attn.head_dim), self.layer.config
        if (own.num_attention_heads, own.dim) != heads:
            raise ValueError(
                f"drafter: expected {heads[0]} heads of {heads[1]} as in the target, got "
                f"{own.num_attention_heads} of {own.dim}; train a drafter for this target"
            )

    def keys_of(self, view: PromptView) -> tuple[Tensor, Tensor, Tensor]:
        """See `CrossDrafter.keys_of`; the view's states are `LastKeys`."""
        return recorded_keys(view.hidden, self.layer.config.dim)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the recipe of the paper's loss, cross-entropy with the target's distributions, on moved positions."""
        from mmspec.vlm.training.recipes import depth_recipe

        return {
            cls.kind: depth_recipe(
                "cross_entropy",
                depths=5,
                depth_decay=1.0,
                lr=5e-4,
                warmup=0.03,
                decay="cosine",
                clip=1.0,
                sizes=(("shift", 30000),),
            )
        }


class LongSpecState(CrossState):
    """The state of a request; the keys of verified tokens stay in the target's cache."""

    def look(self) -> Seen:
        return committed_slots(self.target.cache, self.target.parts.layers - 1)

    def turned(self, like: Tensor, behind: Tensor) -> Tensor:
        return turned_at(self.target.parts, like, self.target.next_position[..., None] + behind)
