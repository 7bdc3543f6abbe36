"""Build the drafters of the zoo's VLMs on answers of the VLM itself, and the SpecDec++ head over its EAGLE drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from mmspec.io.files import locked
from mmspec.training.schedule import Schedule
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from mmspec.vlm.drafters.mtp.published import write_mtp
from mmspec.vlm.training.acceptance_head import train_acceptance
from mmspec.vlm.training.answers import AnswerSettings, generate_target_answers
from mmspec.vlm.training.data import Batches
from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.recipes import AnyObjective, equal_recipe, new_drafter
from mmspec.vlm.training.teacher import Teacher
from mmspec.vlm.training.trainer import TrainSettings, train_drafter
from mmspec.zoo.training.loop import note_of, progress_bars, rounded, write_card
from mmspec.zoo.training.vlm.drafter_requests import (
    DocumentRequests,
    HeldOutDocumentRequests,
    HeldOutRequests,
    SceneRequests,
    TextRequests,
)

IMAGE_REQUESTS, TEXT_REQUESTS = 4608, 480
ANSWER_SOURCE = "procedural world of mmspec.zoo.world, answered by the zoo VLM itself at temperatures 0 and 1"


@dataclass(frozen=True, slots=True)
class DrafterData:
    """What drafters of a target are trained and measured on.

    answers: folder of its own ones.   new_tokens: of an answer.   pictures, texts: how many requests with and without one.
    """

    answers: str
    requests: Callable[[int], Sequence[Example]]
    held_out: Sequence[Example]
    new_tokens: int = 128
    pictures: int = IMAGE_REQUESTS
    texts: int = TEXT_REQUESTS

    @property
    def count(self) -> int:
        """Requests in all."""
        return self.pictures + self.texts


TARGETS = {
    "vlm": DrafterData("vlm_answers", SceneRequests, HeldOutRequests()),
    "vlm/hybrid": DrafterData("vlm_hybrid_answers", DocumentRequests, HeldOutDocumentRequests(), 144),
    "vlm/smol": DrafterData("vlm_smol_answers", SceneRequests, HeldOutRequests(), pictures=2304),
}


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """Everything that decides a drafter beside the `equal_recipe` recipe of its kind.

    kind, sizes: as `new_drafter` takes them, or "mtp".   objective: in place of the recipe's.   muon: as in `Schedule`.
    target: a name in TARGETS.
    """

    kind: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 800
    batch: int = 12
    objective: AnyObjective | None = None
    eval_every: int = 100
    muon: float = 0.0
    target: str = "vlm"


# two layers half as wide inside as the target's: about the weights of one layer of it
_BLOCKS = {"num_hidden_layers": 2, "intermediate_size": 344, "block_size": 12}
_DSPARK_HEAD = {"markov_head_type": "rnn", "markov_rank": 128}
RECIPES: dict[str, DrafterRecipe] = {
    "vlm/eagle": DrafterRecipe("eagle2"),
    "vlm/eagle_text": DrafterRecipe("eagle2_text"),
    "vlm/msd": DrafterRecipe("msd"),
    "vlm/vispec": DrafterRecipe("vispec"),
    # without the residual the head learns about half as fast
    "vlm/flash": DrafterRecipe("flash", {"latents": 16, "block": 5, "residual": True}),
    "vlm/specvlm": DrafterRecipe("specvlm"),
    # 160 tokens are 99.9 per cent of what the target answers
    "vlm/eagle3": DrafterRecipe("eagle3", {"draft_vocab_size": 160}),
    # what opens a text, or a picture, is never said: its row of the embedding stands for tokens to come
    "vlm/dflash": DrafterRecipe("dflash", {**_BLOCKS, "mask_token_id": 1}),
    # the context of a picture in 16 rows instead of 144
    "vlm/dflash_vision": DrafterRecipe("dflash", {**_BLOCKS, "mask_token_id": 1, "latents": 16}, muon=4.0),
    # and rows that know the tokens drafted before them
    "vlm/dspark": DrafterRecipe("dspark", {**_BLOCKS, "mask_token_id": 1, "latents": 16, **_DSPARK_HEAD}, muon=4.0),
    "vlm/hybrid/dflash": DrafterRecipe(
        "dflash", {**_BLOCKS, "intermediate_size": 112, "mask_token_id": 3}, muon=4.0, target="vlm/hybrid"
    ),
    "vlm/hybrid/mtp": DrafterRecipe("mtp", muon=4.0, target="vlm/hybrid"),
    "vlm/smol/msd": DrafterRecipe("msd", target="vlm/smol"),
    "vlm/smol/vispec": DrafterRecipe("vispec", target="vlm/smol"),
    # nobody writes what begins a text file of its training data: that row of the embedding stands for tokens to come
    "vlm/smol/dspark": DrafterRecipe(
        "dspark",
        {
            "num_hidden_layers": 2,
            "intermediate_size": 768,
            "block_size": 8,
            "mask_token_id": 5,
            "latents": 8,
            **_DSPARK_HEAD,
        },
        muon=4.0,
        target="vlm/smol",
    ),
}


def training_answers(
    model: Any, processor: Any, asked: DrafterData, work: Path, progress: Progress
) -> dict[str, list[int]]:
    """What the target itself answers to every request, greedily and sampled in turn; made once and kept in `work`."""
    bar = progress.add_task("answers", total=asked.count, note="")
    folder, how = work / asked.answers, AnswerSettings(batch=48, new_tokens=asked.new_tokens)

    def on_batch(done: int) -> None:
        progress.update(bar, advance=done)

    with locked(folder):
        pictures = generate_target_answers(
            model, processor, asked.requests(asked.pictures), folder / "pictures.jsonl", how, on_batch
        )
        texts = generate_target_answers(
            model, processor, TextRequests(asked.texts), folder / "texts.jsonl", how, on_batch
        )
    progress.update(bar, completed=asked.count)
    return pictures | texts


def build(
    out: Path, work: Path, target: tuple[Any, Any], name: str, recipe: DrafterRecipe, *, resume: bool = True,
    device: str = "cpu",
) -> dict[str, Any]:  # fmt: skip
    """Train the drafter in `work` on the target's own answers; write fp16 weights and the card to `out`; returns the card."""
    asked = TARGETS[recipe.target]
    target[0].to(device)
    drafter, figures = train_on_answers(name, recipe, target, asked, work, resume)
    if recipe.kind == "mtp":
        write_mtp(drafter, target[0], out, torch.float16)
    else:
        drafter.save_pretrained(out, dtype=torch.float16)
    facts = {"target": recipe.target, "muon": recipe.muon,
             "requests": {"pictures": asked.pictures, "texts": asked.texts}, "steps": recipe.steps, "batch": recipe.batch,
             "training": {key: value for key, value in figures.items() if key != "step"}}  # fmt: skip
    return write_card(out, name, drafter, ANSWER_SOURCE, **facts)


def train_on_answers(
    name: str, recipe: DrafterRecipe, target: tuple[Any, Any], asked: DrafterData, work: Path, resume: bool = True
) -> tuple[ShapedDrafter, dict[str, float]]:
    """A drafter of (model, processor) where the model lies, and the last figures of its training. Answers, state and log lie
    in `work`; the model is frozen."""
    model, processor = target
    model.eval().requires_grad_(False)
    with progress_bars() as progress:
        answers = training_answers(model, processor, asked, work, progress)
        torch.manual_seed(0)
        drafter = _untrained(recipe, model)
        if hasattr(drafter, "with_answers"):
            drafter = drafter.with_answers(answers.values())
        return drafter, _train(name, recipe, drafter, target, asked, answers, work, resume, progress)


def _untrained(recipe: DrafterRecipe, model: Any) -> ShapedDrafter:
    if recipe.kind != "mtp":
        return new_drafter(recipe.kind, model, **recipe.sizes)
    parts = take_apart(model)
    return Mtp(MtpConfig(parts.hidden_size, parts.vocab_size, **recipe.sizes), parts).to(parts.device)


def _train(
    name: str, recipe: DrafterRecipe, drafter: ShapedDrafter, target: tuple[Any, Any], asked: DrafterData,
    answers: Mapping[str, list[int]], work: Path, resume: bool, progress: Progress,
) -> dict[str, float]:  # fmt: skip
    (model, processor), how = target, equal_recipe(drafter)
    texts = () if how.curriculum is None else TextRequests(asked.texts)
    batches = Batches(asked.requests(asked.pictures), recipe.batch, recipe.steps, texts, how.curriculum)
    precision = "no" if model.device.type == "cpu" else "bf16"  # as in `autocast`
    teacher = Teacher(model, processor, answers, levels=drafter.levels, precision=precision)
    schedule = replace(how, muon=recipe.muon).schedule(recipe.steps)
    settings = TrainSettings(schedule, recipe.objective or how.objective, precision, eval_every=recipe.eval_every)
    bar = progress.add_task(name, total=recipe.steps, note="")

    def on_step(step: int, notes: dict[str, float]) -> None:
        progress.update(bar, completed=step, note=note_of(notes))

    folder = work / name.replace("/", "_")
    with locked(folder):
        return train_drafter(
            drafter, model, processor, lambda step: teacher(batches[batches.number(step)]), folder, settings,
            held_out=asked.held_out, resume=resume, on_step=on_step,
        )  # fmt: skip


ACCEPTANCE_STEPS, ACCEPTANCE_BATCH = 150, 12
AVERAGED_STEPS = 20  # steps the card's figures are means of


def build_acceptance_head(
    out: Path, work: Path, target: tuple[Any, Any], drafter: ShapedDrafter, *, device: str = "cpu",
    steps: int = ACCEPTANCE_STEPS, batch: int = ACCEPTANCE_BATCH,
) -> dict[str, Any]:  # fmt: skip
    """Train the head on the frozen drafter's own draws; write fp16 weights and the card to `out`; returns the card.

    Answers in `work` are taken up; the training itself takes minutes and is not interrupted.
    """
    (model, processor), asked = target, TARGETS["vlm"]
    model.to(device).eval().requires_grad_(False)
    drafter.to(device)
    with progress_bars() as progress:
        answers = training_answers(model, processor, asked, work, progress)
        teacher = Teacher(model, processor, answers)
        batches = Batches(asked.requests(asked.pictures), batch, steps)
        bar, figures, began = progress.add_task("vlm/specdecpp", total=steps, note=""), [], time.monotonic()

        def on_step(step: int, notes: dict[str, float]) -> None:
            figures.append(notes)
            progress.update(bar, completed=step, note=note_of(notes))

        schedule = Schedule(steps, 1e-3, warmup=10)
        torch.manual_seed(0)
        head = train_acceptance(
            drafter, model, lambda step: teacher(batches[batches.number(step)]), schedule, on_step=on_step
        )
    seconds = round(time.monotonic() - began, 1)
    head.save_pretrained(out, dtype=torch.float16)
    last = figures[-AVERAGED_STEPS:]
    means = {name: sum(one[name] for one in last) / len(last) for name in last[0]}
    facts = {"target": "vlm", "drafter": "vlm/eagle", "steps": steps, "batch": batch,
             "training": {"seconds": seconds, **rounded(means)}}  # fmt: skip
    return write_card(out, "vlm/specdecpp", head, ANSWER_SOURCE, **facts)
