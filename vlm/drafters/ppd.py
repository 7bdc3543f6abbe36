"""PPD: trained prompt embeddings behind the nodes of a draft, whose own outputs in the target are the next draft."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.drafting.growth import DraftBudget, grow_draft
from mmspec.core.drafting.shapes import DynamicTree, StaticTree
from mmspec.core.length.controls import LengthControl
from mmspec.core.round.draft import Draft, Evidence, Probes, Verdict, gather_nodes
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import Tree
from mmspec.io.validation import Size, check_fields, whole
from mmspec.methods import MethodParts, method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.head_drafter import HeadState
from mmspec.vlm.drafters.base.probe_plan import Accuracies, ProbePlan, allot, probe_tree
from mmspec.vlm.drafters.base.trained_drafter import LogitTransform, ShapedDrafter

PROBES = 8  # of a row and pass


@dataclass(frozen=True, slots=True)
class PPDConfig:
    hidden_size: Size
    vocab_size: Size
    prompts: Size = 3  # the trained embeddings, as many as levels of a draft
    accuracies: Accuracies = ()  # per level, of each rank, see `rank_accuracies`; empty: unmeasured

    def __post_init__(self) -> None:
        object.__setattr__(self, "accuracies", tuple(map(tuple, self.accuracies)))  # lists when read from a file
        check_fields(self)
        if self.accuracies and len(self.accuracies) != self.prompts:
            raise ValueError(f"accuracies: expected those of {self.prompts} levels, got {len(self.accuracies)}")


def ppd_settings(
    chain: int = 0,
    nodes: int = 0,
    depth: int = 3,
    width: int = 4,
    length: LengthControl | str | None = None,
    probes: int = PROBES,
    budget: int = 0,
) -> None:
    """Take the settings of `PPD`.

    Args:
        chain: The tokens of a chain.
        nodes: The nodes of a dynamic tree.
        depth: The levels of that tree.
        width: The nodes expanded in a level of that tree.
        length: The controller of a chain's length.
        probes: The prompt embeddings in a pass.
        budget: The rows of a pass whose nodes and prompts follow from measured accuracies; 0 for the settings above.
    """


@method(
    "ppd",
    domain="vlm",
    kind="drafter",
    title="PPD",
    exact=True,
    needs=("weights",),
    takes=ppd_settings,
    order=13,
    about="prompt embeddings that the target reads behind each draft",
    paper="Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM Inference",
)
class PPD(ShapedDrafter):
    """Drafts with the target itself: embedding i behind a token guesses the token i + 1 further on. Exact in every shape.

    Paper: "Parallel Prompt Decoding" (arXiv 2405.18628). A pass over a draft also reads chains of prompt embeddings
    behind some of its nodes, see `Probes`. The chain behind the last accepted node drafts the next round. A level's
    distribution does not depend on the tokens above it. The round after a prompt has no chain yet and drafts nothing.

    Attributes:
        probes: The most prompt embeddings of a row and pass.
        plan: The drafts and prompts by measured accuracies; None for the drafter's own distributions.
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
        self.probes, self.plan = PROBES, None
        self.prompts = nn.Parameter(torch.randn(config.prompts, config.hidden_size))
        self.shapes = DynamicTree(nodes=6).cut(config.prompts), StaticTree((0, 0, 0, 1, 1, 2, 3)).cut(config.prompts)

    def start_from(self, parts: Parts) -> Self:
        tokens = torch.randint(parts.vocab_size, (self.config.prompts,), device=parts.device)
        self.prompts.data.copy_(parts.embed(tokens))
        return self

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts) -> Self:
        own = {name: value for name, value in settings.items() if name not in ("probes", "budget")}
        drafter = super().make(own, parts).with_probes(settings.get("probes", PROBES))
        return drafter.planned(lambda rows: 1.0, settings["budget"]) if settings.get("budget") else drafter

    def with_probes(self, probes: int) -> Self:
        """Return a drafter with the same weights and at most `probes` prompt embeddings in a pass, at least 1."""
        other = copy.copy(self)
        other.probes = whole("probes", probes, 1)
        return other

    def planned(self, cost: Callable[[int], float], most: int = 24) -> Self:
        """Return a drafter whose drafts and prompts give most tokens per unit of time; a batch shares its longest
        draft. `cost` is of a pass over a number of rows, at most `most`, see `measure_pass_costs`."""
        if not self.config.accuracies:
            raise ValueError(
                f"budget: expected a drafter with measured accuracies, got none; call {self.name}.calibrated"
            )
        other = copy.copy(self)
        other.plan = ProbePlan.best(self.config.accuracies, cost, whole("budget", most, 3))
        return other

    def calibrated(self, accuracies: Tensor) -> Self:
        """Return a drafter with the same weights and accuracies [K, ranks], see `rank_accuracies`."""
        other = copy.copy(self)
        other.config = replace(self.config, accuracies=tuple(map(tuple, accuracies.cummin(-1).values.tolist())))
        return other

    def probe_inputs(self, tree: Tree, chains: Tensor) -> Probes:
        """Return the probes `chains` of a draft, see `allot`; `tree` holds them behind the nodes."""
        return Probes(tree, self.prompts[chains % self.config.prompts])

    def check(self, parts: Parts) -> None:
        super().check(parts)
        if getattr(parts.model.config.get_text_config(decoder=True), "hidden_size_per_layer_input", 0):
            raise ValueError(
                "drafter: expected a target whose layers read a token through its embedding alone, got "
                "embeddings of tokens in every layer; draft with another method"
            )

    def new_state(self, target: object) -> PPDState:
        return PPDState(self, target)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] of the target's states [..., H] at prompts."""
        return head(out).float()

    def prescribed(self, recipe: Any) -> Any:
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
    """`rows` [B, K, H] are the target's states at the prompts behind the last accepted node, of which `known` per row
    limits the levels of its next draft. `scores` float32 [B, K, V] are the next levels' log-weights, None until
    `ready`. `chains` int64 [B, P] are the last pass's probes in order: probe k of node v is v * K + k."""

    independent = True

    def __init__(self, drafter: PPD, target: object):
        super().__init__(drafter, target)
        self.transform = LogitTransform.of(target.parts)

    def serve(self, target: object) -> None:
        super().serve(target)
        self.known, self.levels = [0] * target.batch, 0
        self.rows = self.scores = self.chains = self.probes = None

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Note the states at the prompts behind the last accepted node; other drafters' passes have none."""
        self.scores, self.known, count = None, [0] * target.batch, self.drafter.config.prompts
        if draft.probes is None or draft.probes is not self.probes:
            return
        wanted = verdict.node[:, None] * count + torch.arange(count, device=verdict.node.device)
        place = torch.searchsorted(self.chains, wanted).clamp(max=self.chains.shape[1] - 1)
        self.rows = gather_nodes(evidence.probed, place)
        self.known = (self.chains.gather(1, place) == wanted).sum(1).tolist()

    @torch.no_grad()
    def ready(self, depth: int | None = None) -> None:
        if self.scores is None:
            target, self.root = self.target, self.rows[:, 0]
            logits = self.drafter.logits(self.rows, 1, target.parts.head)
            self.scores = self.transform(logits) + self.ruling

    def draft_budget(self, longest: int | None = None) -> DraftBudget:
        budget = super().draft_budget(longest)
        rooms = [min(room, known) for room, known in zip(budget.rooms, self.known, strict=True)]
        self.levels = max(rooms)
        return replace(budget, rooms=rooms)

    def draft(self, target: object, keys: Keys, budget: DraftBudget) -> Draft:
        if self.drafter.plan is None:
            return super().draft(target, keys, budget)
        return grow_draft(self, target, StaticTree(self.drafter.plan.trees[self.levels]), keys, budget)

    @torch.no_grad()
    def propose(self, target: object, keys: Keys, longest: int | None = None) -> Draft:
        """Return the draft with prompts behind its nodes, except before the last token of a request."""
        draft, self.probes = super().propose(target, keys, longest), None
        if any(target.rooms(1)):
            plan, count = self.drafter.plan, self.drafter.config.prompts
            if plan is None:
                self.chains = allot(draft, self.scores, count, self.drafter.probes)
            else:
                self.chains = draft.value.new_tensor(plan.chains[self.levels]).expand(draft.batch, -1)
            self.probes = self.drafter.probe_inputs(probe_tree(draft, self.chains, count), self.chains)
        return replace(draft, probes=self.probes)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        return self.scores[:, depth - 1 : depth].expand(-1, out.shape[1], -1)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the state at the next prompt, the same for the whole level."""
        return self.rows[:, depth : depth + 1].expand(-1, token.shape[1], -1)
