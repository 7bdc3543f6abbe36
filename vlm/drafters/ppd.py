"""PPD: trained prompt embeddings behind the nodes of a draft, whose own outputs in the target are the next draft."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.draft import Draft, Evidence, Probes, Verdict, expand_tree, gather_nodes
from mmspec.core.drafting.growth import DraftBudget
from mmspec.core.drafting.shapes import DynamicTree, StaticTree
from mmspec.core.keys import Keys
from mmspec.core.length import LengthControl
from mmspec.core.tree import dynamic_tree
from mmspec.io.validation import whole
from mmspec.methods import MethodParts, method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.head_drafter import HeadState
from mmspec.vlm.drafters.base.trained_drafter import LogitTransform, ShapedDrafter

PROBES = 8  # of a row and pass
_STEP = 0.6  # the assumed ratio between the gains of a level and of the level above


@dataclass(frozen=True, slots=True)
class PPDConfig:
    """The sizes of PPD.

    Attributes:
        hidden_size, vocab_size: The target's.
        prompts: The trained embeddings, as many as levels of a draft.
    """

    hidden_size: int
    vocab_size: int
    prompts: int = 3

    def __post_init__(self) -> None:
        if min(self.hidden_size, self.vocab_size, self.prompts) < 1:
            raise ValueError(f"expected hidden_size, vocab_size and prompts of at least 1, got {self}; change them")


def ppd_settings(
    chain: int = 0, nodes: int = 0, depth: int = 3, width: int = 4, length: LengthControl | str | None = None,
    probes: int = PROBES,
) -> None:  # fmt: skip
    """Take the settings of `PPD`.

    Args:
        chain: The tokens of a chain.
        nodes: The nodes of a dynamic tree.
        depth: The levels of that tree.
        width: The nodes expanded in a level of that tree.
        length: The controller of a chain's length.
        probes: The prompt embeddings in a pass.
    """


@method(
    "ppd", domain="vlm", kind="drafter", title="PPD", exact=True, needs=("weights",), takes=ppd_settings, order=13,
    about="prompt embeddings that the target reads behind each draft",
    paper="Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM Inference",
)  # fmt: skip
class PPD(ShapedDrafter):
    """Drafts with the target itself: embedding i behind a token guesses the token i + 1 further on. Exact in every shape.

    Paper: "Parallel Prompt Decoding" (arXiv 2405.18628). A pass over a draft also reads chains of prompt embeddings
    behind some of its nodes, see `Probes`. The chain behind the last accepted node drafts the next round. A level's
    distribution does not depend on the tokens above it. The round after a prompt has no chain yet and drafts nothing.

    Attributes:
        probes: The most prompt embeddings of a row and pass.
    """

    kind: ClassVar[str] = "ppd"
    config_class = PPDConfig
    name = "ppd"
    trainable: ClassVar[bool] = True
    predicts_states: ClassVar[bool] = False
    from_ids = True
    steps = ("heads", 0, 0)
    config: PPDConfig

    def __init__(self, config: PPDConfig):
        super().__init__(config)
        self.trained_depth = self.own_depths = config.prompts
        self.probes = PROBES
        self.prompts = nn.Parameter(torch.randn(config.prompts, config.hidden_size))
        self.shapes = DynamicTree(nodes=6).cut(config.prompts), StaticTree((0, 0, 0, 1, 1, 2, 3)).cut(config.prompts)

    def start_from(self, parts: Parts) -> Self:
        """Copy embeddings of random tokens into the prompts; return the drafter."""
        tokens = torch.randint(parts.vocab_size, (self.config.prompts,), device=parts.device)
        self.prompts.data.copy_(parts.embed(tokens))
        return self

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts) -> Self:
        """See `ShapedDrafter.make`; the setting `probes` is that of `with_probes`."""
        settings = dict(settings)
        probes = settings.pop("probes", PROBES)
        return super().make(settings, parts).with_probes(probes)

    def with_probes(self, probes: int) -> Self:
        """Return a drafter with the same weights and at most `probes` prompt embeddings in a pass.

        Raises:
            ValueError: The number is below 1.
        """
        other = copy.copy(self)
        other.probes = whole("probes", probes, 1)
        return other

    def check(self, parts: Parts) -> None:
        super().check(parts)
        if getattr(parts.model.config.get_text_config(decoder=True), "hidden_size_per_layer_input", 0):
            raise ValueError("drafter: expected a target whose layers read a token through its embedding alone, got "
                             "embeddings of tokens in every layer; draft with another method")  # fmt: skip

    def new_state(self, target: object) -> PPDState:
        return PPDState(self, target)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] of the target's states [..., H] at prompts."""
        return head(out).float()

    def prescribed(self, recipe: Any) -> Any:
        """Return the recipe with the objective of prompts and their learning rate, 0.01."""
        from mmspec.vlm.training.prompts import PromptObjective

        return replace(recipe, objective=PromptObjective(replace(recipe.objective, decay=0.8)), lr=1e-2)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: KL divergence to the target's distributions, with weights 0.8 ** depth."""
        from mmspec.vlm.training.prompts import PromptObjective
        from mmspec.vlm.training.recipes import depth_recipe

        recipe = depth_recipe("cross_entropy", depth_decay=0.8, lr=1e-2, decay="cosine", answers="given")
        return {cls.kind: replace(recipe, objective=PromptObjective(recipe.objective))}


class PPDState(HeadState):
    """The state of a request: the target's states at the prompts behind the last accepted node.

    Attributes:
        known: Per row, the number of these prompts, which limits the levels of the row's next draft.
        rows: float [B, K, H], their states.
        scores: float32 [B, K, V], the log-weights of the next draft's levels; None until `ready`.
        chains: int64 [B, P], the probes of the last pass in order: probe k of node v is v * K + k.
    """

    independent = True

    def __init__(self, drafter: PPD, target: object):
        super().__init__(drafter, target)
        self.transform = LogitTransform.of(target.parts)

    def serve(self, target: object) -> None:
        super().serve(target)
        self.known: list[int] = [0] * target.batch
        self.rows = self.scores = self.chains = self.probes = None

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Note the states at the prompts behind the last accepted node; other drafters' passes have none."""
        self.scores, self.known = None, [0] * target.batch
        if draft.probes is None or draft.probes is not self.probes:
            return
        count = self.drafter.config.prompts
        wanted = verdict.node[:, None] * count + torch.arange(count, device=verdict.node.device)
        place = torch.searchsorted(self.chains, wanted).clamp(max=self.chains.shape[1] - 1)
        self.rows = gather_nodes(evidence.probed, place)
        self.known = (self.chains.gather(1, place) == wanted).sum(1).tolist()

    @torch.no_grad()
    def ready(self, depth: int | None = None) -> None:
        """Compute `scores` where they are out of date."""
        if self.scores is None:
            target, self.root = self.target, self.rows[:, 0]
            logits = self.drafter.logits(self.rows, 1, target.parts.head)
            self.scores = self.transform(logits) + self.ruling

    def draft_budget(self, longest: int | None = None) -> DraftBudget:
        budget = super().draft_budget(longest)
        return replace(budget, rooms=[min(room, known) for room, known in zip(budget.rooms, self.known, strict=True)])

    @torch.no_grad()
    def propose(self, target: object, keys: Keys, longest: int | None = None) -> Draft:
        """Return the draft with prompts behind its nodes, except before the last token of a request."""
        draft, self.probes = super().propose(target, keys, longest), None
        if any(target.rooms(1)):
            self.chains, self.probes = allot(draft, self.scores, self.drafter.prompts, self.drafter.probes)
        return replace(draft, probes=self.probes)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        return self.scores[:, depth - 1 : depth].expand(-1, out.shape[1], -1)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the state at the next prompt, the same for all nodes of the level; see `PairState.expand`."""
        return self.rows[:, depth : depth + 1].expand(-1, token.shape[1], -1)


def allot(draft: Draft, scores: Tensor | None, prompts: Tensor, most: int) -> tuple[Tensor, Probes]:
    """Put prompts behind the nodes of a draft where the next round gains most by them.

    The gain of prompt k behind a node is the chance that the accepted path ends there, times the assumed gain of level
    k + 1 of the next draft. It falls with k, so the prompts of a node are a chain.

    Args:
        draft: The draft, without probes.
        scores: float32 [B, K, V], the log-weights of its levels; None for a root alone.
        prompts: float [K, H].
        most: The most probes of a row.

    Returns:
        int64 [B, P], ascending: probe k of node v is v * K + k; and the probes.
    """
    tree, nodes, count = draft.tree, draft.tree.nodes, len(prompts)
    gain = end_chances(draft, scores)[..., None] * _STEP ** torch.arange(count, device=draft.value.device)
    chains = gain.flatten(1).topk(min(most, nodes * count), -1).indices.sort(-1).values
    node, prompt = chains // count, chains % count
    before = nodes - 1 + torch.arange(chains.shape[1], device=chains.device)
    parent = torch.cat([expand_tree(tree.parent, draft.batch), torch.where(prompt > 0, before, node)], 1)
    deepest, last = tree.max_depth + min(count, chains.shape[1]), parent.shape[1] - 1
    # a tree as deep as its number of nodes counts as a chain, which only prompts behind a root alone are
    deepest += deepest == last and nodes > 1
    return chains, Probes(dynamic_tree(parent, deepest, last), prompts[prompt])


def end_chances(draft: Draft, scores: Tensor | None) -> Tensor:
    """Return the chance that the accepted path ends at each node, by the drafter's own distributions, float32 [B, N].

    Args:
        draft: The draft.
        scores: float32 [B, K, V], the log-weights of its levels; None for a root alone.
    """
    tree = draft.tree
    if tree.nodes == 1:
        return torch.ones(draft.value.shape, device=draft.value.device)
    level = (expand_tree(tree.depth, draft.batch) - 1).clamp(min=0)
    chosen = scores.log_softmax(-1).flatten(1).gather(1, level * scores.shape[-1] + draft.value).clamp(min=-20)
    chosen[:, 0] = 0
    chosen = chosen if draft.valid is None else torch.where(draft.valid, chosen, -20.0)
    chance = (tree.ancestor.float() @ chosen[..., None])[..., 0].exp()
    child = torch.cat([torch.zeros_like(chance[:, :1]), chance[:, 1:]], 1)
    passed = torch.zeros_like(chance).scatter_add(1, expand_tree(tree.parent, draft.batch), child)
    return (chance - passed).clamp(min=1e-9)
