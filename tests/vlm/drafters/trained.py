"""Every trained drafter with random weights that lean on the target's state, so that some of its drafts are kept."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch

from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from tests.vlm.tiny import HIDDEN, VOCAB

SIZES = dict(hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=4, vocab_size=VOCAB)


def eagle() -> ShapedDrafter:
    from mmspec.vlm.drafters.eagle import Eagle, EagleConfig

    return leaning(Eagle(EagleConfig(**SIZES)))


def eagle_without_pictures() -> ShapedDrafter:
    from mmspec.vlm.drafters.eagle import Eagle, EagleConfig

    return leaning(Eagle(EagleConfig(**SIZES, pictures="left_out")))


def eagle3() -> ShapedDrafter:
    """Leans on the state that enters the last layer; drafts part of the vocabulary."""
    from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config, levels_of

    drafter = Eagle3(Eagle3Config(**SIZES, levels=levels_of(2)))
    with torch.no_grad():
        drafter.fc.weight[:, -HIDDEN:].normal_(0, 0.1).add_(torch.eye(HIDDEN))
        drafter.head.weight.normal_()
    return drafter.with_vocabulary([i for i in range(SIZES["vocab_size"]) if i % 5])


def s2d() -> ShapedDrafter:
    """The exits are used in turn: thresholds lie where the likeliest tokens of random layers do."""
    from mmspec.vlm.drafters.eagle3 import levels_of
    from mmspec.vlm.drafters.s2d import S2D, S2DConfig

    drafter = S2D(S2DConfig(**SIZES, levels=levels_of(2))).with_thresholds(0.3, 0.25)
    with torch.no_grad():
        drafter.fc.weight[:, -HIDDEN:].normal_(0, 0.1).add_(torch.eye(HIDDEN))
        drafter.head.weight.normal_(0, 0.5)
        for layer in drafter.rest:
            layer.down.weight.normal_(0, 0.15)
    return drafter


def msd() -> ShapedDrafter:
    from mmspec.vlm.drafters.base.feature_drafter import FeatureConfig
    from mmspec.vlm.drafters.msd import Msd

    return leaning(Msd(FeatureConfig(**SIZES)))


def falcon() -> ShapedDrafter:
    from mmspec.vlm.drafters.falcon import Falcon, FalconConfig

    drafter = Falcon(FalconConfig(**SIZES))
    with torch.no_grad():
        for weight in drafter.lstm.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3)
    return drafter


def vispec() -> ShapedDrafter:
    """With something injected, so that pictures matter."""
    from mmspec.vlm.drafters.vispec import ViSpec, ViSpecConfig

    drafter = leaning(ViSpec(ViSpecConfig(**SIZES)))
    with torch.no_grad():
        drafter.inject.weight[:, HIDDEN:].normal_(0, 0.3)
    return drafter


def specvlm() -> ShapedDrafter:
    from mmspec.vlm.drafters.specvlm import SpecVlm, SpecVlmConfig

    return leaning(SpecVlm(SpecVlmConfig(**SIZES)))


def medusa() -> ShapedDrafter:
    from mmspec.vlm.drafters.base.head_drafter import HeadConfig
    from mmspec.vlm.drafters.medusa import Medusa

    return stirred(Medusa(HeadConfig(HIDDEN, SIZES["vocab_size"], layers=2, own_head=False)))


def hydra() -> ShapedDrafter:
    from mmspec.vlm.drafters.hydra import Hydra, HydraConfig

    return stirred(Hydra(HydraConfig(HIDDEN, SIZES["vocab_size"], heads=3, layers=2, own_head=False)))


def hydra_with_prefix_layer() -> ShapedDrafter:
    from mmspec.vlm.drafters.hydra import Hydra, HydraConfig

    layer = dict(intermediate_size=48, num_attention_heads=4, final_norm=True, dropout=0.2)
    return stirred(
        Hydra(HydraConfig(HIDDEN, SIZES["vocab_size"], heads=3, layers=2, own_head=False, prefix_layer=True, **layer))
    )


def flash() -> ShapedDrafter:
    from mmspec.vlm.drafters.flash.flash_drafter import Flash, FlashConfig

    sizes = dict(SIZES, intermediate_size=2 * HIDDEN, head_dim=HIDDEN)
    return own_slot(leaning(Flash(FlashConfig(**sizes, latents=3, block=3))))


def flash_residual() -> ShapedDrafter:
    from mmspec.vlm.drafters.flash.flash_drafter import Flash, FlashConfig

    sizes = dict(SIZES, intermediate_size=2 * HIDDEN, head_dim=HIDDEN)
    drafter = own_slot(leaning(Flash(FlashConfig(**sizes, latents=3, block=3, residual=True))))
    torch.nn.init.normal_(drafter.layer.down.weight, 0, 0.02)  # zeros would make all offsets one
    return drafter


def flash_autoregressive() -> ShapedDrafter:
    from mmspec.vlm.drafters.flash.flash_drafter import Flash, FlashConfig

    return leaning(Flash(FlashConfig(**SIZES, latents=3, head="ar", block=1)))


def blocks(family: str, **others: object) -> ShapedDrafter:
    """A block-parallel drafter of both layers, whose second layer looks 6 positions back; its sequential parts are stirred."""
    from mmspec.vlm.drafters.base.block_layers import UNLIMITED
    from mmspec.vlm.drafters.drafter_names import drafter_class

    made = drafter_class(family)
    config = made.config_class(
        **SIZES,
        taps=(0, 1),
        mask_token_id=1,
        block_size=5,
        num_hidden_layers=2,
        head_dim=8,
        reach=(UNLIMITED, 6),
        causal=(False, True),
        **others,
    )
    drafter = made(config)
    with torch.no_grad():
        drafter.fc.weight[:, -HIDDEN:].normal_(0, 0.1).add_(torch.eye(HIDDEN))
        for name, weight in drafter.named_parameters():
            if any(part in name for part in ("conv", "selector", "markov", "refiner")):
                weight.add_(torch.randn_like(weight) * 0.3)
    return drafter


def dflash() -> ShapedDrafter:
    return blocks("dflash")


def dflash_with_vision() -> ShapedDrafter:
    """Pictures of more than three tokens are pooled."""
    return blocks("dflash", latents=3)


def dflash2() -> ShapedDrafter:
    return blocks("dflash2", conv_group=4, selector_rank=8, selector_top=6)


def dspark() -> ShapedDrafter:
    return blocks("dspark", markov_rank=8, markov_head_type="gated", from_root=True)


def xpress() -> ShapedDrafter:
    return blocks("xpress", refiner_rank=8, passes=2)


def peagle() -> ShapedDrafter:
    from mmspec.vlm.drafters.peagle import PEagle, PEagleConfig

    config = PEagleConfig(
        **SIZES, levels=(0, 1, 1), mask_token_id=SIZES["vocab_size"] - 2, num_hidden_layers=2, depths=4
    )
    drafter = PEagle(config)
    with torch.no_grad():
        drafter.fc.weight[:, -HIDDEN:].normal_(0, 0.1).add_(torch.eye(HIDDEN))
        drafter.head.weight.normal_()
    return drafter


@torch.no_grad()
def own_slot(drafter: ShapedDrafter) -> ShapedDrafter:
    """Makes a block head attend to the slot itself for the most part and pass on what it reads there."""
    layer, eye = drafter.layer, torch.eye(HIDDEN)
    heads, groups = layer.config.heads, layer.config.groups
    same = torch.randn(HIDDEN, HIDDEN) * 0.2
    for rows in layer.qkv.weight.split(HIDDEN)[: heads + groups]:  # one matrix for all queries and keys
        rows.copy_(same)
    layer.qkv.weight.data[(heads + groups) * HIDDEN :].normal_(0, 0.05)[:HIDDEN].add_(eye)
    layer.out.weight.normal_(0, 0.05)[:, :HIDDEN].add_(eye)
    layer.up.weight.copy_(torch.cat([eye, -eye]))  # silu(x) - silu(-x) = x
    for rows in layer.down.weight.split(HIDDEN):
        rows.normal_(0, 0.05).add_(torch.cat([eye, -eye], 1))
    return drafter


def stirred(drafter: ShapedDrafter) -> ShapedDrafter:
    """Disturbs weights of heads, some of which start at zero."""
    with torch.no_grad():
        for weight in drafter.blocks.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return drafter


def leaning(drafter: ShapedDrafter) -> ShapedDrafter:
    """Makes the fusing layer pass the target's state on."""
    with torch.no_grad():
        drafter.fc.weight[:, HIDDEN:].normal_(0, 0.1).add_(torch.eye(HIDDEN))
    return drafter


PREFIX_LAYER = dict(intermediate_size=48, num_attention_heads=4)


def chimera() -> ShapedDrafter:
    from mmspec.vlm.drafters.chimera import Chimera, ChimeraConfig

    drafter = stirred(Chimera(ChimeraConfig(HIDDEN, SIZES["vocab_size"], heads=3, layers=2, **PREFIX_LAYER)))
    with torch.no_grad():
        drafter.encoder.outer.weight.normal_(0, 0.1)
    return drafter


def clover() -> ShapedDrafter:
    from mmspec.vlm.drafters.clover import Clover, CloverConfig

    drafter = Clover(CloverConfig(HIDDEN, SIZES["vocab_size"], heads=3, layers=2, **PREFIX_LAYER))
    with torch.no_grad():
        for block in drafter.output:
            block.linear.weight.normal_(0, 0.1)
    return drafter


def ppd() -> ShapedDrafter:
    from mmspec.vlm.drafters.ppd import PPD, PPDConfig

    return PPD(PPDConfig(HIDDEN, SIZES["vocab_size"]))


def longspec() -> ShapedDrafter:
    """With a window shorter than most texts; the keys of the target outweigh the embedding."""
    from mmspec.vlm.drafters.frozen_kv import LongSpec, LongSpecConfig

    drafter = LongSpec(LongSpecConfig(**SIZES, window=6))
    with torch.no_grad():
        for weight in (drafter.layer.query.weight, drafter.layer.cross_out.weight):
            weight.mul_(6)
    return drafter


def moa() -> ShapedDrafter:
    """With a window shorter than most texts, over both layers and the output of a target of two layers."""
    from mmspec.vlm.drafters.moa import MixtureOfAttentions, MoaConfig

    drafter = MixtureOfAttentions(MoaConfig(**SIZES, window=6, levels=(0, 1, 2)))
    with torch.no_grad():
        for weight in (drafter.layer.query.weight, drafter.layer.cross_out.weight, drafter.key_value.weight):
            weight.mul_(4)
        drafter.mix.scale.normal_(1, 0.5)
    return drafter


def hidden_transfer() -> ShapedDrafter:
    from mmspec.vlm.drafters.hidden_transfer import HiddenTransfer, HiddenTransferConfig

    drafter = HiddenTransfer(HiddenTransferConfig(HIDDEN, SIZES["vocab_size"]))
    drafter.maps.data.add_(torch.randn_like(drafter.maps) * 0.1)
    return drafter


DRAFTERS: dict[str, Callable[[], ShapedDrafter]] = {
    "eagle": eagle,
    "eagle_without_pictures": eagle_without_pictures,
    "eagle3": eagle3,
    "s2d": s2d,
    "msd": msd,
    "medusa": medusa,
    "hydra": hydra,
    "hydra_with_prefix_layer": hydra_with_prefix_layer,
    "flash": flash,
    "flash_autoregressive": flash_autoregressive,
    "flash_residual": flash_residual,
    "falcon": falcon,
    "vispec": vispec,
    "specvlm": specvlm,
    "dflash": dflash,
    "dflash_with_vision": dflash_with_vision,
    "dflash2": dflash2,
    "dspark": dspark,
    "xpress": xpress,
    "peagle": peagle,
    "chimera": chimera,
    "clover": clover,
    "ppd": ppd,
    "longspec": longspec,
    "moa": moa,
    "hidden_transfer": hidden_transfer,
}

# the default lane leaves these out where names multiply: a class that stands here under another name too, with another
# option, and heads of which Medusa and Hydra stand for the family
VARIANTS = (
    "falcon",
    "eagle_without_pictures",
    "hydra_with_prefix_layer",
    "flash_autoregressive",
    "flash_residual",
    "dflash_with_vision",
    "s2d",
    "chimera",
    "clover",
    "ppd",
    "longspec",
    "moa",
    "hidden_transfer",
)
NAMES = [pytest.param(name, marks=pytest.mark.whole) if name in VARIANTS else name for name in DRAFTERS]


def make(name: str, vocab: int = VOCAB) -> ShapedDrafter:
    """The drafter of this name, the same weights every time. Factories take their sizes from SIZES when they are called,
    so that a target of another vocabulary can have one too."""
    with torch.random.fork_rng(), patch.dict(SIZES, vocab_size=vocab):
        torch.manual_seed(0)
        return DRAFTERS[name]().eval().requires_grad_(False)
