"""A video pipeline in a folder: transformer/, vae/, a text encoder where there is one, and an index of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
        how = {
            "sampler": _made(_SAMPLERS, index.sampler, "sampler"),
            "context": _made(_CONTEXTS, index.context, "context"),
        }
        how["plan"] = from_fields(BlockPlan, index.plan or {})
    model = WanVideo(load_wan(folder / "transformer"), context_noise=index.context_noise, name=index.name, **how)
    encoder = _encoder(folder, index.text_length) if index.text_encoder else None
    settings = {name: getattr(index, name) for name in ("size", "blocks") if getattr(index, name) is not None}
    return model, StreamingWanVAE(read_vae(folder / "vae")), encoder, settings


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
    index["context"] = _told(_CONTEXTS, model.context, "context")
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


def _told(kinds: Mapping[str, type], part: Any, name: str) -> dict[str, Any]:
    kind = next((kind for kind, made in kinds.items() if type(part) is made), None)
    given = {} if kind is None else asdict(part)
    if kind is None or given.get("anchor") is not None:
        raise ValueError(f"{name}: expected one of {', '.join(kinds)} without functions of its own, got {part!r}; save the "
                         "transformer alone, with save_wan")  # fmt: skip
    given.pop("anchor", None)
    return {"kind": kind, **given}


def _made(kinds: Mapping[str, type], told: Mapping[str, Any] | None, name: str) -> Any:
    if told is None:
        return next(iter(kinds.values()))()
    given = dict(told)
    kind = given.pop("kind", None)
    if kind not in kinds:
        raise ValueError(f"{name}: expected a kind of {', '.join(kinds)}, got {kind!r}; correct the index")
    if "anchor" in given:
        raise ValueError(f"{name}: expected no anchor, which is a function, got {given['anchor']!r}; remove it")
    return from_fields(kinds[kind], given)
