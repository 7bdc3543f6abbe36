"""Files of the zoo's models of continuous tokens: an autoencoder, and transformers that share it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.core.pipeline_folder import INDEX
from mmspec.imagegen.components import load_component, write_component
from mmspec.imagegen.continuous.causal.pipeline import ContinuousARPipeline, causal_from_state_dict
from mmspec.imagegen.continuous.causal.transformer import CausalTransformer
from mmspec.imagegen.continuous.kl import kl_from_state_dict
from mmspec.imagegen.continuous.mar.load import mar_from_state_dict
from mmspec.imagegen.continuous.mar.pipeline import MARPipeline
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.imagegen.llamagen.captions import read_captions as read_encoder
from mmspec.io.files import write_json_atomic
from mmspec.io.readers import read_json
from mmspec.zoo.world.image import LONGEST

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

GUIDANCE = 2.0  # of masked models
CAUSAL_GUIDANCE = 3.0  # the best share of recognised objects: 0.77 at 2, 0.82 at 3, 0.78 at 4
ITERATIONS = 32  # iterations over the 64 tokens of a masked image


def read_kl(folder: Path) -> AutoencoderKL:
    """Load the autoencoder in `folder` (fp32, eval mode)."""
    return load_component(folder, kl_from_state_dict).float()


def read_captions(whole: Path) -> CaptionEncoder:
    """Load the caption encoder (fp32) of the text-to-image pipeline in `whole`."""
    captions = read_encoder(
        whole / "text_encoder", LONGEST, cleaned=read_json(whole / INDEX).get("clean_captions", True)
    )
    captions.encoder.float()
    return captions


def write_mar(model: MAR, folder: Path) -> None:
    """Write fp16 weights and config of a single transformer, with an index that names no autoencoder."""
    _write(
        model,
        folder,
        {
            "_class_name": MARPipeline.__name__,
            "transformer": ["mmspec", "MAR"],
            "guidance_scale": GUIDANCE,
            "num_iter": ITERATIONS,
        },
    )


def write_car(model: CausalTransformer, folder: Path) -> None:
    """Write fp16 weights and config of a single transformer, with an index that names no autoencoder."""
    _write(model, folder, {"_class_name": ContinuousARPipeline.__name__, "guidance_scale": CAUSAL_GUIDANCE})


def _write(model: MAR | CausalTransformer, folder: Path, index: dict) -> None:
    write_component(deepcopy(model).half().cpu(), folder / "transformer")
    write_json_atomic(folder / INDEX, index)


def read_mar(folder: Path, kl: Path, whole: Path) -> MARPipeline:
    """Load a transformer in fp32 with the autoencoder in `kl` and the caption encoder of the pipeline in `whole`."""
    model = load_component(folder / "transformer", mar_from_state_dict).float()
    index = read_json(folder / INDEX)
    return MARPipeline(
        model, read_kl(kl), read_captions(whole), guidance_scale=index["guidance_scale"], num_iter=index["num_iter"]
    )


def read_car(folder: Path, kl: Path) -> ContinuousARPipeline:
    """Load the transformer in `folder` with the autoencoder in `kl`, in fp32."""
    model = load_component(folder / "transformer", causal_from_state_dict).float()
    return ContinuousARPipeline(model, read_kl(kl), guidance_scale=read_json(folder / INDEX)["guidance_scale"])
