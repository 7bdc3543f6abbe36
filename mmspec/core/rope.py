"""Rotary embeddings that depend on how long the sequence is: every node of a draft gets those of its own step.

transformers' "dynamic" and "longrope" types pick their frequencies once per pass, from the largest position in it. A drafted
pass looks several tokens ahead, so all of its nodes would turn to the longer sequence's frequencies too early.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_KINDS = ("dynamic", "longrope")


def length_dependent(decoder: nn.Module) -> list[nn.Module]:
    """The rotary modules of a decoder whose frequencies depend on the sequence's length."""
    return [module for module in decoder.modules() if turns_with_length(module)]


def turns_with_length(module: nn.Module) -> bool:
    """Whether a module is a rotary embedding whose frequencies depend on the sequence's length."""
    return not _kinds(module).isdisjoint(_KINDS)


def first_switch(modules: Sequence[nn.Module]) -> int:
    """The longest sequence, in tokens, over which none of these modules changes its frequencies."""
    return min(_original(module, layer) for module in modules for layer in _layers(module))


class StepRope:
    """The rotary embeddings of one request, computed by copies of the model's own modules, so that no state of the request
    stays on the model and no earlier request shows in this one.

    Exact: a node is rotated as in plain decoding's pass over it, whichever other nodes share its pass.
    """

    def __init__(self, modules: Sequence[nn.Module]):
        self.modules = list(modules)
        self.switch = first_switch(self.modules)
        self._copies = [copy.deepcopy(module) for module in self.modules]

    @contextmanager
    def at(self, length: Tensor | int) -> Iterator[None]:
        """Passes of this thread inside the block rotate by `length`: int64 [B or 1, N], the tokens of the longest sequence in
        plain decoding's pass over each node; or one number for all."""
        if isinstance(length, int) and length < self.switch:
            yield  # the model's own modules are at their first frequencies, or return to them
            return
        thread, positions = threading.get_ident(), []

        def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            if threading.get_ident() != thread:
                return None
            args, kwargs = list(args), dict(kwargs)
            place, key = (args, 1) if len(args) > 1 else (kwargs, "position_ids")
            positions.append(place[key])
            place[key] = torch.zeros_like(place[key])  # which leaves, or brings, the module to its first frequencies
            return tuple(args), kwargs

        def after(own: nn.Module, module: nn.Module, args: tuple, kwargs: dict, output: object) -> object:
            if threading.get_ident() != thread:
                return None
            layer = kwargs.get("layer_type", args[2] if len(args) > 2 else None)
            x = args[0] if args else kwargs["x"]
            return _rotate(own, x, positions.pop(), length, layer)

        hooks = []
        try:
            for own, module in zip(self._copies, self.modules, strict=True):
                hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
                turn = lambda *call, own=own: after(own, *call)  # noqa: E731  one copy per module
                hooks.append(module.register_forward_hook(turn, with_kwargs=True))
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _rotate(module: nn.Module, x: Tensor, position: Tensor, length: Tensor | int, layer: str | None) -> object:
    """The embeddings of `position` int64 [..., N], each at its own sequence length."""
    named = {} if layer is None else {"layer_type": layer}
    if isinstance(length, int):
        length = torch.full((1, 1), length, device=position.device)
    forward, result = type(module).forward, None
    length = _told_apart(module, length, layer)
    for one in length.unique().tolist():
        forward(module, x, torch.zeros_like(position), **named)  # forgets how far it was turned before
        last = torch.full_like(position[..., :1], one - 1)
        found = forward(module, x, torch.cat([position.clamp_max(one - 1), last], -1), **named)
        found = _each(lambda part: part[..., :-1, :], found)
        chosen = (length == one)[..., None]
        result = found if result is None else _both(chosen, found, result)
    return result


def _told_apart(module: nn.Module, length: Tensor, layer: str | None) -> Tensor:
    """Lengths with those that share their frequencies made one, the longest."""
    original = _original(module, layer)
    if "longrope" in _kinds(module, layer):
        return torch.where(length > original, length.amax(), original)
    return length.clamp_min(original)


def _kinds(module: nn.Module, layer: str | None = None) -> set[str]:
    """The rotary types of a module, or of one of its layer types."""
    kind = vars(module).get("rope_type")
    if isinstance(kind, dict):
        return set(kind.values()) if layer is None else {kind[layer]}
    return {kind} if isinstance(kind, str) else set()


def _layers(module: nn.Module) -> list[str | None]:
    """The layer types of a module whose frequencies depend on the length; [None] where it has one kind for all."""
    kind = module.rope_type
    return [layer for layer, name in kind.items() if name in _KINDS] if isinstance(kind, dict) else [None]


def _original(module: nn.Module, layer: str | None) -> int:
    """The longest sequence that keeps the first frequencies."""
    parameters = module.config.rope_parameters
    parameters = parameters[layer] if layer is not None else parameters
    if "longrope" in _kinds(module, layer):
        return int(parameters["original_max_position_embeddings"])
    return int(module.original_max_seq_len)


def _each(change: object, found: object) -> object:
    return change(found) if isinstance(found, Tensor) else type(found)(change(part) for part in found)


def _both(chosen: Tensor, found: object, rest: object) -> object:
    if isinstance(found, Tensor):
        return torch.where(chosen, found, rest)
    return type(found)(torch.where(chosen, a, b) for a, b in zip(found, rest, strict=True))
