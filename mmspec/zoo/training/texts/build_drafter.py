"""Build the zoo's drafters over its VLMs, all of one from the same requests in the same order; resumable, CPU or GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from mmspec.core.files import locked
from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from mmspec.vlm.drafters.mtp.published import write as write_mtp
from mmspec.vlm.drafters.shaped import ShapedDrafter
from mmspec.vlm.training.answers import Answering, answer_all
from mmspec.vlm.training.batches import Batches
from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.recipes import AnyObjective, equal, new_drafter
from mmspec.vlm.training.teacher import Teacher
from mmspec.vlm.training.trainer import TrainSettings, train_drafter

from ...files.cards import write_card
from ..bars import bars, note_of
from .drafter_requests import HeldOut, HeldOutWithDocuments, Pictures, Texts, WithDocuments

PICTURES, TEXTS = 4608, 480
ANSWERED = "procedural world of mmspec.zoo.world, answered by the zoo VLM itself at temperatures 0 and 1"


@dataclass(frozen=True, slots=True)
class Asked:
    """What drafters of a target are trained and measured on.

    answers: folder of its own ones.   new_tokens: of an answer.   pictures, texts: how many requests with and without one.
    """

    answers: str
    requests: Callable[[int], Sequence[Example]]
    held_out: Sequence[Example]
    new_tokens: int = 128
    pictures: int = PICTURES
    texts: int = TEXTS

    @property
    def count(self) -> int:
        """Requests in all."""
        return self.pictures + self.texts


TARGETS = {
    "vlm": Asked("vlm_answers", Pictures, HeldOut()),
    "vlm/hybrid": Asked("vlm_hybrid_answers", WithDocuments, HeldOutWithDocuments(), 144),
}


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """Everything that decides a drafter beside the `equal` recipe of its kind.

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
_WALK = {"markov_head_type": "rnn", "markov_rank": 128}
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
    "vlm/dspark": DrafterRecipe("dspark", {**_BLOCKS, "mask_token_id": 1, "latents": 16, **_WALK}, muon=4.0),
    "vlm/hybrid/dflash": DrafterRecipe(
        "dflash", {**_BLOCKS, "intermediate_size": 112, "mask_token_id": 3}, muon=4.0, target="vlm/hybrid"
    ),
    "vlm/hybrid/mtp": DrafterRecipe("mtp", muon=4.0, target="vlm/hybrid"),
}


def own_answers(model: Any, processor: Any, asked: Asked, work: Path, progress: Progress) -> dict[str, list[int]]:
    """What the target itself answers to every request, greedily and sampled in turn; made once and kept in `work`."""
    bar = progress.add_task("answers", total=asked.count, note="")
    folder, how = work / asked.answers, Answering(batch=48, new_tokens=asked.new_tokens)

    def on_batch(done: int) -> None:
        progress.update(bar, advance=done)

    with locked(folder):
        pictures = answer_all(
            model, processor, asked.requests(asked.pictures), folder / "pictures.jsonl", how, on_batch
        )
        texts = answer_all(model, processor, Texts(asked.texts), folder / "texts.jsonl", how, on_batch)
    progress.update(bar, completed=asked.count)
    return pictures | texts


def build(
    out: Path,
    work: Path,
    target: tuple[Any, Any],
    name: str,
    recipe: DrafterRecipe,
    *,
    resume: bool = True,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train the drafter in `work` on the target's own answers; write fp16 weights and the card to `out`; returns the card."""
    asked = TARGETS[recipe.target]
    target[0].to(device)
    drafter, figures = train_on_own_answers(name, recipe, target, asked, work, resume)
    if recipe.kind == "mtp":
        write_mtp(drafter, target[0], out, torch.float16)
    else:
        drafter.save_pretrained(out, dtype=torch.float16)
    facts = {
        "target": recipe.target,
        "muon": recipe.muon,
        "requests": {"pictures": asked.pictures, "texts": asked.texts},
        "steps": recipe.steps,
        "batch": recipe.batch,
        "training": {key: value for key, value in figures.items() if key != "step"},
    }
    return write_card(out, name, drafter, ANSWERED, **facts)


def train_on_own_answers(
    name: str, recipe: DrafterRecipe, target: tuple[Any, Any], asked: Asked, work: Path, resume: bool = True
) -> tuple[ShapedDrafter, dict[str, float]]:
    """A drafter of (model, processor) where the model lies, and the last figures of its training. Answers, state and log lie
    in `work`; the model is frozen."""
    model, processor = target
    model.eval().requires_grad_(False)
    with bars() as progress:
        answers = own_answers(model, processor, asked, work, progress)
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
    name: str,
    recipe: DrafterRecipe,
    drafter: ShapedDrafter,
    target: tuple[Any, Any],
    asked: Asked,
    answers: Mapping[str, list[int]],
    work: Path,
    resume: bool,
    progress: Progress,
) -> dict[str, float]:
    (model, processor), how = target, equal(drafter)
    texts = () if how.curriculum is None else Texts(asked.texts)
    batches = Batches(asked.requests(asked.pictures), recipe.batch, recipe.steps, texts, how.curriculum)
    precision = "no" if model.device.type == "cpu" else "bf16"  # as `quick` has it
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
