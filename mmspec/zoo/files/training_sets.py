"""Fixed sets that trainings read, made once in files of a few hundred members: tensors, latents of images, and image codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.io.files import replacing
from mmspec.io.readers import open_tensors
from mmspec.zoo.world.image import image_prompt, sample_image_scene


def batch_members(count: int, size: int, turn: int) -> list[int]:
    """The `size` members of a turn, of `count`; every epoch has an order of its own."""
    epoch, place = divmod(turn, max(count // size, 1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return order[place * size : (place + 1) * size].tolist()


_BY = "autoencoder"
Tensors = dict[str, Tensor]


def fingerprint(model: nn.Module, settings: object) -> str:
    """Of weights and settings, by which what another autoencoder made is told."""
    found = sha256(repr(settings).encode())
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def cached_tensors(
    folder: Path, stem: str, by: str, count: int, make: Callable[[int, int], Tensors], *, chunk: int = 512, batch: int = 64,
    on_members: Callable[[int], None] = lambda size: None,
) -> Tensors:  # fmt: skip
    """Tensors [count, ...] of a set, in files of `chunk` members; those of this autoencoder that are there already are kept.

    by: `fingerprint` of the autoencoder.   make(first, size): the members from the index `first` on, at most
    `batch` at a time.   on_members(size): called after each file with the number of its members.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for first in range(0, count, chunk):
        size = min(chunk, count - first)
        path = folder / f"{stem}_{first:06d}.safetensors"
        part = _read_part(path, by, size)
        if part is None:
            part = _joined([make(first + at, min(batch, size - at)) for at in range(0, size, batch)])
            with replacing(path) as partial:
                save_file(part, partial, {_BY: by})
        parts.append(part)
        on_members(size)
    return _joined(parts)


def _joined(parts: list[Tensors]) -> Tensors:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _read_part(path: Path, by: str, size: int) -> Tensors | None:
    """What a file holds; None where it is missing, of another autoencoder, or of another number of members."""
    if not path.exists():
        return None
    with open_tensors(path) as stored:
        if (stored.metadata() or {}).get(_BY) != by:
            return None
        found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  the file is no mapping
    return found if found and all(len(value) == size for value in found.values()) else None


@dataclass(frozen=True, slots=True)
class ImageLatents:
    """The posteriors of N pictures as tokens, scaled. mean, std: float16 [N, L, d]."""

    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        return len(self.mean)

    def batch(self, step: int, size: int) -> tuple[Tensor, Tensor]:
        """The pictures of a training step, int64 [size], and their tokens float32 [size, L, d], drawn from the posteriors; a
        pure function of the step."""
        taken = torch.tensor(batch_members(len(self), size, step))
        noise = torch.randn(len(taken), *self.mean.shape[1:], generator=torch.Generator().manual_seed(step))
        return taken, self.mean[taken].float() + self.std[taken].float() * noise


CODES_SEED = (1 << 29) + (1 << 27)  # apart from the pictures the models themselves are trained and measured on
CODES_CHUNK = 64


@dataclass(slots=True)
class ImageCodes:
    """codes: int64 [N, T], raster order.   prompts: of each image."""

    codes: Tensor
    prompts: list[str]

    def __len__(self) -> int:
        return len(self.prompts)

    def batch(self, step: int, size: int) -> tuple[list[str], Tensor]:
        """Prompts and codes of a training step, a pure function of it."""
        taken = batch_members(len(self), size, step)
        return [self.prompts[i] for i in taken], self.codes[taken]


def write_codes(path: Path, codes: Tensor, prompts: Sequence[str]) -> None:
    """One safetensors file: "codes" int32 [N, T], and the prompts as a JSON list in the metadata."""
    with replacing(path) as partial:
        save_file({"codes": codes.to(torch.int32).contiguous()}, partial, {"prompts": json.dumps(list(prompts))})


def read_codes(paths: Sequence[Path]) -> ImageCodes:
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
    return ImageCodes(torch.cat(codes), prompts)


def generate_codes(
    pipe: ImagePipeline, folder: Path, count: int, on_images: Callable[[int], None] = lambda done: None
) -> list[Path]:
    """Files of `count` images of the pipeline itself, sampled in turn with its guidance and with none; files that are there
    already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(-(-count // CODES_CHUNK)):
        path = folder / f"codes_{number:04d}.safetensors"
        size = min(CODES_CHUNK, count - number * CODES_CHUNK)
        if not path.exists():
            seeds = [CODES_SEED + number * CODES_CHUNK + i for i in range(size)]
            prompts = [image_prompt(sample_image_scene(seed), seed) for seed in seeds]
            scale = 1.0 if number % 4 == 3 else pipe.guidance_scale
            images = pipe(prompts, guidance_scale=scale, seed=[s & (2**31 - 1) for s in seeds], pixels=False)
            write_codes(path, images.tokens, prompts)
        paths.append(path)
        on_images(size)
    return paths
