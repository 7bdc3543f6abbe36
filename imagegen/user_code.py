"""Users' code around the modules of image models, which drafted decoding runs as plain decoding does, or refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mmspec.core.layers.fingerprint import modules_of
from mmspec.core.round.code_state import chance, outcome_of
from mmspec.core.round.split_trial import TrialMismatch, compare_splits
from mmspec.core.round.user_code import UserCode, listed, user_code
from mmspec.imagegen.target import ImageTarget, Warp

_TOKENS = 12  # tokens of the trial's pass, at most


def check_code(model: Any, request: Any = None) -> None:
    """Check that drafted decoding runs users' code around a model's modules as plain decoding does, on the resolved
    request of a raster decoding, once per state of the code. Where `request` is None, code is refused untried."""
    pixels = [vars(model).get(name) for name in ("vq", "vae")]
    held = [module for module in modules_of(model) if not any(module is other for other in pixels)]
    inside = {id(part) for module in held for part in module.modules() if part is not module}
    roots = [module for module in held if id(module) not in inside]
    code = [piece for module in roots for piece in user_code(module)]
    if not code:
        return
    advice = f"remove {listed(code)}, or decode with decoding=None"
    target = None if request is None else replace(request, listener=None).target(model)
    if not isinstance(target, ImageTarget):
        raise ValueError(f"decoding: expected modules without code of yours, got {listed(code)}; {advice}")
    _check_outcome(model, request, code, advice)


def _check_outcome(model: Any, request: Any, code: list[UserCode], advice: str) -> None:
    open_target = partial(replace(request, listener=None, warp=Warp(temperature=0.0)).target, model)
    rows, count = model.rows(request.condition), min(_TOKENS, model.geometry.total - 1)
    values = (torch.arange(rows * count, device=model.device) % model.codes).view(rows, count)

    def trial() -> ValueError | None:
        try:
            compare_splits(open_target, values, model.dtype)
        except TrialMismatch as mismatch:
            return ValueError(f"decoding: expected drafted passes to equal single steps, got {mismatch}; {advice}")
        except (MemoryError, torch.OutOfMemoryError):
            raise  # no property of the code
        except Exception as error:  # users' code may raise anything on a pass of several tokens
            reason = f"{type(error).__name__} ({' '.join(str(error).split())[:200]})"
            failure = ValueError(f"decoding: expected passes over several tokens, got {reason}; {advice}")
            failure.__cause__ = error
            return failure
        return None

    def draws() -> bool:
        before = chance()
        open_target().prefill()
        return chance() != before

    guided = request.guidance_scale.paired
    outcome = outcome_of(model, (rows, guided), code, modules_of(model), trial, draws)
    if outcome.sentence is not None:
        raise ValueError(outcome.sentence)
