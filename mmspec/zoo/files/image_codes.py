"""Files of generated images as codes beside their prompts: what the drafter of an image model is trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.core.files import replacing
from mmspec.core.readers import open_tensors
from mmspec.imagegen.pipeline import ImagePipeline

from ..world.pictures import sample_picture
from ..world.prompts import prompt_of

FIRST_SEED = (1 << 29) + (1 << 27)  # apart from the pictures the models themselves are trained and measured on
CHUNK = 64


@dataclass(slots=True)
class Codes:
    """codes: int64 [N, T], raster order.   prompts: of each image."""

    codes: Tensor
    prompts: list[str]

    def __len__(self) -> int:
        return len(self.prompts)

    def batch(self, step: int, size: int) -> tuple[list[str], Tensor]:
        """Prompts and codes of a training step, a pure function of it: every epoch in an order of its own."""
        per_epoch = max(len(self) // size, 1)
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(epoch))
        taken = order[place * size : (place + 1) * size]
        return [self.prompts[i] for i in taken.tolist()], self.codes[taken]


def write_codes(path: Path, codes: Tensor, prompts: Sequence[str]) -> None:
    """One safetensors file: "codes" int32 [N, T], and the prompts as a JSON list in the metadata."""
    with replacing(path) as partial:
        save_file({"codes": codes.to(torch.int32).contiguous()}, partial, {"prompts": json.dumps(list(prompts))})


def read_codes(paths: Sequence[Path]) -> Codes:
    """The images of one or several files, in order.   Raises ValueError for a file that holds anything else."""
    codes, prompts = [], []
    for path in paths:
        with open_tensors(path) as stored:
            told = (stored.metadata() or {}).get("prompts")
            if told is None or list(stored.keys()) != ["codes"]:
                raise ValueError(f"codes: expected a tensor 'codes' and prompts in the metadata of {path}, got "
                                 f"{list(stored.keys())}; write it with write_codes")  # fmt: skip
            codes.append(stored.get_tensor("codes").long())
        try:
            prompts += [str(prompt) for prompt in json.loads(told)]
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"codes: expected a list of prompts in the metadata of {path}, got {told[:40]!r}; write it "
                             "again") from error  # fmt: skip
        if len(prompts) != sum(map(len, codes)):
            raise ValueError(f"codes: expected a prompt for each image of {path}, got {len(prompts)} prompts for "
                             f"{sum(map(len, codes))} images in all; write it again")  # fmt: skip
    return Codes(torch.cat(codes), prompts)


def own_codes(
    pipe: ImagePipeline, folder: Path, count: int, on_images: Callable[[int], None] = lambda done: None
) -> list[Path]:
    """Files of `count` images of the pipeline itself, sampled in turn with its guidance and with none; files that are there
    already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(-(-count // CHUNK)):
        path = folder / f"codes_{number:04d}.safetensors"
        size = min(CHUNK, count - number * CHUNK)
        if not path.exists():
            seeds = [FIRST_SEED + number * CHUNK + i for i in range(size)]
            prompts = [prompt_of(sample_picture(seed), seed) for seed in seeds]
            scale = 1.0 if number % 4 == 3 else pipe.guidance_scale
            images = pipe(prompts, guidance_scale=scale, seed=[s & (2**31 - 1) for s in seeds], pixels=False)
            write_codes(path, images.tokens, prompts)
        paths.append(path)
        on_images(size)
    return paths
