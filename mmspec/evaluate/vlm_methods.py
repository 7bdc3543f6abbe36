"""The methods `mmspec bench vlm` compares, as data, and how one request of each is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.stats import Stats
from mmspec.evaluate.bench import Run
from mmspec.evaluate.shelf import Shelf

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the bench.

    key: what --methods takes.   title: what tables print.   engine: whose loop decodes.   drafter: a name in
    shelf.DRAFTERS.   rule: of mmspec rows.   options: for transformers' generate; a callable is given the shelf.
    at: which temperatures it is run at ("greedy": 0, "sampled": above 0).
    """

    key: str
    title: str
    engine: Literal["transformers", "mmspec"] = "mmspec"
    drafter: str = "none"
    rule: str = "exact"
    options: Mapping[str, object] = field(default_factory=dict)
    at: tuple[str, ...] = ("greedy", "sampled")

    def serves(self, temperature: float) -> bool:
        """Whether the row exists at this temperature."""
        return ("sampled" if temperature > 0 else "greedy") in self.at


PEER, PLAIN = "hf", "plain"
_GREEDY, _SAMPLED = ("greedy",), ("sampled",)

METHODS = (
    Method(PEER, "transformers", "transformers"),
    Method("hf-lookup", "transformers prompt lookup", "transformers", options={"prompt_lookup_num_tokens": 10}),
    Method(
        "hf-assisted",
        "transformers assisted",
        "transformers",
        options={"assistant_model": lambda shelf: shelf.zoo_part("vlm/small")[0]},
    ),
    Method(PLAIN, "mmspec plain"),
    Method("eagle", "EAGLE dynamic tree", drafter="eagle-dynamic"),
    Method("eagle-static", "EAGLE static tree", drafter="eagle-static", at=_GREEDY),
    Method("eagle-chain", "EAGLE chain", drafter="eagle-chain", at=_GREEDY),
    Method("eagle-traversal", "EAGLE sampled tree, traversal", drafter="eagle-static", rule="traversal", at=_SAMPLED),
    Method("eagle-recursive", "EAGLE sampled tree, recursive", drafter="eagle-static", rule="recursive", at=_SAMPLED),
    Method("eagle-match", "EAGLE sampled tree, target-match", drafter="eagle-static", rule="match", at=_SAMPLED),
    Method("eagle-block", "EAGLE sampled chain, block", drafter="eagle-chain", rule="block", at=_SAMPLED),
    Method("lookup", "prompt lookup", drafter="lookup"),
    Method("recycling", "Token Recycling", drafter="recycling"),
    Method("small", "small model chain", drafter="small"),
)


def chosen(keys: tuple[str, ...] | None) -> tuple[Method, ...]:
    """The methods of these keys (None for all), always with the two that ratios are taken against."""
    known = [method.key for method in METHODS]
    for key in keys or ():
        if key not in known:
            raise ValueError(f"--methods: expected some of {', '.join(known)}, got {key!r}, pick from these")
    wanted = {*(keys or known), PEER, PLAIN}
    return tuple(method for method in METHODS if method.key in wanted)


def sampling(temperature: float) -> dict:
    """Arguments of `generate` for plain greedy decoding, or for the model's own law at this temperature."""
    if temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def end_tokens(model: nn.Module) -> list[int]:
    """Ids that end a text of this model."""
    ends = model.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [ends]


def without_end(model: nn.Module) -> dict:
    """Arguments of `generate` that keep a model from ending its text.

    Merely not stopping at the end-of-text token would go on behind it, where no training has been. The processor this
    installs looks at no prefix, so it costs every method one call a pass.
    """
    ends = end_tokens(model)
    return {"eos_token_id": None, **({"suppress_tokens": ends} if ends else {})}


def make_runner(method: Method, shelf: Shelf, **generation: object) -> Callable[[Inputs, int], Run]:
    """A function of (inputs, seed) that decodes once, timed. What it needs is loaded now.

    generation: arguments of `generate` shared by all methods.
    """
    if method.engine == "transformers":
        options = {name: value(shelf) if callable(value) else value for name, value in method.options.items()}
        return lambda inputs, seed: run_peer(shelf.model, inputs, seed, **generation, **options)
    drafter = shelf.drafter(method.drafter)
    return lambda inputs, seed: run_ours(shelf.model, inputs, seed, drafter, method.rule, **generation)


def run_ours(model: nn.Module, inputs: Inputs, seed: int, drafter: object, rule: str, **generation: object) -> Run:
    """One timed request through the engine."""
    began = perf_counter()
    out = mmspec.generate(model, drafter=drafter, rule=rule, seed=seed, return_dict=True, **inputs, **generation)
    seconds = perf_counter() - began
    if out.errors:
        raise ValueError("; ".join(out.errors.values()))
    stats = out.stats
    ids = _generated(out.sequences, inputs, stats.emitted)
    return Run(seconds, ids, stats.target_passes, stats.accept_length, parts_of(stats, seconds), stats.exact)


def parts_of(stats: Stats, seconds: float) -> dict[str, float]:
    """Seconds of a call by part; `other` is all that the engine did not attribute."""
    parts = {name: getattr(stats, f"{name}_s") for name in ("prefill", "draft", "target", "verify")}
    return {**parts, "other": max(seconds - sum(parts.values()), 0.0)}


def run_peer(model: nn.Module, inputs: Inputs, seed: int = 0, **generation: object) -> Run:
    """One timed request through transformers' own `generate`."""
    torch.manual_seed(seed)
    with torch.no_grad(), counted(model) as passes:
        began = perf_counter()
        sequences = model.generate(**inputs, **generation)
        seconds = perf_counter() - began
    ids = _generated(sequences, inputs)
    return Run(seconds, ids, passes[0], len(ids[0]) / passes[0])


@contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    """Counts forward passes of the model inside the block."""
    passes = [0]

    def count(*_: object) -> None:
        passes[0] += 1

    hook = model.register_forward_pre_hook(count)
    try:
        yield passes
    finally:
        hook.remove()


def _generated(sequences: Tensor, inputs: Inputs, lengths: list[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Generated ids per row, cut to `lengths` where given."""
    rows = sequences[:, inputs["input_ids"].shape[1] :].tolist()
    return tuple(tuple(row if lengths is None else row[: lengths[i]]) for i, row in enumerate(rows))
