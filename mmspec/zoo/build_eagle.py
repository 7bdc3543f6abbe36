"""Build the zoo's EAGLE drafter over the zoo VLM; resumable, CPU or GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.training.feature_loss import FeatureLoss

from .build_vlm import write_card
from .captioner import embed_rows
from .conversations import Row, RowBatch, RowEncoder
from .training import Plan, train
from .world.captions import BRIEF_REQUESTS, REQUESTS, REVERSED_REQUESTS, brief_caption, caption
from .world.many import many_turn
from .world.phrases import choose
from .world.questions import question
from .world.scene import sample_scene

FIRST_SEED = 1 << 25  # far from the tower's and the captioner's scenes


@dataclass(frozen=True, slots=True)
class EagleRecipe:
    """Everything that decides the drafter; the defaults are the shipped `vlm/eagle`."""

    steps: int = 700
    batch: int = 12
    lr: float = 1.2e-3
    inner: int = 688
    seed: int = 0
    loss: FeatureLoss = field(default_factory=FeatureLoss)


def conversation_row(seed: int) -> Row:
    """One conversation about a picture: a caption, then questions, sometimes the other way round; now and then about one of
    several pictures."""
    rng = np.random.default_rng((seed, 9))
    if seed % 16 == 0:
        scenes = tuple(sample_scene(seed + (index << 23)) for index in range(2 + seed // 16 % 2))
        return Row(scenes, (tuple(many_turn(scenes, index) for index in range(3)),))
    scene = sample_scene(seed)
    back = rng.random() < 0.12
    turns = [(choose(rng, REVERSED_REQUESTS if back else REQUESTS, 0.4), caption(scene, seed, reverse=back))]
    asked = [question(scene, index) for index in range(2)]
    others = [(q.prompt, q.answer) for q in asked]
    if rng.random() < 0.3:
        others.append((choose(rng, BRIEF_REQUESTS, 0.4), brief_caption(scene, seed)))
    turns = others + turns if rng.random() < 0.15 else turns + others
    return Row((scene,), (tuple(turns),))


def new_eagle(model: LlavaForConditionalGeneration, recipe: EagleRecipe) -> Eagle:
    """An untrained drafter of the target's width."""
    torch.manual_seed(recipe.seed)
    parts = take_apart(model)
    return Eagle(
        EagleConfig(
            hidden_size=parts.hidden_size,
            intermediate_size=recipe.inner,
            num_attention_heads=parts.hidden_size // 64,
            vocab_size=parts.vocab_size,
        )
    )


@torch.no_grad()
def features(model: LlavaForConditionalGeneration, rows: RowBatch) -> tuple[Tensor, Tensor]:
    """The target's merged input embeddings and last hidden states of right-padded rows, [B, S, H] each."""
    embeds = embed_rows(model, rows)
    hidden = model.model.language_model(
        inputs_embeds=embeds, attention_mask=rows.visible, position_ids=rows.positions, use_cache=False
    ).last_hidden_state
    return embeds, hidden


def build(
    recipe: EagleRecipe,
    target: tuple[LlavaForConditionalGeneration, LlavaProcessor],
    out: Path,
    work: Path,
    resume: bool = True,
    device: str = "cpu",
) -> dict:
    """Train the drafter in `work/vlm_eagle` on the target's own states; write fp16 weights and the card to `out`."""
    model, processor = target
    model.to(device).eval().requires_grad_(False)
    drafter = new_eagle(model, recipe).to(device).train()
    encode = RowEncoder(processor.tokenizer)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        first = FIRST_SEED + step * recipe.batch
        rows = encode([conversation_row(first + index) for index in range(recipe.batch)])
        rows = RowBatch(*(t.to(device) for t in (rows.ids, rows.supervised, rows.positions, rows.visible, rows.pixels)))
        with torch.autocast(device, torch.bfloat16):
            embeds, hidden = features(model, rows)
            return recipe.loss(drafter, model.lm_head, embeds, hidden, rows.supervised)

    plan = Plan(steps=recipe.steps, lr=recipe.lr, warmup=100, weight_decay=0.01)
    figures = train(drafter, loss_of, plan, work / "vlm_eagle", "eagle", resume)
    drafter.eval().save_pretrained(out, dtype=torch.float16)
    card = {
        "name": "vlm/eagle",
        "class": "mmspec.vlm.drafters.eagle.Eagle",
        "target": "vlm",
        "parameters": sum(p.numel() for p in drafter.parameters()),
        "data": "procedural world of mmspec.zoo.world, teacher-forced through the zoo VLM",
        "scene_seeds": [FIRST_SEED, FIRST_SEED + recipe.steps * recipe.batch],
        "steps": recipe.steps,
        "batch": recipe.batch,
        "loss": asdict(recipe.loss),
        "training": {key: round(value, 4) for key, value in figures.items()},
        "command": "mmspec zoo build vlm/eagle",
    }
    write_card(out, card)
    return card
