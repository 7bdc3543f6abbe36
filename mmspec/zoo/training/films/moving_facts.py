"""What happens in a moving scene as labels, and how well heads read it: of whole prompts, of the tokens that name an object,
and of the codes of its frames."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ...architectures.auxiliary_heads import WithAuxiliaryHeads
from ...world.moving import DIRECTIONS, LOOKS, SPEEDS, MovingScene
from ...world.pictures import PICTURE_SIDE
from ...world.words import BACKDROPS, COLORS, KINDS, TONES
from ..fact_reading import IGNORE
from ..pictures.picture_facts import POSITIONS

# of a scene: which looks it has, then by color, the last index for nothing of it
HEADS = {"looks": LOOKS, "direction": len(COLORS) * (len(DIRECTIONS) + 1), "speed": len(COLORS) * (len(SPEEDS) + 1),
         "tone": len(TONES), "backdrop": len(BACKDROPS)}  # fmt: skip
# what the word of a kind must know about its object
OWN_HEADS = {"color": len(COLORS), "direction": len(DIRECTIONS), "speed": len(SPEEDS)}


def moving_facts(scenes: list[MovingScene]) -> dict[str, Tensor]:
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


def moving_token_facts(ids: Tensor, scenes: list[MovingScene], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """int64 [B, S] per fact: that of the object a kind's word names, IGNORE at all other tokens."""
    kinds = dict(zip(tokenizer.convert_tokens_to_ids(list(KINDS)), KINDS, strict=True))
    colors = dict(zip(tokenizer.convert_tokens_to_ids(list(COLORS)), COLORS, strict=True))
    found = {name: torch.full_like(ids, IGNORE) for name in OWN_HEADS}
    for row, (line, scene) in enumerate(zip(ids.tolist(), scenes, strict=True)):
        movers = {(mover.kind, mover.color): mover for mover in scene.movers}
        for at, (before, word) in enumerate(zip(line, line[1:], strict=False), 1):
            mover = movers.get((kinds.get(word), colors.get(before)))
            if mover is not None:
                found["color"][row, at] = tuple(COLORS).index(mover.color)
                found["direction"][row, at] = tuple(DIRECTIONS).index(mover.direction)
                found["speed"][row, at] = tuple(SPEEDS).index(mover.speed)
    return found


def moving_fact_loss(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
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


def moving_reading_loss(
    model: WithAuxiliaryHeads, states: Tensor, scenes: list[MovingScene], frames: int, drop: Tensor, step: int
) -> Tensor:
    """How badly the facts of each scene are read from some of its positions, and from the codes of an object which one it
    is; rows without a prompt do not count.   states: as the model gives them.   drop: bool [B]."""
    rows, device = (~drop).nonzero()[:, 0], states.device
    place = torch.randint(states.shape[1], (len(rows), POSITIONS), generator=torch.Generator().manual_seed(step))
    logits = model.read_picture(states[rows.to(device)[:, None], place.to(device)].flatten(0, 1))
    wanted = {name: value[rows].repeat_interleave(POSITIONS, 0) for name, value in moving_facts(scenes).items()}
    whole = moving_fact_loss(logits, {name: value.to(device) for name, value in wanted.items()})[0]
    labels = look_labels(scenes, frames, int((states.shape[1] // frames) ** 0.5))
    labels = labels.masked_fill(drop[:, None], LOOKS)
    row, cell = (labels < LOOKS).nonzero(as_tuple=True)
    seen = model.read_object(states[row.to(device), cell.to(device)])
    return whole + F.cross_entropy(seen, labels[row, cell].to(device))


def look_labels(scenes: list[MovingScene], frames: int, side: int, border: int = 0) -> Tensor:
    """int64 [B, frames * side * side], the look of the object whose square most of a code lies in, LOOKS where there is
    none.   border: codes around the square that count as its own."""
    found, pixels = torch.full((len(scenes), frames, side, side), LOOKS), PICTURE_SIDE // side
    for grids, scene in zip(found, scenes, strict=True):
        for mover in scene.movers:
            for frame, grid in enumerate(grids):
                cols, rows = (
                    (max(round(at / pixels) - border, 0), round((at + mover.pixels) / pixels) + border)
                    for at in mover.at(frame)
                )
                grid[rows[0] : rows[1], cols[0] : cols[1]] = mover.look
    return found.flatten(1)
