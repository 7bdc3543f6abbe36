"""Facts of a video scene as labels, losses of the heads that read them, and the training of the prompt encoder on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5EncoderModel

from mmspec.zoo.architectures.caption_encoder import FactReader, new_encoder
from mmspec.zoo.training.image.facts import POSITIONS
from mmspec.zoo.training.objectives import (
    IGNORED_LABEL,
    PROMPT_SEED,
    Lesson,
    LossAndFigures,
    WithAuxiliaryHeads,
    token_loss,
    train_reader,
)
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE
from mmspec.zoo.world.scene import BACKDROPS, COLORS, KINDS, TONES
from mmspec.zoo.world.video import DIRECTIONS, LOOKS, SPEEDS, VideoScene, sample_video_scene
from mmspec.zoo.world.video_prompts import LONGEST, video_prompt, video_prompt_tokenizer

# of a scene: which looks it has, then by color, the last index for nothing of it
HEADS = {"looks": LOOKS, "direction": len(COLORS) * (len(DIRECTIONS) + 1), "speed": len(COLORS) * (len(SPEEDS) + 1),
         "tone": len(TONES), "backdrop": len(BACKDROPS)}  # fmt: skip
# what the word of a kind must know about its object
OWN_HEADS = {"color": len(COLORS), "direction": len(DIRECTIONS), "speed": len(SPEEDS)}


def video_facts(scenes: list[VideoScene]) -> dict[str, Tensor]:
    """What each scene holds: "looks" float [B, LOOKS]; direction and speed int64 [B, 8] by color; tone, backdrop int64 [B]."""
    count = len(scenes)
    found = {"looks": torch.zeros(count, LOOKS), "direction": torch.full((count, len(COLORS)), len(DIRECTIONS)),
             "speed": torch.full((count, len(COLORS)), len(SPEEDS))}  # fmt: skip
    for row, scene in enumerate(scenes):
        for mover in scene.movers:
            color = tuple(COLORS).index(mover.color)
            found["looks"][row, mover.look] = 1
            found["direction"][row, color] = tuple(DIRECTIONS).index(mover.direction)
            found["speed"][row, color] = tuple(SPEEDS).index(mover.speed)
    found["tone"] = torch.tensor([tuple(TONES).index(scene.background.tone) for scene in scenes])
    found["backdrop"] = torch.tensor([BACKDROPS.index(scene.background.texture) for scene in scenes])
    return found


def video_token_facts(ids: Tensor, scenes: list[VideoScene], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """int64 [B, S] per fact: that of the object a kind's word names, IGNORED_LABEL at all other tokens."""
    kinds = dict(zip(tokenizer.convert_tokens_to_ids(list(KINDS)), KINDS, strict=True))
    colors = dict(zip(tokenizer.convert_tokens_to_ids(list(COLORS)), COLORS, strict=True))
    found = {name: torch.full_like(ids, IGNORED_LABEL) for name in OWN_HEADS}
    for row, (line, scene) in enumerate(zip(ids.tolist(), scenes, strict=True)):
        movers = {(mover.kind, mover.color): mover for mover in scene.movers}
        for at, (before, word) in enumerate(zip(line, line[1:], strict=False), 1):
            mover = movers.get((kinds.get(word), colors.get(before)))
            if mover is not None:
                found["color"][row, at] = tuple(COLORS).index(mover.color)
                found["direction"][row, at] = tuple(DIRECTIONS).index(mover.direction)
                found["speed"][row, at] = tuple(SPEEDS).index(mover.speed)
    return found


def video_fact_loss(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Sum of the heads' cross-entropies; how often all looks of a scene are read right, and all directions."""
    loss = F.binary_cross_entropy_with_logits(logits["looks"], wanted["looks"]) * LOOKS
    for name in ("direction", "speed"):
        target = wanted[name]
        loss = loss + F.cross_entropy(logits[name].view(*target.shape, -1).flatten(0, 1), target.flatten())
    for name in ("tone", "backdrop"):
        loss = loss + 0.3 * F.cross_entropy(logits[name], wanted[name])
    looks = ((logits["looks"] > 0) == (wanted["looks"] > 0)).all(-1)
    direction = logits["direction"].view(*wanted["direction"].shape, -1).argmax(-1) == wanted["direction"]
    return loss, {"looks": float(looks.float().mean()), "direction": float(direction.all(-1).float().mean())}


def video_reading_loss(
    model: WithAuxiliaryHeads, states: Tensor, scenes: list[VideoScene], frames: int, drop: Tensor, step: int
) -> Tensor:
    """How badly the facts of each scene are read from some of its positions, and from the codes of an object which one it
    is; rows without a prompt do not count.   states: as the model gives them.   drop: bool [B]."""
    rows, device = (~drop).nonzero()[:, 0], states.device
    place = torch.randint(states.shape[1], (len(rows), POSITIONS), generator=torch.Generator().manual_seed(step))
    logits = model.read_picture(states[rows.to(device)[:, None], place.to(device)].flatten(0, 1))
    wanted = {name: value[rows].repeat_interleave(POSITIONS, 0) for name, value in video_facts(scenes).items()}
    whole = video_fact_loss(logits, {name: value.to(device) for name, value in wanted.items()})[0]
    labels = look_labels(scenes, frames, int((states.shape[1] // frames) ** 0.5))
    labels = labels.masked_fill(drop[:, None], LOOKS)
    row, cell = (labels < LOOKS).nonzero(as_tuple=True)
    seen = model.read_object(states[row.to(device), cell.to(device)])
    return whole + F.cross_entropy(seen, labels[row, cell].to(device))


def look_labels(scenes: list[VideoScene], frames: int, side: int, border: int = 0) -> Tensor:
    """int64 [B, frames * side * side], the look of the object whose square most of a code lies in, LOOKS where there is
    none.   border: codes around the square that count as its own."""
    found, pixels = torch.full((len(scenes), frames, side, side), LOOKS), IMAGE_SCENE_SIDE // side
    for grids, scene in zip(found, scenes, strict=True):
        for mover in scene.movers:
            for frame, grid in enumerate(grids):
                cols, rows = (
                    (max(round(at / pixels) - border, 0), round((at + mover.pixels) / pixels) + border)
                    for at in mover.at(frame)
                )
                grid[rows[0] : rows[1], cols[0] : cols[1]] = mover.look
    return found.flatten(1)


def train_video_prompt_encoder(
    folder: Path, dim: int, frames: int, steps: int = 3000, batch: int = 64, resume: bool = True
) -> FactReader:
    """dim: of the transformer that will read the captions.   frames: of whose bounces they tell."""
    tokenizer = video_prompt_tokenizer()
    reader = FactReader(new_encoder(tokenizer), dim, HEADS, OWN_HEADS)
    return train_reader(reader, tokenizer, LONGEST, _lesson(frames, batch), folder, steps, resume)


def train_video_prompt_projection(
    encoder: T5EncoderModel, folder: Path, dim: int, frames: int, steps: int = 400, batch: int = 64, resume: bool = True
) -> FactReader:
    """`train_video_prompt_encoder` for a frozen encoder: only the projection to a transformer of another width is trained."""
    reader = FactReader(encoder.requires_grad_(False), dim, HEADS, OWN_HEADS)
    return train_reader(reader, video_prompt_tokenizer(), LONGEST, _lesson(frames, batch), folder, steps, resume)


def _lesson(frames: int, batch: int) -> Callable[[int], Lesson]:
    tokenizer = video_prompt_tokenizer()

    def lesson(step: int) -> Lesson:
        scenes = [sample_video_scene(PROMPT_SEED + step * batch + i) for i in range(batch)]

        def judge(ids: Tensor, whole: dict[str, Tensor], own: dict[str, Tensor]) -> LossAndFigures:
            loss, notes = video_fact_loss(whole, video_facts(scenes))
            return loss + token_loss(own, video_token_facts(ids, scenes, tokenizer)), notes

        return [video_prompt(scene, step, frames) for scene in scenes], judge

    return lesson
