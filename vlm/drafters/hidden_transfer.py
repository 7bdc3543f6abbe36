"""Hidden Transfer: linear maps of a middle state become the states of the next tokens, which the target's layers refine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.round.draft import Probes
from mmspec.core.round.tree import Tree
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.ppd import PPD, PPDConfig, PPDState, ppd_settings
from mmspec.vlm.joined_pass import JoiningProbes
from mmspec.vlm.partial_passes import check_partial, first_exit


@dataclass(frozen=True, slots=True)
class HiddenTransferConfig(PPDConfig):
    """The sizes of Hidden Transfer: `prompts` is the number of maps."""

    starts: tuple[int, ...] = (1, 1, 1)  # per map, the layer of the target that its states enter; never falls

    def __post_init__(self) -> None:
        PPDConfig.__post_init__(self)
        object.__setattr__(self, "starts", tuple(self.starts))  # a list when read from a file
        if len(self.starts) != self.prompts or min(self.starts) < 0 or list(self.starts) != sorted(self.starts):
            raise ValueError(f"starts: expected {self.prompts} numbers of layers that do not fall, got {self.starts}")


@method(
    "hidden_transfer",
    domain="vlm",
    kind="drafter",
    title="Hidden Transfer",
    exact=True,
    needs=("weights",),
    order=14,
    takes=ppd_settings,
    about="mapped states of the target's middle layers, which its later layers read behind each draft",
    paper="Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration",
)
class HiddenTransfer(PPD):
    """Drafts with the target's later layers: map i of a token's middle state is that of the token i + 1 further on. Exact.

    Paper: "Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration" (arXiv 2404.12022). The
    mapped states stand behind some nodes of a draft, as PPD's prompts do, from the layer on that they enter.
    """

    kind: ClassVar[str] = "hidden_transfer"
    config_class = HiddenTransferConfig
    name = "hidden transfer"
    config: HiddenTransferConfig

    def __init__(self, config: HiddenTransferConfig):
        super().__init__(config)
        self.register_parameter("prompts", None)
        self.maps = nn.Parameter(torch.eye(config.hidden_size).repeat(config.prompts, 1, 1))

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The first states enter the middle layer, later states an eighth deeper each."""
        half, step = max(parts.layers // 2, first_exit(parts)), parts.layers // 8
        starts = tuple(min(half + step * place, parts.layers - 1) for place in range(sizes.get("prompts", 3)))
        return super().sizes_for(parts, sizes) | {"starts": starts}

    def start_from(self, parts: Parts) -> Self:
        return self

    def probe_inputs(self, tree: Tree, chains: Tensor) -> Probes:
        count, width = self.config.prompts, self.config.hidden_size
        nothing = self.maps.new_zeros(1, chains.shape[1], width)
        return JoiningProbes(tree, nothing, chains // count, chains % count, self.config.starts, self.maps)

    def check(self, parts: Parts) -> None:
        super().check(parts)
        check_partial(parts, max(self.config.starts[0], 1))
        check_partial(parts, max(self.config.starts[-1], 1))

    def new_state(self, target: object) -> PPDState:
        if target.surroundings:
            raise ValueError(
                f"drafter: expected passes that can begin in the middle of the target for {self.name}, got "
                "strict passes or the like; draft with another method"
            )
        return PPDState(self, target)

    def prescribed(self, recipe: Any) -> Any:
        from mmspec.vlm.training.transfers import TransferObjective

        return replace(recipe, objective=TransferObjective(replace(recipe.objective, decay=0.8)))

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """The paper's loss, KL divergence to the target's distributions, with PPD's weights of depths."""
        from mmspec.vlm.training.recipes import depth_recipe
        from mmspec.vlm.training.transfers import TransferObjective

        recipe = depth_recipe("cross_entropy", depth_decay=0.8, lr=1e-3, warmup=0.1, decay="cosine", answers="given")
        return {cls.kind: replace(recipe, objective=TransferObjective(recipe.objective))}
