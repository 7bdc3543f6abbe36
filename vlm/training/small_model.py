"""Training of a small model on the answers of the target that it drafts for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.length.controls import FixedLength
from mmspec.io.files import write_json_atomic
from mmspec.training.loop import train_steps
from mmspec.training.run_state import RunState
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.draft_model import attention_parts
from mmspec.vlm.drafters.small_model import SmallModel, load_small_model
from mmspec.vlm.training.data import Batches, TrainingData
from mmspec.vlm.training.examples import Example, encode, is_tokenizer, with_answers
from mmspec.vlm.training.job_settings import Job
from mmspec.vlm.training.recipes import Recipe, small_model_recipe
from mmspec.vlm.training.run_setup import OnProgress, drafter_card, run_answers
from mmspec.vlm.training.teacher import forward_inputs
from mmspec.vlm.training.trainer import mean_accept_length

_SAVE_EVERY_S, _LOG_EVERY = 180.0, 20


def initial_small_model(source: Path | None, model: nn.Module) -> nn.Module:
    """Return the small model to train, a folder or zoo:NAME, in float32. Its language model is trained. A vision tower
    and its projector stay as they are."""
    if source is None:
        raise ValueError("start: expected the folder of a small model with the target's tokenizer, got none; name it")
    small = copy.deepcopy(load_small_model(source, model)).float().requires_grad_(False)
    parts, words = attention_parts(small), take_apart(model).vocab_size
    if parts.vocab_size > words:
        raise ValueError(
            f"start: expected at most the target's {words} tokens, got {parts.vocab_size}; start from a model "
            "with the target's tokenizer"
        )
    for part in (parts.decoder, parts.head, parts.embed):
        part.requires_grad_(True)
    return small.eval()


class AnswerLoss:
    """A function from examples to the cross-entropy of their answers, a scalar with gradients. Sequence-level
    distillation ("Sequence-Level Knowledge Distillation", "FastDraft"): the answers are the target's. At most `longest`
    tokens of an answer count, None for all. "bf16" runs the model in autocast, "no" in float32."""

    def __init__(
        self,
        small: nn.Module,
        processor: Any,
        answers: Mapping[str, Sequence[int]],
        longest: int | None,
        precision: str,
    ):
        self.small, self.processor, self.answers, self.longest = small, processor, answers, longest
        self.parts: Parts = attention_parts(small)
        self.half = precision == "bf16"

    def __call__(self, examples: Sequence[Example]) -> tuple[Tensor, dict[str, float]]:
        """Return the loss and the share of tokens that the model predicts as the likeliest, `hit0`."""
        if not self.parts.placeholders and any(example.images for example in examples):
            raise ValueError(
                f"data: expected texts alone for the text model {type(self.small).__name__}, got pictures; "
                "start from a model of the target's class"
            )
        rows = [list(self.answers[example.key])[: self.longest] for example in examples]
        inputs = {name: value.to(self.parts.device) for name, value in encode(self.processor, examples).items()}
        tokenizer = self.processor if is_tokenizer(self.processor) else self.processor.tokenizer
        inputs, answer = with_answers(inputs, rows, tokenizer.pad_token_id or 0)
        count = max(map(len, rows))
        token = inputs["input_ids"][:, -count:].masked_fill(~answer[:, -count:], -100)
        # ids that only the target has are no tokens of the small model
        token = token.masked_fill(token >= self.parts.vocab_size, -100)
        inputs["input_ids"] = inputs["input_ids"].clamp(max=self.parts.vocab_size - 1)
        with torch.autocast(self.parts.device.type, torch.bfloat16, enabled=self.half):
            prepared = forward_inputs(self.small, inputs, count + 1)
            logits = self.small(**prepared, return_dict=True).logits[:, -count - 1 : -1].float()
        loss = F.cross_entropy(logits.flatten(0, 1), token.flatten(), ignore_index=-100)
        right = (logits.argmax(-1) == token)[token >= 0].float().mean()
        return loss, {"hit0": float(right)}


def train_small_model(
    small: nn.Module,
    loss: AnswerLoss,
    model: nn.Module,
    batches: Callable[[int], Sequence[Example]],
    folder: Path,
    recipe: Recipe,
    *,
    steps: int,
    held_out: Sequence[Example] = (),
    eval_every: int = 0,
    eval_tokens: int = 64,
    seed: int = 0,
    resume: bool = True,
    on_step: Callable[[int, dict[str, float]], None] = lambda step, notes: None,
) -> dict[str, float]:
    """Train the parameters of a small model that require gradients in place, resumably; its state and its log are
    written to `folder`. SIGINT or SIGTERM stops after the running step, which is saved. Acceptance is measured on the
    `held_out` examples every `eval_every` steps, 0 for never, with `eval_tokens` tokens a prompt. `on_step` gets the
    step (from 1) and its figures. Return the last logged means."""
    schedule = recipe.schedule(steps)
    optimizer, state = schedule.optimizer(small), RunState(folder, small, _SAVE_EVERY_S)
    first = state.begin(optimizer, resume)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        torch.manual_seed(seed * 1_000_003 + step)
        return loss(batches(step))

    def measure(step: int) -> dict[str, float]:
        if not eval_every or not held_out or (step < steps and step % eval_every):
            return {}
        drafter = SmallModel(copy.deepcopy(small).to(model.dtype), FixedLength(7))
        return {"accept_length": mean_accept_length(drafter, model, loss.processor, held_out, eval_tokens)}

    figures = train_steps(
        small, loss_of, schedule, optimizer, state, first, log_every=_LOG_EVERY, measure=measure, on_step=on_step
    )
    small.requires_grad_(False)
    return figures


def run_small_job(
    job: Job,
    model: nn.Module,
    processor: Any,
    data: TrainingData,
    out: Path,
    parallel: Any,
    target: str,
    licence: str | None,
    resume: bool,
    on_progress: OnProgress,
) -> dict[str, Any]:
    if parallel.num_processes > 1:
        raise ValueError(
            f"kind: expected a single process for a small model, got {parallel.num_processes}; start it without accelerate"
        )
    work, recipe = out / "work", small_model_recipe()
    recipe = replace(recipe, lr=job.lr or recipe.lr, answers=job.answers or recipe.answers)
    small = initial_small_model(job.start, model)
    batches = Batches(data.mixed, job.batch, job.steps)
    answers = run_answers(job, recipe, model, processor, data, batches, work, target, resume, on_progress)
    loss = AnswerLoss(small, processor, answers, job.longest, job.precision)
    figures = train_small_model(
        small,
        loss,
        model,
        lambda step: batches[batches.number(step)],
        work,
        recipe,
        steps=job.steps,
        held_out=data.held_out,
        eval_every=job.eval_every,
        eval_tokens=job.eval_tokens,
        seed=job.seed,
        resume=resume,
        on_step=lambda step, notes: on_progress("training", step, job.steps, notes),
    )
    card = drafter_card(job, recipe, small, batches, figures, target=target, licence=licence, data_licence=data.licence)
    card |= {"states_megabytes": None, "vocabulary_share": 1.0}
    small.to(model.dtype).save_pretrained(out)
    processor.save_pretrained(out)
    write_json_atomic(out / "card.json", card)
    return card
