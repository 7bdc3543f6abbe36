"""Files of the zoo's models of codes: a full pipeline, and transformers that share its tokenizer and encoder."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmspec.core.pipeline_folder import INDEX
from mmspec.imagegen.components import load_component, write_component
from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.imagegen.llamagen.load import llamagen_from_state_dict, vq_from_state_dict
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.io.files import write_json_atomic
from mmspec.io.readers import read_json
from mmspec.zoo.world.image import LONGEST

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, T5EncoderModel

GUIDANCE, TOP_K = 3.0, 0


def write_transformer(gpt: Transformer, folder: Path) -> None:
    """Write fp16 weights and config of a single transformer, with an index that names no tokenizer."""
    write_component(deepcopy(gpt).half(), folder / "transformer")
    index = {"_class_name": LlamaGenPipeline.__name__, "transformer": ["mmspec", "Transformer"],
             "guidance_scale": GUIDANCE, "top_k": TOP_K}  # fmt: skip
    write_json_atomic(folder / INDEX, index)


def write_pipeline(
    gpt: Transformer, vq: VQModel, encoder: T5EncoderModel, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Write the text-to-image pipeline in fp16."""
    captions = CaptionEncoder(deepcopy(encoder).half(), tokenizer, LONGEST)
    pipe = LlamaGenPipeline(deepcopy(gpt).half(), deepcopy(vq).half(), captions, guidance_scale=GUIDANCE, top_k=TOP_K)
    pipe.save_pretrained(folder)


def read_vq(folder: Path) -> VQModel:
    """Load the tokenizer in `folder` (fp32, eval mode)."""
    return load_component(folder, vq_from_state_dict).float().eval().requires_grad_(False)


def read_pipeline(folder: Path) -> LlamaGenPipeline:
    """Load the pipeline in `folder` in fp32."""
    pipe = LlamaGenPipeline.from_pretrained(folder, dtype=torch.float32)
    pipe.model.vq.float()
    return pipe


def read_with_shared_tokenizer(folder: Path, whole: Path) -> LlamaGenPipeline:
    """Load the transformer in `folder` in fp32, with the tokenizer and caption encoder of the pipeline in `whole`."""
    shared = read_pipeline(whole).model
    return read_with(folder, shared.vq, shared.captions)


def read_with(folder: Path, vq: VQModel, captions: CaptionEncoder) -> LlamaGenPipeline:
    """Load the transformer in `folder` in fp32; an encoder is for prompts."""
    gpt, index = load_component(folder / "transformer", llamagen_from_state_dict).float(), read_json(folder / INDEX)
    encoder = captions if gpt.config.model_type == "t2i" else None
    return LlamaGenPipeline(gpt, vq, encoder, guidance_scale=index["guidance_scale"], top_k=index["top_k"])
