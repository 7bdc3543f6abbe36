"""Admission of models and requests: trials of models that the test suite does not check, and their stored outcomes.

The name of a class does not show how it uses masks, positions and cached keys. `proof/trial.py` compares a scripted
continuation with transformers' own, and `proof/receptive_field.py` measures how far back every layer sees. Strict
passes are compared bit for bit for every class: `proof/bit_equality.py`. Outcomes are stored beside the model. A passed
trial is valid for the model's shapes, precision, device, adapters and attention. A failed trial is repeated for other
weights, and a trial that an error interrupted has no outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from warnings import warn
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.fingerprint import Fingerprint, fingerprint, layout_of
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.code_state import outcome_of
from mmspec.core.round.split_trial import TrialMismatch
from mmspec.core.round.user_code import listed, user_code
from mmspec.io.validation import boolean, number, whole
from mmspec.vlm.architectures import Parts, parts_of
from mmspec.vlm.proof.bit_equality import same_bits
from mmspec.vlm.proof.receptive_field import check_receptive_field
from mmspec.vlm.proof.trial import (
    compare_with_generate,
    drafted,
    draws_numbers,
    single_steps,
    step_trial,
    text_trial,
    width_trial,
)
from mmspec.vlm.target import TextTarget

_TEXT = {"input_ids", "inputs", "attention_mask", "position_ids"}
_COUNTS = ("max_new_tokens", "min_new_tokens", "max_length", "min_length", "num_beams", "num_return_sequences", "top_k")
_NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty",
            "encoder_repetition_penalty", "length_penalty", "guidance_scale", "max_time")  # fmt: skip
_TOKENS = ("eos_token_id", "pad_token_id", "bos_token_id")
_SWITCHES = ("do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "return_dict_in_generate",
             "output_scores", "output_logits", "output_attentions", "output_hidden_states")  # fmt: skip


def check_numbers(settings: Mapping[str, object]) -> None:
    """Check the numbers and switches of a `generate` call or config, whose types transformers does not check."""
    for name in _COUNTS:
        if settings.get(name) is not None:
            whole(name, settings[name])
    for name in _SWITCHES:
        if settings.get(name) is not None:
            boolean(name, settings[name])
    for name, value in settings.items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{name}: expected a number, got nan; change it or leave it out")
    for name in _NUMBERS:
        if settings.get(name) is not None:
            number(name, settings[name], infinite=True)
    for name in _TOKENS:
        tokens = settings.get(name)
        tokens = tokens.tolist() if isinstance(tokens, Tensor | np.ndarray) else tokens
        for token in tokens if isinstance(tokens, list | tuple) else [tokens]:
            if tokens is not None:
                whole(name, token)


def check_tensors(inputs: Mapping[str, object]) -> None:
    """Check the types and shapes of a prompt, on which transformers would fail somewhere inside."""
    for name in ("inputs", "input_ids", "attention_mask", "pixel_values"):
        value = inputs.get(name)
        is_tensor, is_ids = isinstance(value, Tensor), name in ("inputs", "input_ids")
        if is_ids and is_tensor:
            is_sound = name == "inputs" and value.is_floating_point() and value.dim() > 1
            fits = is_sound or (value.dim() == 2 and value.dtype in (torch.int64, torch.int32))
        else:
            fits = value is None or is_tensor or (name == "pixel_values" and isinstance(value, list))
        if fits:
            continue
        wanted = "int64 [B, L]" if is_ids else "a tensor"
        got = f"{value.dtype} {list(value.shape)}" if is_tensor else type(value).__name__
        raise ValueError(f"{name}: expected {wanted}, got {got}; call the processor with return_tensors='pt'")
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    is_whole = inputs.get(CACHE) is None and inputs.get("inputs_embeds") is None
    if ids is not None and mask is not None and is_whole and mask.dim() == 2 and mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask: expected {list(ids.shape)} as input_ids, got {list(mask.shape)}; pass the mask "
            "of this prompt"
        )
    for name in ("logits_processor", "stopping_criteria"):
        if not isinstance(inputs.get(name), list | None):
            raise ValueError(f"{name}: expected a list, got {inputs[name]!r:.60}; write {name}=[...]")


def take_apart(model: nn.Module) -> Parts:
    """Return the parts of a model without wrappers that can verify drafts. A class that the test suite does not check
    is tried first, once per model: its passes over drafts must equal its single steps."""
    parts = parts_of(model)
    if not parts.trusted and not parts.code:  # with users' code, a request without drafts may need no trial of drafts
        prove_model(parts)
    return parts


def admit(target: TextTarget, drafts: bool = True) -> None:
    """Check that a request fits into its model and that its passes, with several positions if `drafts`, equal plain
    steps."""
    parts, prompt, most = target.parts, target.length, target.most
    name = type(parts.model).__name__
    _check_length(parts, prompt, target.model_kwargs.get("attention_mask"), most)
    _check_widths(parts, prompt, most)
    if target.rope is not None:
        _check_switch(parts, target.rope.switch, prompt, most)
    if target.strict and not parts.code:
        prove_bits(parts)
    known = target.model_kwargs if target.inputs is None else target.inputs
    beyond = [key for key, value in known.items() if isinstance(value, Tensor) and key not in _TEXT]
    if parts.code:
        target.recordable = prove_code(target, target.inputs if beyond else None, drafts)
    if parts.trusted:
        return
    if most is None:
        raise ValueError(f"max_new_tokens: expected a limit, got none; {name} must be tested at the whole length first")
    if beyond and target.inputs is None:
        raise ValueError(
            f"model: expected {name} to be called through its generate, got a direct call with "
            f"{', '.join(beyond)}; it must be tested on this prompt first"
        )
    if beyond:
        prove_prompt(parts, target.inputs)
    prove_receptive_field(parts, prompt + most)


def _check_length(parts: Parts, prompt: int, mask: Tensor | None, most: int | None) -> None:
    """Refuse a request beyond a learned position table, and warn of a prompt beyond computed positions. `mask` is int
    [B, P] with 0 at padding; `most` None is no limit."""
    room, has_table = parts.most_positions, parts.learned_positions is not None
    if room is None:
        return
    longest = prompt if mask is None or mask.dim() != 2 else int(mask.sum(-1).max())
    if longest > room:
        sentence = f"input_ids: expected a prompt of at most {room} tokens, the positions of this model, got {longest}"
        if has_table:
            raise ValueError(f"{sentence}; shorten it")
        warn(f"{sentence}; decoding continues beyond the length that the model was trained for", stacklevel=2)
    elif has_table and (most is None or longest + most > room + 1):
        raise ValueError(
            f"max_new_tokens: expected at most {room + 1 - longest} after a prompt of {longest} tokens, as the "
            f"model has {room} positions, got {'no limit' if most is None else most}; lower it"
        )


def _check_widths(parts: Parts, prompt: int, most: int | None) -> None:
    """Refuse a request that exceeds the windows of a foreign class, or the length at which positions scale queries."""
    limits = [] if parts.own else [(layer.width, layer.field) for layer in parts.plan.narrow]
    if parts.plan.temperature is not None:
        limits.append((parts.plan.temperature, "floor_scale"))
    for tokens, field in limits:
        if most is None or prompt + most > tokens:
            lengths = "no limit" if most is None else f"{prompt} and {most}"
            raise ValueError(
                f"max_new_tokens: expected prompt and answer to fit the {field} of {tokens} tokens of "
                f"{type(parts.model).__name__}, got {lengths}; shorten them or decode with model.generate"
            )


def _check_switch(parts: Parts, switch: int, prompt: int, most: int | None) -> None:
    """Refuse a request that crosses the length at which the class reads all tokens again with other frequencies."""
    crosses = prompt <= switch and (most is None or prompt + most - 1 > switch)
    if crosses and _reads_again(parts, switch):
        raise ValueError(
            f"max_new_tokens: expected prompt and answer on one side of {switch} tokens, got {prompt} and {most}; "
            f"{type(parts.model).__name__} reads everything again there, so shorten them or decode with model.generate"
        )


def _reads_again(parts: Parts, length: int) -> bool:
    """Return whether the class drops its cache for the pass after `length` tokens."""
    model, cache = parts.model, SlotCache(parts.plan, 1)
    cache.lengths = [length]
    ids = torch.zeros(1, length + 1, dtype=torch.long, device=parts.device)
    settings = dict(attention_mask=torch.ones_like(ids), next_sequence_length=1, use_cache=True)
    return model.prepare_inputs_for_generation(ids, **settings, **{CACHE: cache}).get(CACHE) is not cache


_DECODE = "decode it with model.generate"
_OUTCOMES: WeakKeyDictionary[nn.Module, dict[object, str | None]] = WeakKeyDictionary()
_FAILED: WeakKeyDictionary[nn.Module, dict[object, Fingerprint]] = WeakKeyDictionary()
_REACHED: WeakKeyDictionary[nn.Module, dict[tuple, int]] = WeakKeyDictionary()


def prove_model(parts: Parts) -> None:
    """Test that the model can verify drafts of text, once per model, dtype and attention implementation."""
    _proven_once(parts, ("text",), lambda: text_trial(parts))


def prove_prompt(parts: Parts, inputs: dict) -> None:
    """Test the same on a prompt with more than text, a result of `prompt_inputs`, once per kind of prompt."""
    named = tuple(sorted(name for name, value in inputs.items() if isinstance(value, Tensor)))
    beyond = ", ".join(name for name in named if name not in _TEXT) or "text"
    where = f"behind this prompt with {beyond}"
    _proven_once(parts, named, lambda: compare_with_generate(parts, inputs, where), f"leave {beyond} out, or {_DECODE}")


def prove_code(target: TextTarget, inputs: dict | None, drafts: bool) -> bool:
    """Test that a request runs users' code around modules with the results of `transformers.generate`, until the code
    or its state changes. Without drafts, code with its own state sees the passes of `transformers.generate`, so it runs
    untested. `inputs` is a prompt of `prompt_inputs` with more than text. Return whether graphs may record the code:
    replaced modules without state, whose settings fingerprints compare."""
    parts, model = target.parts, target.parts.model
    remedy = "decode with drafter=None" if drafts else _DECODE
    drafts = drafts or target.turn is not None  # a turn reads its text in passes of several positions
    code = user_code(model, parts.decoder, parts.head, parts.embed)
    checks = [text_trial, width_trial] if drafts else [step_trial]
    if inputs is not None:
        run = drafted if drafts else single_steps
        checks.append(lambda parts: compare_with_generate(parts, inputs, "behind this prompt", run))
    if target.strict and drafts:
        checks.append(same_bits)

    def trial() -> ValueError | None:
        return _failure(parts, lambda: [check(parts) for check in checks], f"remove {listed(code)}, or {remedy}")

    def draws() -> bool:
        return draws_numbers(parts)

    named = sorted(name for name, value in (inputs or {}).items() if isinstance(value, Tensor))
    outcome = outcome_of(model, (drafts, target.strict, remedy, *named), code, (model,), trial, draws)
    if outcome.sentence is not None and (drafts or outcome.stateless):
        raise ValueError(outcome.sentence)
    return outcome.stateless and all(piece.kind == "module" for piece in code)


def prove_receptive_field(parts: Parts, total: int) -> None:
    """Test that every layer sees all of `total` tokens, which a trial on few tokens does not show. Lengths are rounded
    up and the longest tested total is stored, so requests of similar length are tested once."""
    model, layout = parts.model, layout_of(parts.model)
    reached = _REACHED.setdefault(model, {})
    if total <= reached.get(layout, 0):
        return
    rounded = 1 << (total - 1).bit_length()
    longest = parts.most_positions or rounded
    for slots in dict.fromkeys((max(min(rounded, longest), total), total)):
        failure = _failure(parts, lambda slots=slots: check_receptive_field(parts, slots - 1))
        if failure is None:
            reached[layout] = slots
            return
    raise failure


def prove_bits(parts: Parts) -> None:
    """Test that strict passes over drafts have the bits of single-token passes, once per model, dtype and thread count."""
    _proven_once(parts, ("bits", torch.get_num_threads()), lambda: same_bits(parts), _remedy_for_bits(parts))


def _remedy_for_bits(parts: Parts) -> str:
    if parts.model.config._attn_implementation == "sdpa":
        return "leave strict out"
    reason = "eager attention adds up in an order that depends on how many tokens a pass has"
    if getattr(type(parts.decoder), "_supports_sdpa", False):
        return f"{reason}, so load the model with attn_implementation='sdpa', or leave strict out"
    return f"{reason}, and this class has no sdpa, so leave strict out"


def _proven_once(parts: Parts, key: tuple, check: Callable[[], None], remedy: str = _DECODE) -> None:
    """Run a check once and raise its stored outcome later; a check that an error interrupted runs again next time."""
    model = parts.model
    key = (*key, layout_of(model))
    known, failed = _OUTCOMES.setdefault(model, {}), _FAILED.setdefault(model, {})
    if known.get(key) is not None and not fingerprint(model).same(failed.get(key)):
        del known[key]  # other weights may pass
    if key not in known:
        failure = _failure(parts, check, remedy)
        if failure is not None and failure.__cause__ is not None:
            raise failure
        known[key] = None if failure is None else str(failure)
        failed[key] = fingerprint(model)
    if known[key] is not None:
        raise ValueError(known[key])


def _failure(parts: Parts, check: Callable[[], None], remedy: str = _DECODE) -> ValueError | None:
    """Run a check and return its error, or None. A lack of memory is no property of the class and is raised directly.
    Other errors, which may be temporary, are the cause of the returned error."""
    name, device = type(parts.model).__name__, parts.device
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            check()
    except TrialMismatch as mismatch:
        return ValueError(
            f"model: expected drafted passes of {name} to equal its single steps, got {mismatch}; {remedy}"
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a class may raise anything in a pass that it does not support
        sentence = " ".join(str(error).split())[:200]
        failure = ValueError(
            f"model: expected a {name} that verifies drafts, got {type(error).__name__} on a trial ({sentence}); {remedy}"
        )
        failure.__cause__ = error
        return failure
    return None
