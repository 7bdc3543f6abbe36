"""XPress: a block from a single pass, whose rows are all refined at once by the tokens guessed before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.growth import DraftBudget, draft_of_chain
from mmspec.core.drafting.picks import values_of
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.drafting.shapes import Chain
from mmspec.core.round.draft import Draft
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.sampling import draw
from mmspec.io.pretrained import fill_drafter
from mmspec.io.validation import Size
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter, BlockDrafterState, Lesson
from mmspec.vlm.drafters.base.block_layers import BlockDrafterConfig
from mmspec.vlm.drafters.dflash import UNUSED_TENSORS, published_block, tensor_names

ROUNDS, ROUND_WEIGHT, BLOCK_WEIGHT = 3, 0.3, 0.6  # as in the published training


class CausalRefiner(nn.Module):
    """Row k of a block has r = `rank` numbers a_k = in_proj [down_h h_k; down_g mean(h); embedding of the token
    before]. They become x_k = a_k + sum over j <= k of L[:, k, j] * a_j, then x + MLP(x), and `readout` maps these to
    scores. No row reads a later row, so rows can be refined one after another or all at once. `read` tokens can stand
    before a row, `drafted` are scored, and `ratio` is the width of the MLP over r."""

    def __init__(self, width: int, read: int, drafted: int, rows: int, rank: int, ratio: int):
        super().__init__()
        self.rank = rank
        self.token_embed = nn.Embedding(read, rank)
        self.down_h, self.down_g = (nn.Linear(width, rank, bias=False) for _ in range(2))
        self.in_proj = nn.Linear(3 * rank, rank, bias=False)
        self.mix_l = nn.Parameter(torch.zeros(rank, rows, rows))
        self.mlp_gate, self.mlp_up = (nn.Linear(rank, ratio * rank, bias=False) for _ in range(2))
        self.mlp_down = nn.Linear(ratio * rank, rank, bias=False)
        self.readout = nn.Linear(rank, drafted, bias=False)
        nn.init.zeros_(self.readout.weight)  # a new refiner changes no score,
        nn.init.zeros_(self.token_embed.weight)  # and tokens absent in training never change any

    def of_states(self, rows: Tensor) -> Tensor:
        """Return the part of a that depends on no token, [..., B, r], from the states [..., B, H] of whole blocks."""
        mean = rows.mean(-2, keepdim=True).expand_as(rows)
        states = torch.cat([self.down_h(rows), self.down_g(mean)], -1)
        return small_linear(states, self.in_proj.weight[:, : 2 * self.rank])

    def of_tokens(self, token: Tensor) -> Tensor:
        """Return the part of a that depends on the tokens before the rows, [..., r], from int64 [...]."""
        return small_linear(self.token_embed(token), self.in_proj.weight[:, 2 * self.rank :])

    def mixed(self, a: Tensor) -> Tensor:
        """Return x of the first n rows of blocks, [N, n, r], from a [N, n, r]."""
        count = a.shape[1]
        return self._through_mlp(a + torch.einsum("ckj,njc->nkc", self.mix_l[:, :count, :count].tril(), a))

    def mixed_last(self, a: Tensor) -> Tensor:
        """Return x of the last of n rows, [B, m, r], from a [B, m, n, r], where each of m nodes has its own n rows."""
        last = a.shape[2] - 1
        return self._through_mlp(a[:, :, last] + torch.einsum("cj,bmjc->bmc", self.mix_l[:, last, : last + 1], a))

    def _through_mlp(self, x: Tensor) -> Tensor:
        return x + self.mlp_down(F.silu(self.mlp_gate(x)) * self.mlp_up(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(x).float()


@dataclass(frozen=True, slots=True)
class XPressConfig(BlockDrafterConfig):
    refiner_rank: Size = 256  # the numbers of a row
    refiner_ratio: Size = 2  # the width of the refiner's MLP over its rank
    passes: Size = 6  # refinements of a chain; with as many as levels, a block is as good as drafted token by token


@method(
    "xpress",
    domain="vlm",
    kind="drafter",
    title="XPress",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=10,
    about="the tokens of a block, all refined at once by those guessed before them",
    paper="XPress",
)
class XPress(BlockDrafter):
    """Refines a block's rows by the tokens before them ("XPress", arXiv 2608.02438). Exact in every shape.

    A level's distribution is that of its row given the tokens above it. Trees and chains of a controlled length grow
    level by level. Chains of a fixed length are guessed as a whole, then guessed again from the last guess, `passes`
    times. A level's distribution is then conditional on the last guess of the tokens above, see `refine`.
    """

    kind: ClassVar[str] = "xpress"
    config_class = XPressConfig
    name = "xpress"
    published_as = ("XPressDraftModel", "Qwen3XPressModel", "speculators:xpress")
    writers: ClassVar[Mapping[str, str]] = {"vllm": "mmspec.vlm.export.blocks:xpress_speculators"}
    independent = False
    token_rows = ("head.weight", "refiner_head.readout.weight")
    config: XPressConfig

    def __init__(self, config: XPressConfig):
        super().__init__(config)
        sizes = config.block_size, config.refiner_rank, config.refiner_ratio
        self.refiner_head = CausalRefiner(config.hidden_size, config.vocab_size, self.width, *sizes)

    def new_state(self, target: object) -> XPressState:
        return XPressState(self, target)

    def drafting(self, rows: Tensor, earlier: Tensor) -> Tensor:
        """Return, per row that drafts: its state, the known part of a, and the root row's a if the root is no draft."""
        known = self.refiner_head.of_states(rows)
        if self.config.from_root:
            return torch.cat([rows, known], -1)
        root = known[..., :1, :] + self.refiner_head.of_tokens(earlier)[..., None, :]
        rest = known[..., 1:, :]
        return torch.cat([rows[..., 1:, :], rest, root.expand_as(rest)], -1)

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the features of `drafting`; the last part is empty where the root drafts."""
        width, rank = self.config.hidden_size, self.config.refiner_rank
        return rows[..., :width], rows[..., width : width + rank], rows[..., width + rank :]

    def after(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        state, known, root = self._parts(row)
        count, rank = token.shape[1], self.config.refiner_rank
        above = root if before is None else before[..., self.config.hidden_size + rank :]
        a = torch.cat([above.expand(-1, count, -1), known + self.refiner_head.of_tokens(token)], -1)
        x = self.refiner_head.mixed_last(a.unflatten(-1, (-1, rank)))
        return torch.cat([state.expand(-1, count, -1), x, a], -1)

    def walk(self, rows: Tensor, before: Tensor) -> Tensor:
        state, known, root = self._parts(rows)
        a = known + self.refiner_head.of_tokens(before)
        if not self.config.from_root:
            a = torch.cat([root[:, :1], a], 1)
        return torch.cat([state, self.refiner_head.mixed(a)[:, -rows.shape[1] :]], -1)

    def logits(self, out: Tensor, unary: Tensor) -> Tensor:
        width = self.config.hidden_size
        return unary + self.refiner_head(out[..., width : width + self.config.refiner_rank])

    def lessons(self, rows: Tensor, before: Tensor, best: Callable[[Tensor], Tensor]) -> list[Lesson]:
        """Return losses given the text's tokens before each level, given its own guesses, and without the refiner."""
        state, known, _ = self._parts(rows)
        plain = torch.cat([state, torch.zeros_like(known)], -1)
        lessons, guess = [(1.0, self.walk(rows, before))], best(plain)
        for _ in range(ROUNDS):
            out = self.walk(rows, torch.cat([before[:, :1], guess[:, :-1]], 1))
            lessons.append((ROUND_WEIGHT / ROUNDS, out))
            guess = best(out)
        return [*lessons, (BLOCK_WEIGHT, plain)]

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """The refiner's tensors are named "refiner_head.*" (`speculators`), or "xpress_head.*" in released files."""
        if config.get("xpress_backbone", "dflash") != "dflash" or config.get("xpress_selector"):
            raise ValueError(
                "xpress_backbone, xpress_selector: expected dflash and no selector, got "
                f"{config.get('xpress_backbone')!r} and {config.get('xpress_selector')}; no others are supported"
            )
        if "xpress_block_size" in config:
            config = {"block_size": config["xpress_block_size"]} | config
        rank = config.get("xpress_rank", 256)
        inner = config.get("xpress_mlp_hidden", rank * config.get("xpress_mlp_ratio", 2))
        state, fields = published_block(state, config, target, _own_name, "refiner_head.token_embed.weight")
        drafter = cls(
            XPressConfig(
                **fields,
                refiner_rank=rank,
                refiner_ratio=inner // rank,
                passes=config.get("num_jacobi_passes", config.get("xpress_num_passes", 6)),
            )
        )
        names = tensor_names(state, drafter.config)
        names |= {name: (name,) for name in drafter.state_dict() if name.startswith("refiner_head.")}
        return fill_drafter(drafter, state, names, UNUSED_TENSORS)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """DFlash's recipe with 0.1 cross-entropy, 0.9 total variation and more blocks per row."""
        from mmspec.vlm.training.losses import terms_of
        from mmspec.vlm.training.recipes import block_recipe

        terms = terms_of("hard_cross_entropy:0.1,total_variation:0.9")
        return {cls.kind: block_recipe(terms=terms, anchors=3072, gamma=4.0, per="place")}


_RELEASED = {"w1.weight": "token_embed.weight", "w2.weight": "readout.weight", "mix.L": "mix_l",
             "mlp.gate_proj.weight": "mlp_gate.weight", "mlp.up_proj.weight": "mlp_up.weight",
             "mlp.down_proj.weight": "mlp_down.weight"}  # fmt: skip


def _own_name(name: str) -> str:
    inner = name.removeprefix("xpress_head.")
    return name if inner == name else f"refiner_head.{_RELEASED.get(inner, inner)}"


def refine(
    scores: Callable[[Tensor], Tensor], guess: Tensor, passes: int, uniform: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Refine chains of D levels: guess all levels at once, given the last guess, at least once. Every level uses the
    same uniform number in all passes, float64 [B, D], or None for the best columns. After d passes at the latest, level
    d has the value that drawing level by level gives. A level's scores depend only on the numbers of the levels above,
    and its own number is independent of these. So the last pass's scores are the exact distribution that the value was
    drawn from, given the levels above, even if their previous guess differs. `scores` maps columns int64 [B, D] to
    log-weights [B, D, k], and `guess` int64 [B, D] depends on no number of a level below. Return the last columns and
    their scores."""
    for _ in range(passes):
        weights = scores(guess)
        guess = weights.argmax(-1) if uniform is None else draw(weights, uniform)
    return guess, weights


class XPressState(BlockDrafterState):
    def drafting(self, rows: Tensor) -> Tensor:
        target = self.target
        earlier = [line[-2] if len(line) > 1 else -1 for line in target.tokens]
        token = torch.tensor(earlier, device=rows.device)
        return self.drafter.drafting(rows, torch.where(token < 0, target.prompt[:, -1], token))

    def draft(self, target: object, keys: Keys, budget: DraftBudget) -> Draft:
        shape = self.shape
        if not isinstance(shape, Chain) or shape.length.begin() is not None:
            return super().draft(target, keys, budget)
        levels, drafter = max(budget.rooms), self.drafter
        rows, unary = self.rows[:, :levels], self.unary[:, :levels]
        is_picked = target.greedy or shape.drawn == "deterministic"
        uniform = None if is_picked else keys.uniform(Purpose.DRAFT, levels)

        def warped(scores: Tensor) -> Tensor:
            return scores if is_picked else target.processors.warp(scores, self.ids is not None)

        def scores(column: Tensor) -> Tensor:
            before = torch.cat([target.pending[:, None], values_of(column, self.ids)[:, :-1]], 1)
            return warped(drafter.logits(drafter.walk(rows, before), unary))

        start = warped(unary)
        start = start.argmax(-1) if is_picked else draw(start, uniform)
        column, laws = refine(scores, start, min(drafter.config.passes, levels), uniform)
        valid = []
        if min(budget.rooms) < levels:
            room = torch.tensor(budget.rooms, device=rows.device)
            valid = [room > level for level in range(levels)]
        tokens = list(values_of(column, self.ids).unbind(1))
        return draft_of_chain(target, tokens, [] if is_picked else list(laws.unbind(1)), valid, self.ids)
