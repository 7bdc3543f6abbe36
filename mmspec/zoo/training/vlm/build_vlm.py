"""Build the zoo's VLMs: a densely pretrained tower, then the language side over the frozen tower; resumable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast

from mmspec.zoo.architectures.llava import PatchReader, TextSize, new_model, new_processor, new_tower, patch_features
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.files.vlm import leave_out_tower, read_vlm, write_vlm
from mmspec.zoo.training.loop import TrainingPlan, ZooRecipe, autocast, load_or_train, prefetched, start_over, train
from mmspec.zoo.training.vlm.conversations import (
    ConversationBatch,
    ConversationEncoder,
    ConversationRow,
    many_row,
    picture_row,
    text_row,
    word_classes,
)
from mmspec.zoo.training.vlm.vision_tower import point_along, pretrain_tower, tower_batch

FIRST_SEED = 1 << 24  # apart from the scenes of the tower


@dataclass(frozen=True, slots=True)
class Mixture:
    """The rows of each step: rows of a picture and a few without, or of several pictures."""

    batch: int = 16
    text_rows: int = 1  # rows without pictures in a step that has any
    text_every: int = 2  # interval of the steps that have such rows
    many_batch: int = 8  # rows of a step with several pictures
    many_every: int = 6  # interval of these steps
    many_from: float = 0.6  # share of the steps after which these begin

    def __post_init__(self) -> None:
        if not 0 <= self.text_rows < self.batch:
            raise ValueError(f"expected 0 <= text_rows < batch, got {self.text_rows} and {self.batch}, change them")

    def rows(self, step: int, steps: int) -> list[ConversationRow]:
        """Return the rows of a step, a pure function of the step."""
        first = FIRST_SEED + step * self.batch
        if step >= self.many_from * steps and step % self.many_every == 0:
            return [many_row(first + index) for index in range(self.many_batch)]
        texts = self.text_rows if step % self.text_every == 0 else 0
        rows = [picture_row(first + index) for index in range(self.batch - texts)]
        return rows + [text_row(first + self.batch - 1 - index) for index in range(texts)]


@torch.no_grad()
def start_projector(model: LlavaForConditionalGeneration, reader: PatchReader, scenes: int = 64) -> None:
    """Initialise the projector's first layer along the tower's reading heads, every property with the same variance.
    Shape has half of the variance of the tower's features, and color a twentieth. From a random projector, the text
    model first learns to find objects by the earlier words of the caption, and ignores places and colors for long."""
    pixels, _ = tower_batch(FIRST_SEED - scenes, scenes)
    hidden = patch_features(reader.tower, pixels).flatten(0, 1)
    point_along(model.model.multi_modal_projector.linear_1, reader.heads, hidden)


def embed_rows(model: LlavaForConditionalGeneration, rows: ConversationBatch) -> Tensor:
    """Return input embeddings [B, S, width] with projected patch features at images. The tower gets no gradient."""
    embeds = model.get_input_embeddings()(rows.ids)
    if rows.pixels is None:
        return embeds
    with torch.no_grad():
        hidden = patch_features(model.model.vision_tower, rows.pixels)
    features = model.model.multi_modal_projector(hidden)  # [P, 144, width]
    place = rows.ids == model.config.image_token_index
    return embeds.masked_scatter(place[..., None], features.to(embeds.dtype).flatten(0, 1))


def answer_logits(model: LlavaForConditionalGeneration, rows: ConversationBatch) -> tuple[Tensor, Tensor]:
    """Return logits float [T, V] at every supervised token of the rows, and these tokens int64 [T]."""
    hidden = model.model.language_model(
        inputs_embeds=embed_rows(model, rows), attention_mask=rows.visible, position_ids=rows.positions, use_cache=False
    ).last_hidden_state
    wanted = rows.supervised[:, 1:]
    # the head runs on every token, since a new matrix shape in each step would fill oneDNN's cache
    return model.lm_head(hidden)[:, :-1][wanted].float(), rows.ids[:, 1:][wanted]


def train_captioner(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    plan: TrainingPlan,
    mixture: Mixture = Mixture(),
    resume: bool = True,
    device: str = "cpu",
    workers: int = 0,
) -> dict[str, float]:
    """Train projector and text model in place on answers only, with a frozen tower."""
    model.to(device).train()
    model.model.vision_tower.requires_grad_(False).eval()
    encode = ConversationEncoder(tokenizer)
    named = {name: ids.to(device) for name, ids in word_classes(tokenizer).items()}
    rows_of = prefetched(lambda step: encode(mixture.rows(step, plan.steps)), plan.steps, workers)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        rows = _to(rows_of(step), device)
        with autocast(device):
            logits, target = answer_logits(model, rows)
        loss = F.cross_entropy(logits, target)
        return loss, _reading_notes(logits.detach(), target, named)

    return train(model, loss_of, plan, folder, "captioner", resume)


def _reading_notes(logits: Tensor, target: Tensor, named: dict[str, Tensor]) -> dict[str, float]:
    """Return the mean top-1 probability, and by word class the accuracy among the words of the class."""
    notes = {"top1": float(logits.softmax(-1).amax(-1).mean())}
    for name, ids in named.items():
        here = torch.isin(target, ids)
        right = (ids[logits[here][:, ids].argmax(-1)] == target[here]).float()
        notes[name] = float(right.mean()) if len(right) else 1.0
    return notes


def _to(rows: ConversationBatch, device: str) -> ConversationBatch:
    pixels = None if rows.pixels is None else rows.pixels.to(device)
    parts = (rows.ids, rows.supervised, rows.positions, rows.visible)
    return ConversationBatch(*(part.to(device) for part in parts), pixels)


@dataclass(frozen=True, slots=True)
class VlmRecipe(ZooRecipe):
    weight_decay, data = 0.05, "procedural world of mmspec.zoo.world, rendered and captioned from seeds"
    name: str = "vlm"
    size: TextSize = TextSize()
    tower_steps: int = 3160
    steps: int = 1240
    lr: float = 1.5e-3
    seed: int = 0

    def seeds(self) -> dict[str, Any]:
        return {
            "tower_seeds": [0, self.tower_steps * 32],
            "caption_seeds": [FIRST_SEED, FIRST_SEED + self.steps * Mixture().batch],
        }


def small_recipe() -> VlmRecipe:
    """The assistant model `vlm/small`: same tower and tokenizer, two narrow text layers."""
    return VlmRecipe(name="vlm/small", size=TextSize(layers=2, width=128, inner=352), steps=700, lr=2e-3)


def build(
    out: Path,
    work: Path,
    recipe: VlmRecipe = VlmRecipe(),
    *,
    resume: bool = True,
    device: str = "cpu",
    measure: Callable[[LlavaForConditionalGeneration, LlavaProcessor], dict[str, float]] | None = None,
) -> dict[str, Any]:
    """Train a VLM, and write fp16 weights and the processor with a card, measured as read back. All recipes share the
    tower in `work/tower`."""
    folder = work / recipe.folder
    if not resume:
        start_over(folder)
    tower = work / "tower"
    reader, tower_accuracy = load_or_train(
        tower,
        resume,
        lambda: PatchReader(new_tower()),
        lambda: pretrain_tower(tower, recipe.tower_steps, resume=resume, device=device),
    )
    processor = new_processor()
    torch.manual_seed(recipe.seed)
    model = new_model(processor.tokenizer, recipe.size)
    model.model.vision_tower.load_state_dict(reader.tower.state_dict())
    start_projector(model, reader)
    figures = train_captioner(model, processor.tokenizer, folder, recipe.plan(), Mixture(), resume, device)
    write_vlm(model, processor, out)
    lean = recipe.name != "vlm" and leave_out_tower(out, folder_of("vlm"))
    facts = {"tower_steps": recipe.tower_steps, "tower_patch_accuracy": tower_accuracy}
    card = recipe.card(out, model, figures, {}, **facts)
    if measure is not None:
        evaluation = measure(*read_vlm(out, folder_of("vlm") if lean else None))
        card = recipe.card(out, model, figures, {"evaluation": evaluation}, **facts)
    return card
