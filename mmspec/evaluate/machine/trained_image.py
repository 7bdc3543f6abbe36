"""A text-to-image model of over 100 million parameters, trained on the GPU from nothing over the zoo's codes, and what exact
decodings without training are worth there beside plain decoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from mmspec import zoo
from mmspec.evaluate.image.config import ImageSetting
from mmspec.evaluate.image.methods import ImageMethod, jacobi, scd
from mmspec.evaluate.image.resources import ImageResources
from mmspec.evaluate.image.runner import cases, runner
from mmspec.evaluate.machine.measure import comparison_rows
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.zoo.training.image.build_llamagen import GptRecipe, t2i_recipe, train_llamagen

PLAIN = "plain"
BASELINES = {"ar": PLAIN}
AGAINST = {"speedup_vs_ar": PLAIN}


@dataclass(frozen=True, slots=True)
class GpuImageSizes:
    """dim, layers, heads: of the transformer.   windows: of decodings.   workers: that render."""

    dim: int = 768
    layers: int = 16
    heads: int = 12
    steps: int = 1500
    lr: float = 6e-4
    prompts: int = 4
    batches: tuple[int, ...] = (1, 8)
    windows: tuple[int, ...] = (16, 32, 64)
    workers: int = 12


TINY = GpuImageSizes(dim=32, layers=1, heads=2, steps=2, prompts=1, batches=(1,), windows=(16,), workers=0)


def rows(device: torch.device, tiny: bool) -> Iterator[dict]:
    """Trains, and then times."""
    sizes = TINY if tiny else GpuImageSizes()
    with TemporaryDirectory() as folder:
        pipe = _pipeline(sizes, Path(folder), device)
    transformer, resources = pipe.model.transformer, ImageResources(pipe, "world text to image")
    parameters = sum(one.numel() for one in transformer.parameters())
    dtype = str(next(transformer.parameters()).dtype)[6:]
    for batch in sizes.batches:
        setting = ImageSetting(batch=batch, temperature=1.0, prompts=sizes.prompts * batch, seed=0,
                               guidance=pipe.guidance_scale, top_k=pipe.top_k)  # fmt: skip
        runners = {one.key: runner(one, resources, setting) for one in _methods(sizes)}
        shared = {**setting.row(), "model": resources.name, "parameters": parameters, "dtype": dtype}
        yield from comparison_rows(runners, cases(resources, setting), BASELINES, shared, device)


def recipe(sizes: GpuImageSizes) -> GptRecipe:
    """The zoo's own training, of another size."""
    shipped = t2i_recipe(sizes.steps)
    config = replace(shipped.config, dim=sizes.dim, n_layer=sizes.layers, n_head=sizes.heads, multiple_of=256)
    return replace(shipped, name="t2i", config=config, lr=sizes.lr)


def _pipeline(sizes: GpuImageSizes, folder: Path, device: torch.device) -> LlamaGenPipeline:
    """The trained model between the zoo's tokenizer and caption encoder."""
    whole = zoo.load("t2i")
    shared, how = whole.model, recipe(sizes)
    gpt, _ = train_llamagen(how, shared.vq, shared.captions, folder / "t2i", device=str(device), workers=sizes.workers)
    pipe = LlamaGenPipeline(
        gpt.eval(), shared.vq, shared.captions, guidance_scale=whole.guidance_scale, top_k=whole.top_k
    )
    return pipe.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def _methods(sizes: GpuImageSizes) -> list[ImageMethod]:
    made = [ImageMethod(PLAIN, PLAIN)]
    for window in sizes.windows:
        for name, make in ((f"SJD {window}", jacobi(window)), (f"SCD {window}", scd(window))):
            made.append(ImageMethod(name, name, make=make))
    return made
