"""Hydra: heads that also read the tokens drafted so far, with or without a prefix layer (Hydra++)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import ROTATION, drafter_sizes, fill_drafter, layer_names
from mmspec.io.validation import Range
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.drafters.base.head_drafter import HeadBlock
from mmspec.vlm.drafters.base.prefix_heads import PrefixConfig, PrefixHeadDrafter, PrefixState, at_paths
from mmspec.vlm.drafters.base.pretrained_drafter import require_fields
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, shift_rows


class HydraInputBlock(nn.Module):
    """A residual block Px + c + SiLU(Wx + b) from [..., parts * H] to [..., H]; the skip connection P is linear."""

    def __init__(self, parts: int, width: int):
        super().__init__()
        self.linear = nn.Linear(parts * width, 2 * width)  # rows of P, then of W, for a single product
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:width, :width] = torch.eye(width)  # the skip starts by copying the first part
            self.linear.bias[:width] = 0

    def forward(self, x: Tensor) -> Tensor:
        skip, inner = small_linear(x, self.linear.weight, self.linear.bias).chunk(2, -1)
        return skip + F.silu(inner)


@dataclass(frozen=True, slots=True)
class HydraConfig(PrefixConfig):
    """The sizes of Hydra's heads and of its prefix layer. Hydra++ has the layer, layers=4 and dropout=0.2."""

    dropout: Annotated[float, Range(0, below=1)] = 0.0  # of inputs of blocks and wide heads, in training


@method(
    "hydra",
    domain="vlm",
    kind="drafter",
    title="Hydra",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=12,
    about="heads on the target's last state that read the tokens before them",
    paper="Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding",
)
class Hydra(PrefixHeadDrafter):
    """Heads like Medusa's that also read the draft tokens before them. Exact in every shape.

    Paper: "Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding". Head i reads the prefix state and the
    embeddings of the i + 1 tokens behind it. It is a residual block with a linear skip, `layers - 1` plain blocks, and
    a linear map to the vocabulary with bias. The prefix state is the target's last state, or with `prefix_layer`
    (Hydra++) the output of a Llama layer over the target's states. Every block has its own weights.
    """

    kind: ClassVar[str] = "hydra"
    config_class = HydraConfig
    head_bias: ClassVar[bool] = True
    name = "hydra"
    config: HydraConfig

    def __init__(self, config: HydraConfig):
        super().__init__(config)
        width = config.hidden_size
        self.blocks = nn.ModuleList(
            nn.Sequential(HydraInputBlock(i + 2, width), *(HeadBlock(width) for _ in range(config.layers - 1)))
            for i in range(config.heads)
        )

    def new_state(self, target: object) -> HydraState:
        return HydraState(self, target)

    def feature(self, index: int, states: Tensor, embeds: Tensor) -> Tensor:
        """Return head `index`'s output [B, n, H] for prefix states [B, n, H]. `embeds` [B, n, (index + 1) * H] joins
        the embeddings of the tokens behind them, root first."""
        x = torch.cat([states, embeds], -1)
        for block in self.blocks[index]:
            x = block(self._dropped(x))
        return x

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        return super().logits(self._dropped(out) if self.config.own_head else out, depth, head)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout) if self.training and self.config.dropout else x

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return each depth's head output [B, R - first, H] from the prefix state `depth` slots earlier."""
        states = self.prefix_states(slots, first)
        embeds = view.embeds_of(slots, first)
        outputs = []
        for depth in range(min(depths, self.config.heads)):
            path = torch.cat([shift_rows(embeds, back) for back in range(depth, -1, -1)], -1)
            outputs.append(self.feature(depth, shift_rows(states, depth), path))
        return outputs

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """The tensors give the widths, and their names show a Llama layer as prefix layer, and dropout. That layer's
        heads, norm epsilon and rotary base come from the config, else the target. Blocks that share a weight are
        copied."""
        heads, layers = require_fields(config, "hydra_num_heads", "hydra_num_layers")
        if config.get("hydra_head_arch", "mlp") not in ("mlp", "prefix-mlp"):
            raise ValueError(f"hydra_head_arch: expected 'mlp' or 'prefix-mlp', got {config['hydra_head_arch']!r}")
        if config.get("hidden_state_offset"):
            raise ValueError(
                f"hidden_state_offset: expected 0, the target's last states, got {config['hidden_state_offset']}"
            )
        if not config.get("grounded_heads", True):
            raise ValueError(
                "grounded_heads: expected heads that read the draft tokens, got false; no others are supported"
            )
        names, last = _head_names(heads, layers, dropped="hydra_lm_head.0.1.weight" in state)
        if last not in state:
            raise ValueError(f"sd: expected the published keys; missing {last!r}, got {sorted(state)[:8]}")
        vocab, width = state[last].shape
        fields: dict[str, Any] = {"hidden_size": width, "vocab_size": vocab, "heads": heads, "layers": layers}
        if config.get("hydra_head_arch") == "prefix-mlp" or any(name.startswith(_PREFIX) for name in state):
            fields |= _layer_fields(state, config, target) | {"prefix_layer": True, "final_norm": True}
            names |= layer_names(_LAYER) | {
                "norm.weight": (f"{_LAYER}input_layernorm.weight",),
                "final_norm.weight": (f"{_PREFIX}norm.weight",),
            }
        return fill_drafter(cls(HydraConfig(**fields)), state, names, _UNUSED)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the recipe of Hydra++ with all heads: 10 epochs, batch 32, 100 steps of warm-up."""
        from mmspec.vlm.training.recipes import depth_recipe

        return {
            cls.kind: depth_recipe(
                "cross_entropy",
                depth_decay=1.0,
                lr=5e-4,
                warmup=0.005,
                decay="cosine",
                final_lr=0.33,
                betas=(0.9, 0.999),
                weight_decay=0.1,
                clip=1.0,
                answers="given",
                sizes=(("heads", 4), ("layers", 4), ("prefix_layer", True), ("dropout", 0.2)),
            )
        }


class HydraState(PrefixState):
    known: Tensor  # float [B, 1 + drafted, H], embeddings of the root and of the expanded nodes

    def begin(self) -> Tensor:
        self.known = self.target.parts.embed(self.target.pending[:, None])
        return self.drafter.feature(0, self.source, self.known)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        self.passes += 1
        self.known = torch.cat([self.known[:, : back + 1], self.target.parts.embed(token)], 1)
        if ancestor is None:
            return self.drafter.feature(depth, self.source, self.known.flatten(1)[:, None])
        path = at_paths(self.known, ancestor, depth).flatten(2)
        return self.drafter.feature(depth, self.source.expand(-1, token.shape[1], -1), path)


_PREFIX = "prefix_embeding_layer."  # the files' spelling
_LAYER = f"{_PREFIX}layers.0."
# the target's own embedding, an embedding that the prefix layer never reads, and a table that follows from the config
_UNUSED = ("input_embed_fn.weight", f"{_PREFIX}embed_tokens.weight", f"{_LAYER}self_attn.rotary_emb.inv_freq")


def _head_names(heads: int, layers: int, dropped: bool) -> tuple[dict[str, tuple[str, ...]], str]:
    names: dict[str, tuple[str, ...]] = {}
    for head in range(heads):
        vocabulary = f"hydra_lm_head.{head}.1" if dropped else f"hydra_lm_head.{head}"
        for part in ("weight", "bias"):
            names[f"heads.{head}.{part}"] = (f"{vocabulary}.{part}",)
            for layer in range(layers):
                # a dropout module in front of every block takes its own number
                block = f"hydra_mlp.{head}.{2 * layer + 1 if dropped else layer}"
                skip = (f"{block}.res_connection.{part}",) if layer == 0 else ()
                names[f"blocks.{head}.{layer}.linear.{part}"] = (*skip, f"{block}.linear.{part}")
    return names, names["heads.0.weight"][0]


_LAYER_FIELDS = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")


def _layer_fields(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> dict[str, Any]:
    theirs = {} if target is None else target.config.get_text_config(decoder=True).to_dict()
    if any(name in config for name in ROTATION):  # the config's rotation replaces the target's as a whole
        theirs = {name: value for name, value in theirs.items() if name not in ROTATION}
    sources = (theirs, config)
    settings = {
        name: source[name]
        for source in sources
        for name in ("hidden_act", *_LAYER_FIELDS, *ROTATION)
        if source.get(name) is not None
    }
    if "num_attention_heads" not in settings:
        raise ValueError(
            "config: expected num_attention_heads of the prefix layer, or a target that gives it, got neither; "
            "pass the target"
        )
    gate = state.get(f"{_LAYER}mlp.gate_proj.weight", torch.zeros(1))  # a missing tensor is listed with all others
    fields = drafter_sizes({"intermediate_size": len(gate)} | settings | {"hidden_size": 1, "vocab_size": 1})
    return {name: fields[name] for name in (*_LAYER_FIELDS, "rope_theta")}
