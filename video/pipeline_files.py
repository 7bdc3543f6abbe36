"""The folder of a video pipeline: transformer/, vae/, an optional text encoder, and an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.core.pipeline_folder import Component, write_encoder
from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.loading import load_module
from mmspec.io.pretrained import write_weights
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import from_fields
from mmspec.video.generation import FewStep, FlowMap
from mmspec.video.model import BlockPlan
from mmspec.video.prompt_encoder import PromptEncoder
from mmspec.video.vae import StreamingWanVAE
from mmspec.video.wan.checkpoints import load_wan, save_wan
from mmspec.video.wan.rebuilt import Rebuilt
from mmspec.video.wan.transformer import CausalWan
from mmspec.video.wan.video import Cached, WanVideo

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan


VAE_CONFIG, VAE_WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"


def read_vae(folder: str | Path) -> AutoencoderKLWan:
    """Load the autoencoder of a folder written by diffusers or `write_vae`, in float32 and eval mode."""
    from inspect import signature

    from diffusers import AutoencoderKLWan

    folder = Path(folder)
    config = {name: value for name, value in read_json(folder / VAE_CONFIG).items() if not name.startswith("_")}
    with naming(folder / VAE_CONFIG):
        known = set(signature(AutoencoderKLWan.__init__).parameters) - {"self"}
        if unknown := sorted(config.keys() - known):
            raise ValueError(f"config: expected fields of AutoencoderKLWan, got {unknown}; remove them")
    return load_module(lambda: AutoencoderKLWan(**config), folder / VAE_WEIGHTS).requires_grad_(False)


def write_vae(model: AutoencoderKLWan, folder: str | Path) -> None:
    known = {name: value for name, value in model.config.items() if not name.startswith("_")}
    write_weights(model.state_dict(), {"_class_name": "AutoencoderKLWan", **known}, folder, VAE_WEIGHTS)


_SAMPLERS = {"few_step": FewStep, "flow_map": FlowMap}
_CONTEXTS = {"cached": Cached, "rebuilt": Rebuilt}


@dataclass(frozen=True, slots=True)
class VideoIndex:
    transformer: object = None
    vae: list | None = None
    name: str = "wan"
    context_noise: float = 0.0
    plan: dict | None = None
    sampler: dict | None = None
    context: dict | None = None
    text_encoder: list | None = None
    text_length: int = 512
    size: list | None = None
    blocks: int | None = None


def read_model(index: Mapping[str, Any]) -> Callable[[CausalWan, StreamingWanVAE], WanVideo]:
    """Read the settings of a model from the index of its pipeline. Return a function from its components to the model."""
    stored = VideoIndex(**{name: value for name, value in index.items() if name in VideoIndex.__slots__})
    sampler, plan = _build_part(_SAMPLERS, stored.sampler, "sampler"), from_fields(BlockPlan, stored.plan or {})
    context, has_pixels = _build_context(stored.context)

    def build(transformer: CausalWan, vae: StreamingWanVAE) -> WanVideo:
        used = replace(context, vae=vae) if has_pixels else context
        return WanVideo(transformer, used, sampler, plan, stored.context_noise, stored.name)

    return build


def written_model(pipe: Any) -> dict[str, Any]:
    """Return the entries of the index that `read_model` reads; refuse parts that cannot be saved."""
    for name, kind in (("model", WanVideo), ("vae", StreamingWanVAE), ("encoder", PromptEncoder)):
        part = getattr(pipe, name)
        if not isinstance(part, kind) and (name != "encoder" or part is not None):
            raise ValueError(
                f"{name}: expected a {kind.__name__} to save, got {type(part).__name__}; save it with its own library"
            )
    model = pipe.model
    return {
        "name": model.name,
        "context_noise": model.context_noise,
        "plan": asdict(model.plan),
        "sampler": _part_fields(_SAMPLERS, model.sampler, "sampler"),
        "context": _part_fields(_CONTEXTS, model.context, "context", pipe.vae),
    }


def _read_encoder(folder: Path, index: Mapping[str, Any], parts: object) -> PromptEncoder:
    from transformers import AutoModel, AutoTokenizer, T5EncoderModel, UMT5EncoderModel

    model_type = read_json(folder / "config.json").get("model_type")
    encoder = load_model({"t5": T5EncoderModel, "umt5": UMT5EncoderModel}.get(model_type, AutoModel), folder)
    tokenizer = load_part(AutoTokenizer, folder.with_name("tokenizer"))
    return PromptEncoder(encoder, tokenizer, index.get("text_length", VideoIndex().text_length))


def _write_encoder(encoder: PromptEncoder, folder: Path) -> dict[str, Any]:
    return {**write_encoder(encoder.encoder, encoder.tokenizer, folder), "text_length": encoder.length}


COMPONENTS = (
    Component(
        "transformer", "model.transformer", lambda folder, *_: load_wan(folder), save_wan, ("mmspec", "CausalWan")
    ),
    Component(
        "vae",
        "vae",
        lambda folder, *_: StreamingWanVAE(read_vae(folder)),
        lambda vae, folder: write_vae(vae.model, folder),
        ("diffusers", "AutoencoderKLWan"),
        module="model",
        keeps_dtype=True,
    ),
    Component("text_encoder", "encoder", _read_encoder, _write_encoder, optional=True, module="encoder"),
)


def _part_fields(kinds: Mapping[str, type], part: Any, name: str, vae: Any = None) -> dict[str, Any]:
    """An autoencoder, which must be the pipeline's own `vae`, becomes true."""
    kind = next((kind for kind, cls in kinds.items() if type(part) is cls), None)
    part_vae = getattr(part, "vae", None)
    if kind is None or part_vae not in (None, vae):
        raise ValueError(
            f"{name}: expected one of {', '.join(kinds)}, with no autoencoder but the pipeline's, got {part!r}; "
            "save the transformer alone, with save_wan"
        )
    entry = {field.name: getattr(part, field.name) for field in fields(part)}
    return {"kind": kind, **entry} | ({"vae": part_vae is not None} if "vae" in entry else {})


def _build_context(entry: Mapping[str, Any] | None) -> tuple[Any, bool]:
    """Return the context, and whether it uses the pipeline's autoencoder."""
    entry = dict(entry or {"kind": "cached"})
    pixels = entry.pop("vae", False) if entry.get("kind") == "rebuilt" else False
    if not isinstance(pixels, bool):
        raise ValueError(f"context: expected true or false for vae, got {pixels!r}; correct the index")
    return _build_part(_CONTEXTS, entry, "context"), pixels


def _build_part(kinds: Mapping[str, type], entry: Mapping[str, Any] | None, name: str) -> Any:
    if entry is None:
        return next(iter(kinds.values()))()
    settings = dict(entry)
    if (kind := settings.pop("kind", None)) not in kinds:
        raise ValueError(f"{name}: expected a kind of {', '.join(kinds)}, got {kind!r}; correct the index")
    return from_fields(kinds[kind], settings)
