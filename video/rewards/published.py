"""Published preference models of CLIP's kind: HPSv2 and PickScore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.video.rewards.clip_encoders import OpenClipEncoder, TransformersClipEncoder
from mmspec.video.rewards.cosine import CosineReward
from mmspec.video.rewards.filling import filled, named, weights_of
from mmspec.video.rewards.views import Views

Tokenizer = Callable[[list[str]], Tensor]
_OPEN_CLIP_FIELDS = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"}
_COUNTED = "embeddings.position_ids"  # older files hold them
_H14 = {
    "projection_dim": 1024,
    "vision_config": {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16,
                      "patch_size": 14, "image_size": 224, "hidden_act": "gelu", "projection_dim": 1024},
    "text_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                    "hidden_act": "gelu", "projection_dim": 1024},
}  # fmt: skip


def hpsv2_from_state_dict(
    sd: Mapping[str, Any] | str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    views: Views | None = None,
    batch: int = 16,
) -> CosineReward:
    """HPSv2 or HPSv2.1 as a `Reward`: the cosine, unscaled ("Human Preference Score v2", arXiv 2306.09341).

    sd: tensors under open_clip's names, raw or under "state_dict", of any size; or a .safetensors file.
    config: open_clip's model config (embed_dim, vision_cfg, text_cfg); None for ViT-H-14, which is the published one.
    views: the whole frame in one square with black beside it where not given, as reports of its scores show frames to it.
    Raises ValueError, one sentence, for missing, unknown and misshapen tensors.
    """
    from open_clip import get_model_config
    from open_clip.model import CLIP

    fields = dict(config or get_model_config("ViT-H-14"))
    if unknown := sorted(fields.keys() - _OPEN_CLIP_FIELDS):
        raise ValueError(f"config: expected {', '.join(sorted(_OPEN_CLIP_FIELDS))}, got {unknown} too; remove them")
    weights = weights_of(sd)
    with named(sd):
        encoder = OpenClipEncoder(filled(lambda: CLIP(**fields), weights), tokenizer, batch)
    return CosineReward(encoder, views=views or Views(encoder.size, crops="letterbox"), name="HPSv2")


def pickscore_from_state_dict(
    sd: Mapping[str, Any] | str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    views: Views | None = None,
    batch: int = 16,
) -> CosineReward:
    """PickScore as a `Reward`: the cosine times the scale of training ("Pick-a-Pic", arXiv 2305.01569).

    sd: tensors under the names of transformers' CLIPModel, of any size; or a .safetensors file.
    config: of that model, as in its config.json; None for ViT-H-14, which is the published one.
    views: the centre crop where not given, as published.
    Raises ValueError, one sentence, for missing, unknown and misshapen tensors.
    """
    from transformers import CLIPConfig, CLIPModel

    weights = {name: value for name, value in weights_of(sd).items() if not name.endswith(_COUNTED)}
    with named(sd):
        encoder = TransformersClipEncoder(
            filled(lambda: CLIPModel(CLIPConfig(**(config or _H14))), weights), tokenizer, batch
        )
    return CosineReward(encoder, encoder.scale, views or Views(encoder.size), "PickScore")
