"""The generation loops transformers has for its image models, greedy, and one in plain words where it has none."""

from __future__ import annotations

import inspect
from functools import partial

import torch
from torch import Tensor

from tests.imagegen.adapters.models import (
    BEGIN,
    BOS,
    CHAMELEON_IDS,
    CODES,
    COLS,
    EMU3_IDS,
    EOS,
    LARGE,
    ROWS,
    SIDE,
    SMALL,
    batch,
    grids,
    tiny,
)


def janus(rows: tuple[Tensor, ...], scale: float) -> Tensor:
    """Codes int64 [B, total]. Its loop needs a scale above 1: one by a hair stands for none."""
    model = tiny("janus")
    prepare = inspect.signature(model._prepare_static_cache).parameters
    if "prefill_chunk_size" in prepare:  # transformers 5.17 leaves the argument out in this loop alone
        model._prepare_static_cache = partial(type(model)._prepare_static_cache, model, prefill_chunk_size=None)
    return model.generate(**batch(rows), generation_mode="image", do_sample=False, guidance_scale=max(scale, 1 + 1e-6))


def emu3(name: str, rows: tuple[Tensor, ...], scale: float, negative: tuple[Tensor, ...] | None) -> Tensor:
    """Token ids int64 [B, total], the forced ones included."""
    given = batch(rows)
    length = given["input_ids"].shape[1]

    def allowed(row: int, ids: Tensor) -> list[int]:
        done = len(ids) - length
        if done >= ROWS * (COLS + 1):
            return [(6, 7, EOS)[done - ROWS * (COLS + 1)]]
        return [5] if done % (COLS + 1) == COLS else list(EMU3_IDS.values())

    guided = {}
    if scale > 1:
        guided = {"guidance_scale": scale}
        if negative is not None:
            others = batch(negative)
            guided["negative_prompt_ids"] = others["input_ids"]
            guided["negative_prompt_attention_mask"] = others["attention_mask"]
    out = tiny(name).generate(
        **given, **guided, prefix_allowed_tokens_fn=allowed, do_sample=False, max_new_tokens=ROWS * (COLS + 1) + 3
    )
    return out[:, length:]


def glm_image(rows: tuple[Tensor, ...]) -> Tensor:
    """Codes int64 [B, total] of both grids; the few tokens of its head that are no codes are held back."""
    given = batch(rows)
    total = SMALL[0] * SMALL[1] + LARGE[0] * LARGE[1]
    out = tiny("glm_image").generate(
        **given,
        **grids(len(rows)),
        do_sample=False,
        max_new_tokens=total,
        eos_token_id=CODES + 1,
        suppress_tokens=list(range(CODES, CODES + 4)),
    )
    return out[:, given["input_ids"].shape[1] :]


@torch.no_grad()
def chameleon(rows: tuple[Tensor, ...], scale: float) -> Tensor:
    """Token ids int64 [B, total] by a full pass over every growing sequence, row by row."""
    model = tiny("chameleon")
    other = torch.ones(model.config.vocab_size, dtype=torch.bool)
    other[list(CHAMELEON_IDS.values())] = False

    def logits(ids: Tensor) -> Tensor:
        return model.lm_head(model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0, -1])

    made = []
    for row in rows:
        drawn = torch.empty(0, dtype=torch.long)
        for _ in range(SIDE * SIDE):
            cond = logits(torch.cat([row, drawn]))
            if scale > 1:
                uncond = logits(torch.cat([torch.tensor([BOS, BEGIN]), drawn]))
                cond = uncond + scale * (cond - uncond)
            drawn = torch.cat([drawn, cond.masked_fill(other, -torch.inf).argmax()[None]])
        made.append(drawn)
    return torch.stack(made)
