"""Whether a model's passes over drafts give what its single steps give: asked of the model itself, on a few tokens.

What a class does with masks, positions and cached keys is not told by its name. A class that the suite does not test whole
proves itself: `trial.py` compares a scripted continuation with transformers' own, `reach.py` looks how far back every layer
sees. Strict passes are proven for every class, bit for bit: `bits.py`.

Findings are remembered beside the model, never on it. A proof is about masks and positions, so a proof that passed holds for
the layout of the model: its shapes, precision, device, adapters and attention implementation. A proof that failed is made
again for other weights, and a trial that broke off is no finding.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.core.fingerprint import Fingerprint, fingerprint, layout_of
from mmspec.vlm.architectures import Parts
from mmspec.vlm.proof.bits import same_bits
from mmspec.vlm.proof.differs import Differs
from mmspec.vlm.proof.reach import reaches
from mmspec.vlm.proof.trial import compare, trial_of_text

_DECODE = "decode it with model.generate"
_OUTCOMES: WeakKeyDictionary[nn.Module, dict[object, str | None]] = WeakKeyDictionary()
_FAILED: WeakKeyDictionary[nn.Module, dict[object, Fingerprint]] = WeakKeyDictionary()
_REACHED: WeakKeyDictionary[nn.Module, dict[tuple, int]] = WeakKeyDictionary()


def prove(parts: Parts) -> None:
    """Proves that drafts of text can be verified, once per model, dtype and attention implementation.

    Raises ValueError that names what differed.
    """
    _once(parts, ("text",), lambda: trial_of_text(parts))


def prove_prompt(parts: Parts, inputs: dict) -> None:
    """Proves the same behind a prompt that holds more than text, on that prompt itself; once per kind of prompt.

    inputs: as `prompts.own_inputs` gives them.   Raises ValueError that names what differed.
    """
    named = tuple(sorted(name for name, value in inputs.items() if isinstance(value, Tensor)))
    _once(parts, named, lambda: compare(parts, inputs, "behind this prompt"))


def prove_reach(parts: Parts, total: int) -> None:
    """Proves that every layer sees all of `total` tokens, which no trial on few tokens shows.

    The longest proven total is remembered, and lengths are rounded up, so requests of like length are asked once.
    Raises ValueError where a layer forgets earlier tokens.
    """
    model, layout = parts.model, layout_of(parts.model)
    reached = _REACHED.setdefault(model, {})
    if total <= reached.get(layout, 0):
        return
    rounded = 1 << (total - 1).bit_length()
    longest = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or rounded
    for slots in dict.fromkeys((max(min(rounded, longest), total), total)):
        failure = _failure(parts, lambda slots=slots: reaches(parts, slots - 1))
        if failure is None:
            reached[layout] = slots
            return
    raise failure


def prove_bits(parts: Parts) -> None:
    """Proves that strict passes over drafts give the bits of single ones, once per model, dtype and number of threads.

    Raises ValueError that names what differed.
    """
    _once(parts, ("bits", torch.get_num_threads()), lambda: same_bits(parts), _remedy_for_bits(parts))


def _remedy_for_bits(parts: Parts) -> str:
    """Why bits differ, as far as the attention says it, and what a caller can do about it."""
    if parts.model.config._attn_implementation == "sdpa":
        return "leave strict out"
    reason = "eager attention adds up in an order that depends on how many tokens a pass has"
    if getattr(type(parts.decoder), "_supports_sdpa", False):
        return f"{reason}, so load the model with attn_implementation='sdpa', or leave strict out"
    return f"{reason}, and this class has no sdpa, so leave strict out"


def _once(parts: Parts, key: tuple, check: Callable[[], None], remedy: str = _DECODE) -> None:
    """Runs a check, or repeats what it found. A check that broke off has found nothing and runs again the next time."""
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
    """Runs a check. Returns None, or the error to raise; it has a cause where the check broke off.

    What breaks a check may be the class, which does not know such a pass, or passing trouble. A lack of memory says nothing
    about the class and is raised as it is.
    """
    name, device = type(parts.model).__name__, parts.device
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            check()
    except Differs as found:
        return ValueError(
            f"model: expected drafted passes of {name} to give what its single steps give, got {found}; {remedy}"
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a class raises over a pass that it does not know
        sentence = " ".join(str(error).split())[:200]
        failure = ValueError(
            f"model: expected a {name} that verifies drafts, got {type(error).__name__} on a trial ({sentence}); {remedy}"
        )
        failure.__cause__ = error
        return failure
    return None
