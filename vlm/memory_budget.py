"""The memory of a drafted request by its shapes, and the largest draft that a budget allows, as SpecMemo sizes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any
from warnings import warn

import torch

from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree, nodes_of
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.architectures import Parts
from mmspec.vlm.memory_needs import UNITS, MemoryNeeds, in_units, needs_of
from mmspec.vlm.target import TextTarget

_MOST = 256  # drafted tokens of the longest chain that a report tries
_ROOM, _SPARE = 512, 64  # slots that a target allocates for new tokens, and for the nodes of drafts


@dataclass(frozen=True, slots=True)
class RequestShape:
    prompt: int  # tokens of a prompt, pictures included
    new: int  # tokens to generate
    rows: int = 1  # of the batch
    greedy: bool = True
    pictures: int = 0  # picture tokens of a prompt


@dataclass(frozen=True, slots=True)
class RequestMemory:
    """The bytes of a request at the peak of its rounds, beyond the weights."""

    cache: int  # keys, values and states of all slots
    copied: int  # old keys while the slots double, 0 where they never do
    prompt: int  # embeddings and states that drafters read, and the features of pictures
    mask: int  # of a round
    forward: int  # activations of a layer in a round
    scores: int  # rows of vocabulary size: scores, distributions and residuals
    drafter: int  # slots and tables

    @property
    def total(self) -> int:
        """The peak: activations, scores and copied keys are not alive at the same time."""
        return self.cache + self.prompt + self.drafter + max(self.mask + self.forward, self.scores, self.copied)


def request_memory(
    parts: Parts, needs: MemoryNeeds, shape: Shape | None, request: RequestShape, drafter: Any = None
) -> RequestMemory:
    """Return the memory of a request from shapes alone; the target may lack weights. A `shape` None is plain decoding,
    and `drafter` None a drafter without slots to count."""
    if needs.per_token is None:
        raise ValueError(
            f"model: expected a class whose cache can be measured without weights, got "
            f"{type(parts.model).__name__}; compare peaks with mmspec bench vlm"
        )
    config, width = parts.decoder.config, parts.hidden_size
    size = needs.weights // needs.parameters
    nodes = 1 if shape is None else nodes_of(shape)
    used = request.prompt + request.new + nodes
    first = request.prompt + min(request.new, _ROOM) + _SPARE
    slots = first if used <= first else max(2 * first, used)  # the pool doubles when it is full
    inner = getattr(config, "intermediate_size", None) or 4 * width
    heads, groups = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    repeated = 2 * used * (parts.hidden_size if heads and groups and heads != groups else 0)  # keys and values per head
    vision = getattr(getattr(parts.model.config, "vision_config", None), "hidden_size", 0)
    rows = request.rows
    return RequestMemory(
        cache=rows * needs.of_request(slots),
        copied=rows * needs.per_token * first // 2 if slots > first else 0,
        prompt=rows * size * (2 * request.prompt * width + request.pictures * (width + vision)),
        mask=rows * size * nodes * used,
        forward=rows * size * (nodes * (3 * width + 3 * inner) + repeated),
        scores=rows * 4 * parts.vocab_size * _score_rows(shape, nodes, request.greedy),
        drafter=0 if drafter is None or shape is None else _drafter_bytes(drafter, shape, request, slots, size),
    )


def _score_rows(shape: Shape | None, nodes: int, greedy: bool) -> int:
    """Return the rows of vocabulary size that are alive at once."""
    if greedy:
        return nodes
    if shape is None or isinstance(shape, DynamicTree) or shape.drawn == "deterministic":
        return 2 * nodes + 5
    if isinstance(shape, Chain):
        return 7 * nodes - 5
    return 2 * nodes + 6 * len(set(shape.parents[1:]))


def _drafter_bytes(drafter: Any, shape: Shape, request: RequestShape, slots: int, size: int) -> int:
    """Count keys, values and the rotary table."""
    layer = getattr(getattr(drafter, "layer", None), "config", None)
    if layer is None:
        if getattr(drafter, "parts", None) is not None:
            raise ValueError(
                "drafter: expected a trained drafter or none, got a model of its own, whose memory adds to the "
                "target's; check that model too"
            )
        return 0
    layers, depth = getattr(drafter.config, "num_hidden_layers", 1), shape.longest
    pooled = request.rows * layers * layer.groups * (slots + depth + _SPARE)
    table = 2 * (request.prompt + depth + 1) + _ROOM
    return 2 * size * layer.dim * (pooled + table)


def shape_within(
    parts: Parts,
    needs: MemoryNeeds,
    shape: Shape | None,
    request: RequestShape,
    budget: int,
    drafter: Any = None,
    held: int = 0,
) -> Shape | None:
    """Return the largest prefix of a draft that a budget of bytes allows, all weights and the `held` bytes of other
    requests' graph slots included; None for plain decoding."""
    own = held + (0 if drafter is None else sum(weight.nbytes for weight in drafter.parameters()))

    def least(candidate: Shape | None) -> int:
        return needs.weights + own + request_memory(parts, needs, candidate, request, drafter).total

    if least(None) > budget:
        weights = "the weights" + (f", {in_units(held)} of captured rounds" if held else "")
        raise ValueError(
            f"memory: expected at least {in_units(least(None))} for {weights} and {request.rows} x "
            f"{request.prompt + request.new:,} tokens, got {in_units(budget)}; use fewer tokens or rows, or a "
            "smaller dtype"
        )
    if shape is None or least(shape) <= budget:
        return shape
    low, high = 0, nodes_of(shape) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if least(cut_to(shape, middle)) <= budget else (low, middle)
    return cut_to(shape, low) if low else None


def drafter_within(target: TextTarget, drafter: Any, budget: int, held: int = 0) -> Any:
    """Return a drafter whose drafts fit a budget of bytes before the prefill, with a warning if they are cut; None
    where only plain decoding fits. See `shape_within`."""
    if target.stopping.most is None:
        raise ValueError("memory: expected max_new_tokens beside it, got a request without a limit; set it")
    if drafter is not None and not hasattr(drafter, "shape_for"):
        raise ValueError(
            f"memory: expected a trained drafter or none, got {type(drafter).__name__}, whose drafts have no "
            "shape to cut; leave memory out"
        )
    seen = torch.isin(target.prompt, target.prompt.new_tensor(target.parts.placeholders)).sum(1).max()
    rows, prompt = target.batch, target.length
    request = RequestShape(prompt, target.stopping.most, rows, target.greedy, int(seen))
    shape = None if drafter is None else drafter.shape_for(target.greedy, target.device)
    fitted = shape_within(target.parts, needs_of(target.parts), shape, request, budget, drafter, held)
    if fitted is shape:
        return drafter
    left = "no draft beside plain decoding" if fitted is None else f"drafts of {nodes_of(fitted) - 1} tokens"
    warn(
        f"memory: {in_units(budget)} holds {left} in this request, not {nodes_of(shape) - 1} tokens; the draft is cut",
        RuntimeWarning,
        stacklevel=2,
    )
    return None if fitted is None else drafter.with_shape(fitted)


def cut_to(shape: Shape, drafted: int) -> Shape:
    """Return the part of a shape that drafts at most so many values, at least 1."""
    if isinstance(shape, DynamicTree):
        width = min(shape.width, drafted)
        depth = min(shape.depth, drafted // width)
        candidates = width + (depth - 1) * width**2
        return replace(shape, nodes=min(shape.nodes, drafted, candidates), width=width, depth=depth)
    if isinstance(shape, StaticTree):
        return replace(shape, parents=shape.parents[: drafted + 1])
    return shape if shape.longest <= drafted else replace(shape, length=FixedLength(drafted))


def bytes_of(text: str, option: str = "memory") -> int:
    """Return the bytes of a text such as "8GB" or "500 mb"; errors name the `option`."""
    units = {unit.lower(): 1000**power for power, unit in enumerate(UNITS)}
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]+)", text.strip().lower())
    count = float(match[1]) * units.get(match[2], 0) if match else 0
    if not count:
        raise ValueError(f"{option}: expected a size such as 8GB or 500MB, got {text!r}; correct it")
    return int(count)


def budget_sentence(parts: Parts, needs: MemoryNeeds, tokens: int, budget: int) -> str:
    """Say the longest chains that a budget of bytes allows beside a row of so many tokens, half of them generated."""
    longest, wanted = [], Chain(FixedLength(_MOST))
    for greedy in (True, False):
        request = RequestShape(tokens - tokens // 2, tokens // 2, greedy=greedy)
        fitted = shape_within(parts, needs, wanted, request, budget)
        longest.append("none" if fitted is None else f"{fitted.longest}{' or more' if fitted is wanted else ''}")
    return (
        f"{in_units(budget)} holds the weights, a row of {tokens:,} tokens, and drafts of {longest[0]} tokens in greedy "
        f"requests and {longest[1]} in sampled requests."
    )
