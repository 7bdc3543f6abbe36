"""Files of the zoo's video models: an autoencoder, transformers that share a caption encoder, and a reward."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.core.pipeline_folder import INDEX, write_encoder
from mmspec.imagegen.llamagen.captions import CaptionEncoder, read_encoder, read_tokenizer
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.io.files import write_json_atomic
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import from_fields
from mmspec.video.generation import FlowMap
from mmspec.video.model import BlockPlan
from mmspec.video.pipeline import BlockVideoPipeline
from mmspec.video.pipeline_files import read_vae
from mmspec.video.prompt_encoder import PromptEncoder
from mmspec.video.vae import StreamingWanVAE
from mmspec.video.wan.checkpoints import load_wan, save_wan
from mmspec.video.wan.transformer import CausalWan
from mmspec.video.wan.video import WanVideo
from mmspec.zoo.architectures.frame_reward import FrameReward, PromptReward, RewardSize
from mmspec.zoo.files.image import read_vq, read_with
from mmspec.zoo.files.sized import load_sized
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE
from mmspec.zoo.world.video_prompts import LONGEST

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, T5EncoderModel


BLOCKS = 7  # default length of a video: 81 frames


def read_video_vae(folder: Path) -> StreamingWanVAE:
    """Load the autoencoder in `folder` (fp32, eval mode)."""
    return StreamingWanVAE(read_vae(folder).float(), quick=True)


def write_video(model: CausalWan, folder: Path, sampler: FlowMap, plan: BlockPlan) -> None:
    """Write fp16 weights and config of a single transformer, with an index that names no autoencoder."""
    save_wan(deepcopy(model).half().cpu(), folder / "transformer")
    index = {"_class_name": BlockVideoPipeline.__name__, "transformer": ["mmspec", CausalWan.__name__]}
    write_json_atomic(
        folder / INDEX, {**index, "sampler": {"kind": "flow_map", **asdict(sampler)}, "plan": asdict(plan)}
    )


def write_prompts(encoder: T5EncoderModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the caption encoder in fp16 and its tokenizer."""
    write_encoder(deepcopy(encoder).half().cpu(), tokenizer, folder / "text_encoder")


def read_prompts(folder: Path) -> PromptEncoder:
    """Load the caption encoder (fp32) and tokenizer in `folder`."""
    return PromptEncoder(read_encoder(folder / "text_encoder").float(), read_tokenizer(folder / "tokenizer"), LONGEST)


def read_video_codes(folder: Path, images: Path, whole: Path) -> LlamaGenPipeline:
    """Load a transformer of video codes with the tokenizer in `images` and the caption encoder in `whole`, in fp32."""
    prompts = read_prompts(whole)
    return read_with(folder, read_vq(images / "vq"), CaptionEncoder(prompts.encoder, prompts.tokenizer, LONGEST))


def read_video(folder: Path, vae: Path, whole: Path) -> BlockVideoPipeline:
    """Load a transformer with the autoencoder in `vae` and the caption encoder in `whole`, in fp32."""
    index = read_json(folder / INDEX)
    with naming(folder / INDEX):
        sampler = {name: value for name, value in index["sampler"].items() if name != "kind"}
        how = {"sampler": from_fields(FlowMap, sampler), "plan": from_fields(BlockPlan, index["plan"])}
    model = load_wan(folder / "transformer").float().requires_grad_(False)
    video = WanVideo(model, name=folder.name, **how)
    return BlockVideoPipeline(
        video, read_video_vae(vae), read_prompts(whole), size=(IMAGE_SCENE_SIDE,) * 2, blocks=BLOCKS
    )


def read_reward(folder: Path, whole: Path) -> PromptReward:
    """Load the reward in `folder` with the caption encoder in `whole`, in fp32 and eval mode."""
    return PromptReward(load_sized(RewardSize, FrameReward, folder), read_prompts(whole))
