"""Checks of a request before anything is computed: counts, switches, rows and the length of the prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from warnings import warn

from torch import Tensor, nn

from mmspec.io.validation import boolean, whole
from mmspec.vlm.architectures import Parts

_COUNTS = ("max_new_tokens", "min_new_tokens", "max_length", "min_length", "num_beams", "num_return_sequences", "top_k")
_SWITCHES = ("do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "return_dict_in_generate",
             "output_scores", "output_logits", "output_attentions", "output_hidden_states")  # fmt: skip


def check_numbers(settings: Mapping[str, object]) -> None:
    """Raises ValueError for a count that is no whole number, a switch that is no truth value, and for NaN; transformers takes
    them without a word.

    settings: arguments of `generate`, or the fields of a generation config.
    """
    for name in _COUNTS:
        if settings.get(name) is not None:
            whole(name, settings[name])
    for name in _SWITCHES:
        if settings.get(name) is not None:
            boolean(name, settings[name])
    for name, value in settings.items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{name}: expected a number, got nan; change it or leave it out")


def check_rows(input_ids: Tensor) -> None:
    """Raises ValueError for a batch without rows."""
    if input_ids.shape[0] == 0:
        raise ValueError("input_ids: expected at least one row, got a batch of none; send a prompt")


def learned_positions(parts: Parts) -> int | None:
    """How many positions a model has whose positions are rows of a learned table; None where they are computed.

    Some tables (OPT's) begin with a few rows that stand for no position.
    """
    most = _most_positions(parts)
    if most is None:
        return None
    tables = (
        one for one in parts.decoder.modules() if isinstance(one, nn.Embedding) and one.weight is not parts.embed.weight
    )
    return most if any(most <= table.num_embeddings < most + 16 for table in tables) else None


def check_length(parts: Parts, input_ids: Tensor, mask: Tensor | None, most: int | None) -> None:
    """Raises ValueError for a request that a learned table of positions has no room for; warns, once for each place in the
    caller's code, of a prompt longer than a model with computed positions was made for, which goes on as in transformers.

    mask: int [B, P], 0 at padding, or None.   most: tokens a row may generate, None without a limit.
    """
    longest = input_ids.shape[1] if mask is None or mask.dim() != 2 else int(mask.sum(-1).max())
    room = _most_positions(parts)
    if room is None:
        return
    if longest > room:
        sentence = f"input_ids: expected a prompt of at most {room} tokens, the positions of this model, got {longest}"
        if learned_positions(parts) is not None:
            raise ValueError(f"{sentence}; shorten it")
        warn(f"{sentence}; it goes on beyond what the model was made for", stacklevel=2)
    elif learned_positions(parts) is not None and (most is None or longest + most > room + 1):
        raise ValueError(f"max_new_tokens: expected at most {room + 1 - longest} behind a prompt of {longest} tokens, as the "
                         f"model has {room} positions, got {'no limit' if most is None else most}; lower it")  # fmt: skip


def _most_positions(parts: Parts) -> int | None:
    most = getattr(parts.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None
