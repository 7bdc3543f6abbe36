"""The folder of a video pipeline: transformer/, vae/, an optional text encoder, and an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.files import replacing, write_json_atomic, writing
from mmspec.io.loading import load_module
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import check_types, from_fields
from mmspec.video.generation import FewStep, FlowMap
from mmspec.video.model import BlockPlan
from mmspec.video.prompt_encoder import PromptEncoder
from mmspec.video.vae import StreamingWanVAE
from mmspec.video.wan.checkpoints import load_wan, save_wan
from mmspec.video.wan.rebuilt import Rebuilt
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
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / VAE_WEIGHTS) as temporary:
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, temporary)
    known = {name: value for name, value in model.config.items() if not name.startswith("_")}
    write_json_atomic(folder / VAE_CONFIG, {"_class_name": "AutoencoderKLWan", **known})


INDEX = "model_index.json"
FILES = ("*.json", "*.safetensors", "*.model")
_SAMPLERS = {"few_step": FewStep, "flow_map": FlowMap}
_CONTEXTS = {"cached": Cached, "rebuilt": Rebuilt}


@dataclass(frozen=True, slots=True)
class _VideoIndex:
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
    """Load model, autoencoder in float32 and text encoder, and the defaults of calls from the index."""
    index = read_json(folder / INDEX)
    if (stored := index.get("_class_name")) != kind:
        raise ValueError(f"{folder / INDEX}: expected a {kind}, got {stored!r}; check the folder")
    fields = {name: value for name, value in index.items() if name in _VideoIndex.__slots__}
    with naming(folder / INDEX):
        check_types(_VideoIndex, fields)
        index = _VideoIndex(**fields)
        sampler, plan = _build_part(_SAMPLERS, index.sampler, "sampler"), from_fields(BlockPlan, index.plan or {})
        context, pixels = _build_context(index.context)
    vae = StreamingWanVAE(read_vae(folder / "vae"))
    context = replace(context, vae=vae) if pixels else context
    model = WanVideo(load_wan(folder / "transformer"), context, sampler, plan, index.context_noise, index.name)
    encoder = _read_encoder(folder, index.text_length) if index.text_encoder else None
    settings = {name: getattr(index, name) for name in ("size", "blocks") if getattr(index, name) is not None}
    return model, vae, encoder, settings


def save_parts(folder: Path, kind: str, model: Any, vae: Any, encoder: Any, settings: Mapping[str, Any]) -> None:
    """Write the files that `read_parts` reads; the index comes last."""
    for part, name, kinds in (
        (model, "model", WanVideo),
        (vae, "vae", StreamingWanVAE),
        (encoder, "encoder", PromptEncoder),
    ):
        if not isinstance(part, kinds) and (name != "encoder" or part is not None):
            raise ValueError(
                f"{name}: expected a {kinds.__name__} to save, got {type(part).__name__}; save it with its own library"
            )
    index = {"_class_name": kind, "transformer": ["mmspec", "CausalWan"], "vae": ["diffusers", "AutoencoderKLWan"]}
    index |= {"name": model.name, "context_noise": model.context_noise, "plan": asdict(model.plan)}
    index["sampler"] = _part_fields(_SAMPLERS, model.sampler, "sampler")
    index["context"] = _part_fields(_CONTEXTS, model.context, "context", vae)
    if encoder is not None:
        for part, name in ((encoder.encoder, "text_encoder"), (encoder.tokenizer, "tokenizer")):
            with writing(folder / name):
                part.save_pretrained(folder / name)
        index |= {"text_encoder": ["transformers", type(encoder.encoder).__name__], "text_length": encoder.length}
    save_wan(model.transformer, folder / "transformer")
    write_vae(vae.model, folder / "vae")
    write_json_atomic(folder / INDEX, index | dict(settings))


def _read_encoder(folder: Path, length: int) -> PromptEncoder:
    from transformers import AutoModel, AutoTokenizer, T5EncoderModel, UMT5EncoderModel

    config = folder / "text_encoder" / "config.json"
    kind = {"t5": T5EncoderModel, "umt5": UMT5EncoderModel}.get(read_json(config).get("model_type"), AutoModel)
    encoder = load_model(kind, folder / "text_encoder")
    return PromptEncoder(encoder, load_part(AutoTokenizer, folder / "tokenizer"), length)


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
