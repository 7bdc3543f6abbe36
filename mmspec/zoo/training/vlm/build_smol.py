"""Build the projector of `vlm/smol` over the frozen vision tower and a frozen SmolLM2; resumable."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import CLIPVisionModel

from mmspec.training.run_state import STATE
from mmspec.zoo.architectures.llava import patch_features
from mmspec.zoo.architectures.smol import IMAGE_ROWS, PICTURE, SYSTEM, ProjectorSize, WindowProjector, picture_id
from mmspec.zoo.files.sized import save_sized
from mmspec.zoo.files.vlm import read_captioner, read_tower
from mmspec.zoo.training.loop import ZooRecipe, rounded, write_card
from mmspec.zoo.training.vlm.conversations import ChatFormat, ConversationEncoder, ConversationRow, word_classes
from mmspec.zoo.training.vlm.projector import answer_states, head_loss, reading_heads, start_from_words, window_words
from mmspec.zoo.training.vlm.vision_tower import patch_labels
from mmspec.zoo.world.captions import Turn, brief_turn, full_turn, reversed_turn
from mmspec.zoo.world.pixels import to_pixels
from mmspec.zoo.world.questions import question
from mmspec.zoo.world.render import render_array
from mmspec.zoo.world.scene import DIGITS, sample_scene

FIRST_SEED = 3 << 24  # apart from the scenes of the tower and the other captioners
_OPENING = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
SMOL_CHAT = ChatFormat(
    opening=_OPENING,
    pictured=_OPENING,
    picture=PICTURE * IMAGE_ROWS + "\n",
    unpictured="",
    later="\n<|im_start|>user\n",
    reply="<|im_end|>\n<|im_start|>assistant\n",
    answer="",
    end="<|im_end|>",
)


@dataclass(frozen=True, slots=True)
class SmolRecipe(ZooRecipe):
    name, warmup, weight_decay, log_every = "vlm/smol", 30, 0.01, 10
    data = "procedural world of mmspec.zoo.world, rendered and captioned from seeds"
    steps: int = 1000
    batch: int = 4
    lr: float = 2e-4
    brief: float = 0.3  # share of the steps whose rows have short answers only
    named: float = 3.0  # weight of the words for colors and kinds, which depend on the picture
    start_scenes: int = 1500  # of the closed-form initialisation
    seed: int = 0
    dtype: str = "bfloat16"  # of the language model in training; the projector stays in float32

    def __post_init__(self) -> None:
        self.plan()
        if not 0 <= self.brief <= 1 or self.batch < 1 or self.named <= 0:
            raise ValueError(
                f"recipe: expected brief in 0..1, a batch of at least 1 and named above 0, got {self}; change it"
            )


def smol_row(seed: int, is_brief: bool) -> ConversationRow:
    """Return a picture with its branches: a list of objects and questions, and a caption unless answers are brief."""
    rng = np.random.default_rng((seed, 12))
    scene = sample_scene(seed)

    def questions(first: int) -> tuple[Turn, ...]:
        return tuple(question(scene, first + index).turn for index in range(3))

    brief = brief_turn(rng, scene, seed)
    if is_brief:
        return ConversationRow((scene,), ((brief,), questions(0)))
    full = reversed_turn(rng, scene, seed, 0.4) if rng.random() < 0.1 else full_turn(rng, scene, seed)
    style = rng.random()
    if style < 0.4:
        return ConversationRow((scene,), ((full,), (brief,)))
    if style < 0.7:
        return ConversationRow((scene,), ((full, *questions(0)[:1]), questions(3)))
    return ConversationRow((scene,), ((brief, full), questions(0)))


@torch.no_grad()
def new_projector(tower: CLIPVisionModel, language: Any, tokenizer: Any, recipe: SmolRecipe) -> WindowProjector:
    """Return a projector initialised from the embeddings of words; see `start_from_words`."""
    torch.manual_seed(recipe.seed)
    table = language.get_input_embeddings().weight.detach().float()
    projector = WindowProjector(ProjectorSize(tower.config.hidden_size, table.shape[1]))
    scenes = [sample_scene(FIRST_SEED - 1 - index) for index in range(recipe.start_scenes)]
    pixels = [
        to_pixels(np.stack([render_array(scene) for scene in scenes[i : i + 50]])) for i in range(0, len(scenes), 50)
    ]
    features = torch.cat([patch_features(tower, part) for part in pixels])
    known: dict[str, Tensor] = {}

    def embedding(words: str) -> Tensor:
        if words not in known:
            ids = tokenizer(f" {words}", add_special_tokens=False)["input_ids"]
            known[words] = table[ids[-1:] if words in DIGITS else ids].mean(0)
        return known[words]

    targets = [[torch.cat([embedding(word) for word in cell]) for cell in window_words(scene)] for scene in scenes]
    labelled = [patch_labels(scene) for scene in scenes]
    labels = {
        name: torch.from_numpy(np.concatenate([scene_labels[name] for scene_labels in labelled]))
        for name in labelled[0]
    }
    heads = reading_heads(features.flatten(0, 1), labels)
    start_from_words(projector, heads, features, torch.stack([torch.stack(rows) for rows in targets]))
    return projector


def train_projector(
    projector: WindowProjector,
    tower: CLIPVisionModel,
    language: Any,
    tokenizer: Any,
    folder: Path,
    recipe: SmolRecipe,
    resume: bool = True,
) -> dict[str, float]:
    """Train the projector in place on answers only; tower and language model are frozen. Return the loss, and the
    shares of all tokens, colors, shapes and digits that are the most probable token."""
    language.eval().requires_grad_(False)
    tower.eval().requires_grad_(False)
    picture, encode = picture_id(tokenizer), ConversationEncoder(tokenizer, SMOL_CHAT, multiple=32)
    classes = word_classes(tokenizer)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        first, is_brief = FIRST_SEED + step * recipe.batch, step < recipe.brief * recipe.steps
        rows = encode([smol_row(first + index, is_brief) for index in range(recipe.batch)])
        states, targets = answer_states(projector, tower, language, rows, picture)
        is_named = torch.isin(targets, torch.cat(list(classes.values())))
        weights = torch.where(is_named, recipe.named, 1.0)
        loss, best = head_loss(states, language.lm_head.weight, targets, weights)
        right = (best == targets).float()
        notes = {"right": float(right.mean())}
        for name, ids in classes.items():
            here = torch.isin(targets, ids)
            if here.any():
                notes[name] = float(right[here].mean())
        return loss, notes

    return recipe.train(projector, loss_of, folder, resume)


def build(
    out: Path,
    work: Path,
    language: tuple[Any, Any],
    tower_folder: Path,
    recipe: SmolRecipe = SmolRecipe(),
    *,
    resume: bool = True,
    measure: Callable[..., dict[str, float]] | None = None,
) -> dict[str, Any]:
    """Train the projector and write it with its card; the text model does not change."""
    (model, tokenizer), tower, folder = language, read_tower(tower_folder), work / recipe.folder
    reader = deepcopy(model).to(getattr(torch, recipe.dtype))
    if resume and (folder / STATE).exists():
        projector = WindowProjector(ProjectorSize(tower.config.hidden_size, model.config.hidden_size))
    else:
        projector = new_projector(tower, model, tokenizer, recipe)
    figures = train_projector(projector, tower, reader, tokenizer, folder, recipe, resume)
    save_sized(projector, projector.size, out)
    facts = {
        "recipe": asdict(recipe),
        "training": rounded(figures),
        "language": "SmolLM2-135M-Instruct, frozen",
        "caption_seeds": [FIRST_SEED, FIRST_SEED + recipe.steps * recipe.batch],
    }
    card = write_card(out, recipe.name, projector, recipe.data, **facts)
    if measure is not None:
        evaluation = measure(*read_captioner(out, tower_folder, language))
        card = write_card(out, recipe.name, projector, recipe.data, **facts, evaluation=evaluation)
    return card
