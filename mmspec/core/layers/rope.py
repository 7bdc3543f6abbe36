"""Rotary embeddings of the types "dynamic" and "longrope": every node of a draft uses the length of its own step,
whereas transformers choose frequencies once per pass, from its largest position, too early for a draft."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_KINDS = ("dynamic", "longrope")


def length_dependent(decoder: nn.Module) -> list[nn.Module]:
    return [module for module in decoder.modules() if turns_with_length(module)]


def turns_with_length(module: nn.Module) -> bool:
    return not _kinds(module).isdisjoint(_KINDS)


def first_switch(modules: Sequence[nn.Module]) -> int:
    """Return the longest sequence, in tokens, over which no frequencies change."""
    return min(_original(module, layer) for module in modules for layer in _layers(module))


class StepRope:
    """The rotary embeddings of a request, computed by copies of the model's length-dependent modules, which thus hold
    no state of it. Exact: a node is rotated as in plain decoding, whichever other nodes share its pass."""

    def __init__(self, modules: Sequence[nn.Module]):
        self.modules = list(modules)
        self.switch = first_switch(self.modules)
        self._copies = [copy.deepcopy(module) for module in self.modules]

    @contextmanager
    def at(self, length: Tensor | int) -> Iterator[None]:
        """Rotate passes of this thread by the longest sequence in plain decoding's pass over each node, int64 [B or 1,
        N] or a number."""
        if isinstance(length, int) and length < self.switch:
            yield  # the model's own modules use their first frequencies here
            return
        thread, positions = threading.get_ident(), []

        def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            if threading.get_ident() != thread:
                return None
            args, kwargs = list(args), dict(kwargs)
            place, key = (args, 1) if len(args) > 1 else (kwargs, "position_ids")
            positions.append(place[key])
            place[key] = torch.zeros_like(place[key])  # this resets the module to its first frequencies
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
                turn = lambda *call, own=own: after(own, *call)  # noqa: E731  binds this module's copy
                hooks.append(module.register_forward_hook(turn, with_kwargs=True))
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _rotate(module: nn.Module, x: Tensor, position: Tensor, length: Tensor | int, layer: str | None) -> object:
    """Rotate `position` int64 [..., N], each at its own length."""
    named = {} if layer is None else {"layer_type": layer}
    if isinstance(length, int):
        length = torch.full((1, 1), length, device=position.device)
    forward, result = type(module).forward, None
    length = _merged_lengths(module, length, layer)
    for tokens in length.unique().tolist():
        forward(module, x, torch.zeros_like(position), **named)  # resets the frequencies
        last = torch.full_like(position[..., :1], tokens - 1)
        output = forward(module, x, torch.cat([position.clamp_max(tokens - 1), last], -1), **named)
        output = _map_parts(lambda part: part[..., :-1, :], output)
        chosen = (length == tokens)[..., None]
        result = output if result is None else _where(chosen, output, result)
    return result


def _merged_lengths(module: nn.Module, length: Tensor, layer: str | None) -> Tensor:
    """Replace all lengths that share their frequencies by the longest of these."""
    original = _original(module, layer)
    if "longrope" in _kinds(module, layer):
        return torch.where(length > original, length.amax(), original)
    return length.clamp_min(original)


def _kinds(module: nn.Module, layer: str | None = None) -> set[str]:
    kind = vars(module).get("rope_type")
    if isinstance(kind, dict):
        return set(kind.values()) if layer is None else {kind[layer]}
    return {kind} if isinstance(kind, str) else set()


def _layers(module: nn.Module) -> list[str | None]:
    """Return [None] if all layers share a type."""
    kind = module.rope_type
    return [layer for layer, name in kind.items() if name in _KINDS] if isinstance(kind, dict) else [None]


def _original(module: nn.Module, layer: str | None) -> int:
    parameters = module.config.rope_parameters
    parameters = parameters[layer] if layer is not None else parameters
    if "longrope" in _kinds(module, layer):
        return int(parameters["original_max_position_embeddings"])
    return int(module.original_max_seq_len)


def _map_parts(change: object, output: object) -> object:
    return change(output) if isinstance(output, Tensor) else type(output)(change(part) for part in output)


def _where(chosen: Tensor, output: object, rest: object) -> object:
    if isinstance(output, Tensor):
        return torch.where(chosen, output, rest)
    return type(output)(torch.where(chosen, a, b) for a, b in zip(output, rest, strict=True))
