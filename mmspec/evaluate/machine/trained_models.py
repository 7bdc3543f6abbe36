"""Drafting with models of over 100 million parameters that are trained on the GPU first.

They are a captioner with its drafter, and a text-to-image model over the zoo's codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mmspec import zoo
from mmspec.core.length.controls import FixedLength
from mmspec.evaluate.engine.runs import Runner
from mmspec.evaluate.image.config import ImageSetting
from mmspec.evaluate.image.domain import DOMAIN as IMAGES
from mmspec.evaluate.image.methods import ImageMethod
from mmspec.evaluate.machine.measure import comparison_rows
from mmspec.evaluate.vlm.requests import held_out
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.methods import methods
from mmspec.run.image_models import ImageResources
from mmspec.run.placement import inputs_on
from mmspec.run.vlm_requests import encode
from mmspec.run.vlm_runs import run_ours, run_peer, sampling_arguments
from mmspec.vlm import Rounds
from mmspec.vlm.drafters import Chain
from mmspec.zoo.architectures.llava import TextSize, new_model, new_processor
from mmspec.zoo.training.image.build_llamagen import GptRecipe, t2i_recipe, train_llamagen
from mmspec.zoo.training.loop import TrainingPlan
from mmspec.zoo.training.vlm.build_drafter import train_on_answers
from mmspec.zoo.training.vlm.build_vlm import Mixture, start_projector, train_captioner
from mmspec.zoo.training.vlm.drafter_recipes import DrafterData, DrafterRecipe
from mmspec.zoo.training.vlm.drafter_requests import HeldOutRequests, SceneRequests
from mmspec.zoo.training.vlm.vision_tower import pretrain_tower

PLAIN, CAPTURED = "plain", "plain, captured"
PEER = "transformers"
_TEXT = {"captured": CAPTURED, "ar": PLAIN, "hf": PEER}
# step -> its baselines, by their name in row fields
BASELINES = {"real": _TEXT, "vlm": _TEXT, "image": {"ar": PLAIN}}
_TEXT_RATIOS = {"speedup_vs_captured": CAPTURED, "speedup_vs_hf": PEER}
# step -> the fields of ratios in tables, and the baseline of each
AGAINST = {"real": _TEXT_RATIOS, "vlm": _TEXT_RATIOS, "image": {"speedup_vs_ar": PLAIN}}


@dataclass(frozen=True, slots=True)
class GpuVlmSizes:
    """The sizes of the captioner and its drafter."""

    size: TextSize = TextSize(layers=16, width=768, inner=2048)
    tower_steps: int = 2400
    steps: int = 1200
    lr: float = 6e-4
    batch: int = 16
    requests: int = 1536  # the answers of the target from which its drafter learns
    drafter_steps: int = 400
    drafter_batch: int = 12
    prompts: int = 4
    new_tokens: int = 128
    lengths: tuple[int, ...] = (3, 5)  # of chains
    temperatures: tuple[float, ...] = (0.0, 1.0)
    workers: int = 12  # processes that render scenes


TINY_VLM = GpuVlmSizes(
    TextSize(layers=1, width=64, inner=64),
    tower_steps=1,
    steps=2,
    batch=2,
    requests=2,
    drafter_steps=1,
    drafter_batch=2,
    prompts=1,
    new_tokens=6,
    lengths=(2,),
    workers=0,
)


def vlm_rows(device: torch.device, tiny: bool) -> Iterator[dict]:
    """Train the captioner and its drafter, then time both beside transformers and plain decoding in captured rounds."""
    sizes = TINY_VLM if tiny else GpuVlmSizes()
    with TemporaryDirectory() as folder:
        model, processor = _captioner(sizes, Path(folder), device)
        drafter = _drafter(sizes, (model, processor), Path(folder))
    if device.type == "cuda":
        model, drafter = model.to(torch.bfloat16), drafter.to(torch.bfloat16)
    encoded = [encode(processor, [prompt]) for prompt in held_out(sizes.prompts)]
    requests = [inputs_on(inputs, model) for inputs in encoded]
    shared = {
        "model": "world captioner",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "drafter_parameters": sum(parameter.numel() for parameter in drafter.parameters()),
        "dtype": str(model.dtype)[6:],
        "batch": 1,
    }
    for temperature in sizes.temperatures:
        runners = decoding_runners(model, drafter, sizes.new_tokens, sizes.lengths, temperature)
        yield from comparison_rows(runners, requests, BASELINES["vlm"], shared | {"temperature": temperature}, device)


def _captioner(sizes: GpuVlmSizes, folder: Path, device: torch.device) -> tuple[Any, Any]:
    """Train the vision tower, then the language side over it; return (model, processor)."""
    where, workers = str(device), sizes.workers
    reader, _ = pretrain_tower(folder / "tower", sizes.tower_steps, device=where, workers=workers)
    processor = new_processor()
    torch.manual_seed(0)
    model, reader = new_model(processor.tokenizer, sizes.size), reader.cpu()
    model.model.vision_tower.load_state_dict(reader.tower.state_dict())
    start_projector(model, reader)
    plan = TrainingPlan(sizes.steps, sizes.lr, warmup=min(100, sizes.steps // 2))
    mixture = Mixture(batch=sizes.batch, many_batch=min(8, sizes.batch))
    train_captioner(model, processor.tokenizer, folder / "captioner", plan, mixture, device=where, workers=workers)
    return model.eval(), processor


def _drafter(sizes: GpuVlmSizes, target: tuple[Any, Any], folder: Path) -> Any:
    data = DrafterData("answers", SceneRequests, HeldOutRequests(1), sizes.new_tokens, sizes.requests, 0)
    recipe = DrafterRecipe("eagle2", steps=sizes.drafter_steps, batch=sizes.drafter_batch, eval_every=0)
    return train_on_answers("drafter", recipe, target, data, folder)[0].eval()


def decoding_runners(
    model: Any, drafter: Any, new_tokens: int, lengths: Sequence[int], temperature: float
) -> dict[str, Runner]:
    """Return transformers, plain decoding and chains of an EAGLE drafter, ours with and without captured rounds, by
    their names in tables. Captured rounds are recorded once and serve all requests. The temperature is 0 for greedy
    decoding."""
    arguments, rounds = {"max_new_tokens": new_tokens, **sampling_arguments(temperature)}, Rounds()

    def peer(inputs: Any, seed: int) -> Any:
        return run_peer(model, inputs, seed, **arguments)

    def ours(draft: Any = None, **options: object) -> Runner:
        return lambda inputs, seed: run_ours(model, inputs, seed, draft, "exact", **arguments, **options)

    runners = {PEER: peer, PLAIN: ours(), CAPTURED: ours(capture=rounds)}
    for length in lengths:
        chain = drafter.with_shape(Chain(FixedLength(length)))
        runners |= {
            f"EAGLE chain of {length}": ours(chain),
            f"EAGLE chain of {length}, captured": ours(chain, capture=rounds),
        }
    return runners


@dataclass(frozen=True, slots=True)
class GpuImageSizes:
    """The sizes of the text-to-image model."""

    dim: int = 768  # the width of the transformer
    layers: int = 16
    heads: int = 12
    steps: int = 800
    lr: float = 6e-4
    prompts: int = 2
    batches: tuple[int, ...] = (1, 8)
    windows: tuple[int, ...] = (16, 32)  # of decodings
    workers: int = 12  # processes that render pictures


TINY_IMAGE = GpuImageSizes(dim=32, layers=1, heads=2, steps=2, prompts=1, batches=(1,), windows=(16,), workers=0)


def image_rows(device: torch.device, tiny: bool) -> Iterator[dict]:
    """Train the model, then time exact decodings without training beside plain decoding."""
    sizes = TINY_IMAGE if tiny else GpuImageSizes()
    with TemporaryDirectory() as folder:
        pipe = _pipeline(sizes, Path(folder), device)
    transformer, resources = pipe.model.transformer, ImageResources(pipe, "world text to image")
    parameters = sum(parameter.numel() for parameter in transformer.parameters())
    dtype = str(next(transformer.parameters()).dtype)[6:]
    for batch in sizes.batches:
        setting = ImageSetting(
            batch=batch,
            temperature=1.0,
            prompts=sizes.prompts * batch,
            seed=0,
            guidance=pipe.guidance_scale,
            top_k=pipe.top_k,
        )
        runners = {method.key: IMAGES.runner(method, resources, setting) for method in _methods(sizes)}
        shared = {**setting.row(), "model": resources.name, "parameters": parameters, "dtype": dtype}
        yield from comparison_rows(runners, IMAGES.cases(resources, setting), BASELINES["image"], shared, device)


def image_recipe(sizes: GpuImageSizes) -> GptRecipe:
    """Return the zoo's own training recipe at another size."""
    shipped = t2i_recipe(sizes.steps)
    config = replace(shipped.config, dim=sizes.dim, n_layer=sizes.layers, n_head=sizes.heads, multiple_of=256)
    return replace(shipped, name="t2i", config=config, lr=sizes.lr)


def _pipeline(sizes: GpuImageSizes, folder: Path, device: torch.device) -> LlamaGenPipeline:
    """Return the trained model with the zoo's tokenizer and caption encoder."""
    whole = zoo.load("t2i")
    shared, how = whole.model, image_recipe(sizes)
    gpt, _ = train_llamagen(how, shared.vq, shared.captions, folder / "t2i", device=str(device), workers=sizes.workers)
    pipe = LlamaGenPipeline(
        gpt.eval(), shared.vq, shared.captions, guidance_scale=whole.guidance_scale, top_k=whole.top_k
    )
    return pipe.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def _methods(sizes: GpuImageSizes) -> list[ImageMethod]:
    rows = [ImageMethod(PLAIN, PLAIN)]
    for window in sizes.windows:
        for decoding in (
            method for method in methods("image", "decoding") if method.facts.get("judged") and not method.needs
        ):
            title = f"{decoding.title} {window}"
            rows.append(ImageMethod(title, title, decoding=f"{decoding.name}:window={window}"))
    return rows
