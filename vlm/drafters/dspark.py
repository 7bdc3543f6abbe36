"""DSpark: a block from a single pass, each row corrected by the token before it, and its length control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.layers.fingerprint import module_like
from mmspec.io.pretrained import fill_drafter
from mmspec.io.validation import Count, Share, Size, check_fields
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_layers import BlockDrafterConfig
from mmspec.vlm.drafters.dflash import UNUSED_TENSORS, published_block, tensor_names

MARKOV_HEADS = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """Scores every token given the previous token, through `rank` numbers z, as W2 z; W1 is [read, rank], W2 [drafted,
    rank]. z is W1[token] ("vanilla"), W1[token] gated by the row ("gated"), or from a small recurrent cell along the
    levels ("rnn")."""

    def __init__(self, kind: str, width: int, read: int, drafted: int, rank: int):
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = nn.Embedding(read, rank)
        self.markov_w2 = nn.Linear(rank, drafted, bias=False)
        nn.init.zeros_(self.markov_w1.weight)  # no correction at first, and none ever behind tokens absent in training
        if kind == "rnn":
            nn.init.zeros_(self.markov_w2.weight)
        self.gate_proj = nn.Linear(width + rank, rank) if kind == "gated" else None
        self.joint_proj = nn.Linear(width + 2 * rank, 3 * rank) if kind == "rnn" else None

    def step(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        """Return W1[token], then z, then for "rnn" the cell's state, joined, [B, n, 2 rank] or [B, n, 3 rank]. Rows are
        [B, n, width], the tokens before them int64 [B, n]. `before` is the previous step's result, None for the first
        step."""
        code = self.markov_w1(token)
        if self.kind == "vanilla":
            return torch.cat([code, code], -1)
        if self.kind == "gated":
            return torch.cat([code, self.gate_proj(torch.cat([row, code], -1)).sigmoid() * code], -1)
        state = torch.zeros_like(code) if before is None else before[..., -self.rank :]
        gate, rest = self.joint_proj(torch.cat([state, code, row], -1)).split((self.rank, 2 * self.rank), -1)
        candidate, out = rest.tanh().chunk(2, -1)
        return torch.cat([code, out, candidate.lerp(state, gate.sigmoid())], -1)

    def forward(self, carried: Tensor) -> Tensor:
        """Return the correction, float32 [B, n, drafted], from the result of `step`."""
        return small_linear(carried[..., self.rank : 2 * self.rank], self.markov_w2.weight).float()


class ConfidenceHead(nn.Module):
    """A linear map from [..., width] to the logit of acceptance, [..., 1]."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, read: Tensor) -> Tensor:
        return self.proj(read)


@dataclass(frozen=True, slots=True)
class PredictedAcceptance:
    """A length control that ends a row's chain where the product of its levels' predicted acceptance falls below
    `threshold`. Exact: a level is assessed before its token is drawn."""

    head: nn.Module  # the drafter's `confidence_head`
    threshold: Share = 0.3
    longest: int = 7
    shortest: Size = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shortest > self.longest:
            raise ValueError(f"shortest: expected 1 <= shortest <= longest, got {self.shortest} and {self.longest}")

    def begin(self) -> _ConfidenceGrowth:
        return _ConfidenceGrowth(self)


class _ConfidenceGrowth:
    """The decisions of a draft; `stands`, float [B], is the predicted probability that the levels are accepted."""

    def __init__(self, control: PredictedAcceptance):
        self.control, self.stands = control, 1.0

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        control = self.control
        if step >= control.longest:
            return confidence < 0
        accepted = module_like(control.head, feature)(feature)[:, 0].float().sigmoid()
        self.stands = self.stands * accepted
        return (self.stands >= control.threshold) | (step < control.shortest)


@dataclass(frozen=True, slots=True)
class DSparkConfig(BlockDrafterConfig):
    """The sizes of a block drafter, and those of its heads. With `root_first`, a recurrent correction reads the root's
    row before that of the first level, as `speculators` trains where the root does not draft."""

    markov_rank: Count = 256  # the rank of the correction; 0 for none
    markov_head_type: str = "vanilla"  # of `MARKOV_HEADS`
    confidence_head: bool = True  # whether the drafter predicts acceptance
    confidence_with_markov: bool = True  # whether that prediction also reads the token before
    reduced_markov: bool = False  # if it reads a reduced vocabulary, where all other tokens share a row
    root_first: bool = False

    def __post_init__(self) -> None:
        BlockDrafterConfig.__post_init__(self)
        if self.markov_head_type not in MARKOV_HEADS:
            raise ValueError(
                f"markov_head_type: expected one of {', '.join(MARKOV_HEADS)}, got {self.markov_head_type!r}; change it"
            )
        if self.root_first and (self.from_root or self.markov_head_type != "rnn"):
            raise ValueError(
                f"root_first: expected a recurrent correction and a root that does not draft, got "
                f"{self.markov_head_type!r} and from_root {self.from_root}; leave it out"
            )
        if not self.markov_rank and self.confidence_head and self.confidence_with_markov:
            raise ValueError(
                "confidence_with_markov: expected False for markov_rank 0, which has no row of the token before, "
                "got True; set it to False or choose a rank"
            )


@method(
    "dspark",
    domain="vlm",
    kind="drafter",
    title="DSpark",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=10,
    recommended_for=("text",),
    about="the tokens of a block, each corrected for the token before it",
    paper="DSpark",
)
class DSpark(BlockDrafter):
    """Adds a correction to a row's scores that depends on the previous token ("DSpark"). Exact in every shape.

    A level's distribution is therefore conditional, and every node of a tree has its own. The draft records that
    conditional distribution. By default the root's row drafts too. `stop` builds a length control from the predicted
    acceptance.
    """

    kind: ClassVar[str] = "dspark"
    config_class = DSparkConfig
    name = "dspark"
    published_as = ("DSparkDraftModel", "Qwen3DSparkModel", "speculators:dspark", "projector:dspark")
    writers: ClassVar[Mapping[str, str]] = {"vllm": "mmspec.vlm.export.blocks:dspark_speculators"}
    config: DSparkConfig

    def __init__(self, config: DSparkConfig):
        super().__init__(config)
        width, read = config.hidden_size, config.vocab_size
        if config.reduced_markov and self.vocabulary is not None:
            read = self.width + 1  # all tokens outside the vocabulary share the last row
        read_rows = ("markov_head.markov_w1.weight",) if config.reduced_markov else ()
        self.token_rows = ("head.weight", "markov_head.markov_w2.weight", *read_rows)
        sizes = width, read, self.width, config.markov_rank
        self.markov_head = MarkovHead(config.markov_head_type, *sizes) if config.markov_rank else None
        seen = width + config.markov_rank * config.confidence_with_markov
        self.confidence_head = ConfidenceHead(seen) if config.confidence_head else None

    @property
    def independent(self) -> bool:
        """Whether no level reads the token before it, because there is no correction."""
        return not self.config.markov_rank

    def stop(self, threshold: float = 0.3) -> PredictedAcceptance:
        """Return a length control for `Chain`, of a drafter that predicts acceptance."""
        if self.confidence_head is None:
            raise ValueError(
                "expected a drafter that predicts acceptance, got none; train it with confidence_head=True"
            )
        return PredictedAcceptance(self.confidence_head, threshold, self.config.drafted)

    def drafting(self, rows: Tensor, earlier: Tensor | None = None) -> Tensor:
        levels = super().drafting(rows, earlier)
        return torch.cat([levels, rows[..., :1, :].expand_as(levels)], -1) if self.config.root_first else levels

    def after(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        if self.markov_head is None:
            return super().after(row, token, before)
        width = self.config.hidden_size
        row, root = row.expand(-1, token.shape[1], -1).split((width, row.shape[-1] - width), -1)
        token = self.columns(token) if self.config.reduced_markov else token
        carried = None if before is None else before[..., width:]
        if before is None and self.config.root_first:
            carried = self.markov_head.step(root, token, None)
        return torch.cat([row, self.markov_head.step(row, token, carried)], -1)

    def logits(self, out: Tensor, unary: Tensor) -> Tensor:
        if self.markov_head is None:
            return super().logits(out, unary)
        return unary + self.markov_head(out[..., self.config.hidden_size :])

    def acceptance(self, out: Tensor) -> Tensor | None:
        return None if self.confidence_head is None else self.confidence_head(self.seen(out))[..., 0]

    def seen(self, out: Tensor) -> Tensor:
        """Return the row, and W1 of the token before if the acceptance prediction reads it too."""
        config = self.config
        return out[..., : config.hidden_size + config.markov_rank * config.confidence_with_markov]

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes_for(parts, sizes) | {"from_root": True}

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint. The sizes of the heads stand at the top of the config or in
        `dflash_config`. Older files prefix names with "logit_head.", and ModelOpt's have no prefix. The root drafts, as
        it was trained to, unless `sample_from_anchor` is false."""
        settings = config.get("dflash_config", {}) | config
        from_root = settings.get("sample_from_anchor", True) is not False
        head = str(settings.get("markov_head_type", "vanilla")).lower()
        table = "markov_head.markov_w1.weight"
        state, fields = published_block(state, config, target, _own_name, table)
        fields |= {"from_root": from_root}
        drafter = cls(
            DSparkConfig(
                **fields,
                markov_rank=settings.get("markov_rank", 256),
                markov_head_type=head,
                root_first="transformer_layer_config" in config and head == "rnn" and not from_root,
                confidence_head=bool(
                    settings.get(
                        "enable_confidence_head",
                        settings.get("use_confidence_head", "confidence_head.proj.weight" in state),
                    )
                ),
                confidence_with_markov=bool(settings.get("confidence_head_with_markov", True)),
            )
        )
        same = [name for name in drafter.state_dict() if name.startswith(("markov_head.", "confidence_head."))]
        names = tensor_names(state, drafter.config) | {name: (name,) for name in same}
        return fill_drafter(drafter, state, names, UNUSED_TENSORS)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return DFlash's recipe with more blocks per row, for heads that depend on the previous token."""
        from mmspec.vlm.training.recipes import block_recipe

        return {cls.kind: block_recipe(anchors=3072)}


def _own_name(name: str) -> str:
    name = name.removeprefix("logit_head.").replace("confidence_proj.", "confidence_head.proj.", 1)
    return f"markov_head.{name}" if name.startswith(("markov_w", "gate_proj.", "joint_proj.")) else name
