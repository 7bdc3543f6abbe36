"""Rotary embeddings that depend on the sequence length: every node of a draft uses the length of its own step.

The "dynamic" and "longrope" types of transformers choose their frequencies once per pass, from the largest position in
it. A drafted pass looks several tokens ahead, so all of its nodes would switch to the longer frequencies too early.
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
    """Return the rotary modules of a decoder whose frequencies depend on the sequence length."""
    return [module for module in decoder.modules() if turns_with_length(module)]


def turns_with_length(module: nn.Module) -> bool:
    """Return whether a module is a rotary embedding whose frequencies depend on the sequence length."""
    return not _kinds(module).isdisjoint(_KINDS)


def first_switch(modules: Sequence[nn.Module]) -> int:
    """Return the longest sequence, in tokens, over which none of these modules changes its frequencies."""
    return min(_original(module, layer) for module in modules for layer in _layers(module))


class StepRope:
    """The rotary embeddings of a request, computed by copies of the model's modules.

    Thus no state of a request stays on the model. Exact: a node is rotated as in plain decoding, whichever other nodes
    share its pass.

    Args:
        modules: The length-dependent rotary modules of the model.
    """

    def __init__(self, modules: Sequence[nn.Module]):
        self.modules = list(modules)
        self.switch = first_switch(self.modules)
        self._copies = [copy.deepcopy(module) for module in self.modules]

    @contextmanager
    def at(self, length: Tensor | int) -> Iterator[None]:
        """Rotate passes of this thread by `length`.

        Args:
            length: int64 [B or 1, N], the tokens of the longest sequence in plain decoding's pass over each node; or a
                number for all nodes.
        """
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
    """Return the embeddings of `position` int64 [..., N], each at its own sequence length."""
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
    """Return the lengths, where all that share their frequencies are replaced by the longest of these."""
    original = _original(module, layer)
    if "longrope" in _kinds(module, layer):
        return torch.where(length > original, length.amax(), original)
    return length.clamp_min(original)


def _kinds(module: nn.Module, layer: str | None = None) -> set[str]:
    """Return the rotary types of a module, or of a single layer type."""
    kind = vars(module).get("rope_type")
    if isinstance(kind, dict):
        return set(kind.values()) if layer is None else {kind[layer]}
    return {kind} if isinstance(kind, str) else set()


def _layers(module: nn.Module) -> list[str | None]:
    """Return the layer types of a module whose frequencies depend on the length; [None] if all layers share a type."""
    kind = module.rope_type
    return [layer for layer, name in kind.items() if name in _KINDS] if isinstance(kind, dict) else [None]


def _original(module: nn.Module, layer: str | None) -> int:
    """Return the longest sequence that keeps the first frequencies."""
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
