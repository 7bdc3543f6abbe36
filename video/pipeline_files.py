"""A video pipeline in a folder: transformer/, vae/, a text encoder where there is one, and an index of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from mmspec.core.checkpoints import load_model, load_part
from mmspec.core.config_fields import check_types, from_fields
from mmspec.core.files import write_json_atomic, writing
from mmspec.core.readers import naming, read_json
from mmspec.video.generation.few_step import FewStep
from mmspec.video.generation.flow_map import FlowMap
from mmspec.video.plan import BlockPlan
from mmspec.video.text import PromptEncoder
from mmspec.video.vae.files import read_vae, write_vae
from mmspec.video.vae.wan import StreamingWanVAE
from mmspec.video.wan.cached import Cached
from mmspec.video.wan.files import load_wan, save_wan
from mmspec.video.wan.rebuilt import Rebuilt
from mmspec.video.wan.video import WanVideo

INDEX = "model_index.json"
FILES = ("*.json", "*.safetensors", "*.model")
_SAMPLERS = {"few_step": FewStep, "flow_map": FlowMap}
_CONTEXTS = {"cached": Cached, "rebuilt": Rebuilt}


@dataclass(frozen=True, slots=True)
class _Index:
    """What model_index.json says besides names of classes."""

    vae: list | None = None
    text_encoder: list | None = None
    text_length: int = 512
    name: str = "wan"
    context_noise: float = 0.0
    sampler: dict | None = None
    context: dict | None = None
    plan: dict | None = None
    size: list | None = None
    blocks: int | None = None


def read_parts(folder: Path, kind: str) -> tuple[WanVideo, StreamingWanVAE, PromptEncoder | None, dict[str, Any]]:
    """Model, autoencoder in float32, text encoder, and the defaults of calls that the index gives.

    Raises ValueError, with the file, for a folder of another `kind` of pipeline, and as the loaders do.
    """
    index = read_json(folder / INDEX)
    if (found := index.get("_class_name")) != kind:
        raise ValueError(f"{folder / INDEX}: expected a {kind}, got {found!r}; check the folder")
    told = {name: value for name, value in index.items() if name in _Index.__slots__}
    with naming(folder / INDEX):
        check_types(_Index, told)
        index = _Index(**told)
        how = {"sampler": _made(_SAMPLERS, index.sampler, "sampler"), "plan": from_fields(BlockPlan, index.plan or {})}
        context, pixels = _context(index.context)
    vae = StreamingWanVAE(read_vae(folder / "vae"))
    how["context"] = replace(context, vae=vae) if pixels else context
    model = WanVideo(load_wan(folder / "transformer"), context_noise=index.context_noise, name=index.name, **how)
    encoder = _encoder(folder, index.text_length) if index.text_encoder else None
    settings = {name: getattr(index, name) for name in ("size", "blocks") if getattr(index, name) is not None}
    return model, vae, encoder, settings


def save_parts(folder: Path, kind: str, model: Any, vae: Any, encoder: Any, settings: Mapping[str, Any]) -> None:
    """Writes what `read_parts` reads; the index comes last.   Raises ValueError for parts it has no files for."""
    for part, name, wanted in (
        (model, "model", WanVideo),
        (vae, "vae", StreamingWanVAE),
        (encoder, "encoder", PromptEncoder | None),
    ):
        if not isinstance(part, wanted):
            kinds = getattr(wanted, "__name__", "PromptEncoder")
            raise ValueError(
                f"{name}: expected a {kinds} to save, got {type(part).__name__}; save it with its own library"
            )
    index = {"_class_name": kind, "transformer": ["mmspec", "CausalWan"], "vae": ["diffusers", "AutoencoderKLWan"]}
    index |= {"name": model.name, "context_noise": model.context_noise, "plan": asdict(model.plan)}
    index["sampler"] = _told(_SAMPLERS, model.sampler, "sampler")
    index["context"] = _told(_CONTEXTS, model.context, "context", vae)
    if encoder is not None:
        for part, name in ((encoder.encoder, "text_encoder"), (encoder.tokenizer, "tokenizer")):
            with writing(folder / name):
                part.save_pretrained(folder / name)
        index |= {"text_encoder": ["transformers", type(encoder.encoder).__name__], "text_length": encoder.length}
    save_wan(model.transformer, folder / "transformer")
    write_vae(vae.model, folder / "vae")
    write_json_atomic(folder / INDEX, index | dict(settings))


def _encoder(folder: Path, length: int) -> PromptEncoder:
    """A text encoder of transformers: that of UMT5 and T5 by themselves, others as their config says."""
    from transformers import AutoModel, AutoTokenizer, T5EncoderModel, UMT5EncoderModel

    config = folder / "text_encoder" / "config.json"
    kind = {"t5": T5EncoderModel, "umt5": UMT5EncoderModel}.get(read_json(config).get("model_type"), AutoModel)
    encoder = load_model(kind, folder / "text_encoder")
    return PromptEncoder(encoder, load_part(AutoTokenizer, folder / "tokenizer"), length)


def _told(kinds: Mapping[str, type], part: Any, name: str, vae: Any = None) -> dict[str, Any]:
    """What the index says of a part; of a context with an autoencoder, which has to be the pipeline's own `vae`, only that."""
    kind = next((kind for kind, made in kinds.items() if type(part) is made), None)
    own = getattr(part, "vae", None)
    if kind is None or own not in (None, vae):
        raise ValueError(f"{name}: expected one of {', '.join(kinds)}, with no autoencoder but the pipeline's, got {part!r}; "
                         "save the transformer alone, with save_wan")  # fmt: skip
    given = {field.name: getattr(part, field.name) for field in fields(part)}
    return {"kind": kind, **given} | ({"vae": own is not None} if "vae" in given else {})


def _context(told: Mapping[str, Any] | None) -> tuple[Any, bool]:
    """The context, and whether it has the pipeline's autoencoder.   Raises ValueError as `_made`, and where that is no yes or
    no."""
    given = dict(told or {"kind": "cached"})
    pixels = given.pop("vae", False) if given.get("kind") == "rebuilt" else False
    if not isinstance(pixels, bool):
        raise ValueError(f"context: expected true or false for vae, got {pixels!r}; correct the index")
    return _made(_CONTEXTS, given, "context"), pixels


def _made(kinds: Mapping[str, type], told: Mapping[str, Any] | None, name: str) -> Any:
    if told is None:
        return next(iter(kinds.values()))()
    given = dict(told)
    kind = given.pop("kind", None)
    if kind not in kinds:
        raise ValueError(f"{name}: expected a kind of {', '.join(kinds)}, got {kind!r}; correct the index")
    return from_fields(kinds[kind], given)
