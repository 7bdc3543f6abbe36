"""A text-to-image model of over 100 million parameters, trained on the GPU from nothing over the zoo's codes, and what exact
decodings without training are worth there beside plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from mmspec import zoo
from mmspec.evaluate.engine.runs import Run, Runner, row_passes, timed_run
from mmspec.evaluate.gpu.meeting import met
from mmspec.evaluate.image.requests import requests_of
from mmspec.imagegen import SCD, SJD
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.zoo.training.pictures.build_llamagen import t2i_recipe
from mmspec.zoo.training.pictures.llamagen import GptRecipe, train_llamagen

PLAIN = "plain"
BASELINES = {"ar": PLAIN}
AGAINST = {"speedup_vs_ar": PLAIN}


@dataclass(frozen=True, slots=True)
class ImageSizes:
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


TINY = ImageSizes(dim=32, layers=1, heads=2, steps=2, prompts=1, batches=(1,), windows=(16,), workers=0)


def rows(device: torch.device, tiny: bool, repeats: int) -> Iterator[dict]:
    """Trains, and then times.   repeats: not asked for, prompts are."""
    sizes = TINY if tiny else ImageSizes()
    with TemporaryDirectory() as folder:
        pipe = _pipeline(sizes, Path(folder), device)
    parameters = sum(one.numel() for one in pipe.model.transformer.parameters())
    shared = {"model": "world text to image", "parameters": parameters, "temperature": 1.0,
              "dtype": str(next(pipe.model.transformer.parameters()).dtype)[6:]}  # fmt: skip
    for batch in sizes.batches:
        asked = [one.given for one in requests_of("t2i", sizes.prompts * batch)]
        cases = [asked[first : first + batch] for first in range(0, len(asked), batch)]
        yield from met(_runners(pipe, sizes), cases, BASELINES, shared | {"batch": batch}, device)


def recipe(sizes: ImageSizes) -> GptRecipe:
    """The zoo's own training, of another size."""
    shipped = t2i_recipe(sizes.steps)
    config = replace(shipped.config, dim=sizes.dim, n_layer=sizes.layers, n_head=sizes.heads, multiple_of=256)
    return replace(shipped, name="t2i", config=config, lr=sizes.lr)


def _pipeline(sizes: ImageSizes, folder: Path, device: torch.device) -> LlamaGenPipeline:
    """The trained model between the zoo's tokenizer and caption encoder."""
    whole = zoo.load("t2i")
    shared, how = whole.model, recipe(sizes)
    gpt, _ = train_llamagen(how, shared.vq, shared.captions, folder / "t2i", device=str(device), workers=sizes.workers)
    pipe = LlamaGenPipeline(
        gpt.eval(), shared.vq, shared.captions, guidance_scale=whole.guidance_scale, top_k=whole.top_k
    )
    return pipe.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def _runners(pipe: LlamaGenPipeline, sizes: ImageSizes) -> dict[str, Runner]:
    runners = {PLAIN: _runner(pipe, None)}
    for window in sizes.windows:
        runners |= {f"SJD {window}": _runner(pipe, SJD(window)), f"SCD {window}": _runner(pipe, SCD(window))}
    return runners


def _runner(pipe: LlamaGenPipeline, decoding: object) -> Runner:
    def run(prompts: Sequence[str], seed: int) -> Run:
        began = perf_counter()
        out = pipe(list(prompts), decoding=decoding, seed=seed)
        seconds, stats = perf_counter() - began, out.stats
        return timed_run(stats, tuple(map(tuple, out.tokens.tolist())), seconds, row_passes(stats))

    return run
