"""DFlash's drafter: block diffusion in one step over the target's own states."""

from __future__ import annotations

from typing import ClassVar

from mmspec.vlm.drafters.context_config import ContextConfig
from mmspec.vlm.drafters.context_drafter import ContextDrafter


class DFlash(ContextDrafter):
    """Drafts the tokens of a block side by side ("DFlash: Block Diffusion for Flash Speculative Decoding"): rows of mask
    tokens behind the root see the context and each other, and each row predicts the token at its own position.

    No row knows what another one drew, so a level's law is a marginal. By default every row gives its best token and the law
    on record is one-hot; `Chain` draws from the marginals instead, `StaticTree` siblings of each parent apart, and
    `DynamicTree` takes the likeliest prefixes under the product of the marginals ("Accelerating Speculative Decoding with
    Block Diffusion Draft Trees"). Lossless in every shape: what is on record is what was drawn from.

    Positions are the tokens' places in the row, pictures' tokens like others, whatever positions the target has.
    """

    kind: ClassVar[str] = "dflash"
    config_class = ContextConfig
    name = "dflash"


def taps_of(target_layers: int, layers: int) -> tuple[int, ...]:
    """The layers read of a target of so many by a drafter of `layers`: spread from layer 1 to the last but two."""
    if layers == 1:
        return (target_layers // 2,)
    last = max(target_layers - 3, 1)
    spread = (round(1 + i * (last - 1) / (layers - 1)) for i in range(layers))
    return tuple(dict.fromkeys(spread))
