"""The report on a saved image or video pipeline, from its configs and file headers: no weight is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmspec.check.report import CheckReport, DrafterFit, LayerGroup
from mmspec.check.source import ModelSource
from mmspec.io.pretrained import CONFIG
from mmspec.io.readers import naming, read_json, read_shapes
from mmspec.methods import Domain, methods
from mmspec.run.model_kinds import (
    BLOCKS,
    CODES,
    CONTINUOUS_PIPELINES,
    DIFFUSERS_PIPELINES,
    VIDEO_PIPELINE,
)
from mmspec.vlm.memory_needs import MemoryNeeds

Sizes = tuple[list[LayerGroup], int | None, str]  # layers, cached numbers of a token, a note


def check_pipeline(source: ModelSource) -> CheckReport:
    index = source.index
    name = str(index.get("_class_name"))
    if name in DIFFUSERS_PIPELINES:
        how = "supported through Python alone: load it with diffusers and pass it to mmspec.video.from_diffusers"
        return CheckReport(source.spec, "video", name, True, how)
    if name not in (*_READERS, VIDEO_PIPELINE):
        reason = f"expected a pipeline of {', '.join((*_READERS, VIDEO_PIPELINE))}, got {name}"
        return CheckReport(source.spec, "image", name, False, f"{reason}; nothing here draws with it")
    folder = source.folder / "transformer"
    fields = read_json(folder / CONFIG)
    with naming(folder / CONFIG):
        layers, numbers, note = _READERS.get(name, _wan)(fields)
    domain, kind = _domain(name, fields)
    report = CheckReport(
        source.spec,
        "image" if domain == "continuous" else domain,
        name,
        True,
        "saved by this library, which draws with it",
        layers=layers,
    )
    report.memory = _memory(source, numbers, note)
    report.drafters = decodings_for(domain, kind)
    prompt = '"PROMPT"' if fields.get("model_type", "t2i") == "t2i" else "LABEL"
    model = source.zoo or source.folder
    report.next_commands = [f"mmspec {'video' if domain == 'video' else 'image'} {prompt} --model {model}"]
    return report


def _domain(name: str, fields: dict[str, Any]) -> tuple[Domain, str]:
    if name in CONTINUOUS_PIPELINES:
        return "continuous", CONTINUOUS_PIPELINES[name]
    if name == VIDEO_PIPELINE:
        return "video", BLOCKS
    return ("video" if fields.get("frames", 1) > 1 else "image"), CODES


def _llamagen(fields: dict[str, Any]) -> Sizes:
    from mmspec.imagegen.llamagen.llamagen_config import GPTConfig

    config = GPTConfig.of(fields)
    tokens = config.cls_token_num + config.frames * config.block_size
    numbers = 2 * config.n_layer * config.kv_heads * config.head_dim
    return [LayerGroup("full", config.n_layer)], numbers, f"A picture has {tokens} tokens, twice that under guidance."


def _mar(fields: dict[str, Any]) -> Sizes:
    from mmspec.imagegen.continuous.mar.mar_config import MARConfig

    config = MARConfig.of(fields)
    layers = [
        LayerGroup("encoder, both ways", config.encoder_depth),
        LayerGroup("decoder, both ways", config.decoder_depth),
    ]
    return layers, None, f"Layers that look both ways keep no cache; a picture has {config.tokens} tokens."


def _causal(fields: dict[str, Any]) -> Sizes:
    from mmspec.imagegen.continuous.causal.transformer import CausalConfig

    config = CausalConfig.of(fields)
    note = f"A picture has {config.tokens} tokens, twice that under guidance."
    return [LayerGroup("full", config.depth)], 2 * config.depth * config.width, note


def _wan(fields: dict[str, Any]) -> Sizes:
    from mmspec.video.wan.wan_config import WanConfig

    config = WanConfig.of(fields)
    seen = None if config.local_attn_size < 0 else config.local_attn_size
    note = f"Layers look back {'over all' if seen is None else seen} frames; a token is a cell of a latent frame."
    kind = "causal from block to block"
    return [LayerGroup(kind, config.num_layers)], 2 * config.num_layers * config.dim, note


_READERS: dict[str, Callable[[dict[str, Any]], Sizes]] = {
    "LlamaGenPipeline": _llamagen,
    "MARPipeline": _mar,
    "ContinuousARPipeline": _causal,
}


def _memory(source: ModelSource, numbers: int | None, note: str) -> MemoryNeeds | None:
    """Return the bytes of all weights in the folder, and of a token's keys and values in the transformer's precision."""
    files = sorted(source.folder.rglob("*.safetensors"))
    tensors = [value for file in files for value in read_shapes(file).values()]
    if not tensors:
        return None
    own = [value for file in files if file.parent.name == "transformer" for value in read_shapes(file).values()]
    dtype = next((value.dtype for value in own or tensors if value.is_floating_point()), torch.float32)
    parameters, weights = sum(value.numel() for value in tensors), sum(value.nbytes for value in tensors)
    per_token = None if numbers is None else numbers * dtype.itemsize
    return MemoryNeeds(str(dtype).removeprefix("torch."), parameters, weights, per_token, 0, note)


def decodings_for(domain: Domain, kind: str) -> list[DrafterFit]:
    """Return the decodings for a kind of model, those without further weights first."""
    fits = []
    for method in methods(domain, "decoding", models=kind):
        if method.name in ("ar", "auto"):
            continue
        law = "exact" if method.exact else "relaxed"
        needs = f"; needs {', '.join(method.needs)}" if method.needs else ""
        parameters, text = (None, "") if method.needs else (0, method.name)
        about = f"{law}: {method.about}{needs}"
        fits.append(DrafterFit(method.name, True, not method.needs, parameters, about, text))
    return sorted(fits, key=lambda fit: not fit.here)
