"""Fingerprints that detect when a model's function changes, by the memory, version counter and sampled values of
weights, and by settings such as active adapters. They miss single values written through `.data`, the state of a
forward hook, and weights on the meta device, which are loaded for each pass. Objects are reused for a model until then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.core.layers.rope import turns_with_length
from mmspec.core.round.snapshot import fields
from mmspec.core.round.user_code import user_code_on

_SAMPLES = 8  # values read of each tensor
_DEPTH = 3  # levels of nesting of settings in lists and dicts
_SCALARS = frozenset((str, int, float, bool, torch.dtype, torch.device))
_ORDINARY = (Tensor, nn.Parameter, nn.Buffer)
# attributes of every module, and those of transformers: long sharding plans, and marks that passes leave
_BOOKKEEPING = frozenset(vars(nn.Module())) - {"training"} | {
    "_tp_plan",
    "_pp_plan",
    "_ep_plan",
    "_output_capturing_hooks_installed",
    "_previous_max_cache_length",
}
# the attributes that determine the output of an adapter layer, in PEFT and elsewhere
_ADAPTERS = ("active_adapter", "_active_adapter", "active_adapters", "_active_adapters", "disable_adapters",
             "_disable_adapters", "merged", "merged_adapters", "training")  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Fingerprint:
    """The function that modules compute, as far as it can be compared cheaply."""

    layout: tuple  # of `layout_of`
    settings: tuple  # such as an adapter's scale
    addresses: tuple[int, ...]  # of each tensor
    versions: tuple[int, ...]  # raised by every write except through `.data`
    samples: tuple[Tensor, ...]  # a few values of each tensor as raw bytes, by device and dtype

    @property
    def places(self) -> tuple:
        return self.layout, self.settings, self.addresses

    def same(self, other: Fingerprint | None) -> bool:
        """Read the devices once."""
        if other is None or self.versions != other.versions or self.places != other.places:
            return False
        return all(torch.equal(mine, theirs) for mine, theirs in zip(self.samples, other.samples, strict=True))


def fingerprint(*roots: nn.Module) -> Fingerprint:
    modules, tensors = _contents(roots)
    versions = tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)
    return Fingerprint(*_places(roots, modules, tensors), versions, _samples(tensors))


def places_of(*roots: nn.Module) -> tuple:
    """Return the parts on which a recorded graph depends. It reads no values."""
    return _places(roots, *_contents(roots))


def _places(roots: tuple[nn.Module, ...], modules: list[nn.Module], tensors: list[Tensor]) -> tuple:
    settings = tuple(_settings(module) for module in modules)
    addresses = tuple(tensor.data_ptr() if tensor.layout is torch.strided else 0 for tensor in tensors)
    return _layout(roots, modules, tensors), settings, addresses


def tensors_of(*roots: nn.Module) -> list[Tensor]:
    return _contents(roots)[1]


def layout_of(*roots: nn.Module) -> tuple:
    """Return a hashable layout that stays the same when only the values of weights change."""
    return _layout(roots, *_contents(roots))


def modules_of(holder: object) -> tuple[nn.Module, ...]:
    """Return the modules that a drafter or a model computes with: itself, or those that it and its inner drafter hold."""
    if isinstance(holder, nn.Module):
        return (holder,)
    own = tuple(part for part in fields(holder).values() if isinstance(part, nn.Module))
    inner = getattr(holder, "drafter", None)
    return own if inner is None or isinstance(inner, nn.Module) else own + modules_of(inner)


def _layout(roots: tuple[nn.Module, ...], modules: list[nn.Module], tensors: list[Tensor]) -> tuple:
    shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
    adapters = tuple(
        tuple(_constant(value) for name in _ADAPTERS if (value := vars(module).get(name)) is not None)
        for module in modules
    )
    return tuple(map(type, modules)), shapes, adapters, tuple(_attention(root) for root in roots)


def _contents(roots: tuple[nn.Module, ...]) -> tuple[list[nn.Module], list[Tensor]]:
    modules = list(_modules(roots))
    return modules, [tensor for module in modules for tensor in _tensors(module)]


def _modules(roots: tuple[nn.Module, ...]) -> Iterator[nn.Module]:
    """Yield the modules in a fixed order, each once. `nn.Module.modules` also builds names and takes longer."""
    known, waiting = set(), list(roots)
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in known:
            known.add(id(module))
            yield module
            waiting.extend(module._modules.values())


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """The tensors of a module, without rotary frequencies that passes change with the length."""
    named = module._parameters if turns_with_length(module) else module._parameters | module._buffers
    for tensor in named.values():
        if tensor is not None:
            yield from _parts(tensor)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that hold a tensor's values: those inside a wrapper, such as a shard of a group."""
    if type(tensor) not in _ORDINARY and hasattr(tensor, "__tensor_flatten__"):
        inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for part in inner:
            if isinstance(part, Tensor):  # a shard names its mesh of devices too
                yield from _parts(part)
    else:
        yield tensor


def _samples(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Return evenly spaced values of each tensor, with the first and the last, concatenated for each device and dtype."""
    groups: dict[tuple, list[Tensor]] = {}
    with torch.no_grad():
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or not tensor.numel():
                continue
            count = tensor.numel()
            size = min(count, _SAMPLES)
            values = tensor if tensor.is_contiguous() else _dense(tensor)
            values = values.as_strided((size,), ((count - 1) // max(size - 1, 1) or 1,))
            groups.setdefault((tensor.device, tensor.dtype), []).append(values)
        return tuple(torch.cat(group).view(torch.uint8) for group in groups.values())  # bits, so that NaN equals NaN


def _dense(tensor: Tensor) -> Tensor:
    """Return values in memory order, without a copy where they are dense."""
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True)).contiguous()


def _settings(module: nn.Module) -> tuple:
    """Return a module's class and constants by name. None counts as absent, since many passes put tensors in its place."""
    if turns_with_length(module):
        return type(module), user_code_on(module)
    # a list: meanwhile another thread's pass may add to the attributes
    constants = ((name, _constant(value)) for name, value in list(vars(module).items()) if name not in _BOOKKEEPING)
    return type(module), user_code_on(module), *((name, value) for name, value in constants if value is not ...)


def _constant(value: object, depth: int = _DEPTH) -> object:
    """Return a comparable form of a setting, or an ellipsis for None and for objects with their own state."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if depth and issubclass(kind, dict):
        items = ((key, _constant(entry, depth - 1)) for key, entry in value.items() if type(key) in _SCALARS)
        return tuple(item for item in items if item[1] is not ...)
    if depth and issubclass(kind, list | tuple | set | frozenset):
        items = tuple(_constant(entry, depth - 1) for entry in value)
        return frozenset(items) if issubclass(kind, set | frozenset) else items
    return ...


def _attention(module: nn.Module) -> tuple:
    config = getattr(module, "config", None)
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", None) or ()]
    return tuple(getattr(part, "_attn_implementation", None) for part in (config, *parts) if part is not None)


# the last copy of each module: (device and dtype, fingerprint of the original, copy), released with the module
_COPIES: WeakKeyDictionary[nn.Module, tuple[tuple, Fingerprint, nn.Module]] = WeakKeyDictionary()


def module_like(module: nn.Module, like: Tensor) -> nn.Module:
    """Return the module, or a copy like `like`, cached until weights change, which shares everything except weights."""
    tensors = (*module.parameters(), *module.buffers())
    if all(_matches(tensor, like) for tensor in tensors):
        return module
    place, now = (like.device, like.dtype), fingerprint(module)
    cached = _COPIES.get(module)
    if cached is None or cached[0] != place or not now.same(cached[1]):
        cached = _COPIES[module] = place, now, _cast_copy(module, like)
    copied = copy.copy(cached[2])
    copied.__dict__.update(_attributes(module))
    return copied


def _matches(tensor: Tensor, like: Tensor) -> bool:
    return tensor.device == like.device and (tensor.dtype == like.dtype or not tensor.is_floating_point())


def _attributes(module: nn.Module) -> dict:
    return {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")}


@torch.no_grad()
def _cast_copy(module: nn.Module, like: Tensor) -> nn.Module:
    memo: dict[int, object] = {id(value): value for value in _attributes(module).values()}
    for tensor in (*module.parameters(), *module.buffers()):
        cast = tensor.detach().to(device=like.device, dtype=like.dtype if tensor.is_floating_point() else None)
        if isinstance(tensor, nn.Parameter):
            cast = nn.Parameter(cast, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = cast
    return copy.deepcopy(module, memo)


# per owner the layout of its modules, and its objects by key
_objects: WeakKeyDictionary[object, tuple[tuple, dict[Hashable, Any]]] = WeakKeyDictionary()
_lock = Lock()


def made_once(owner: object, key: Hashable, make: Callable[[], Any], *modules: nn.Module) -> Any:
    """Return the object that `make` built for a key, until a module changes its device, precision, adapters or
    attention. It is released with the owner, on which nothing is written, so `make` must not keep the owner alive."""
    layout = layout_of(*modules)
    with _lock:
        known = _objects.get(owner)
        if known is not None and known[0] == layout and key in known[1]:
            return known[1][key]
    value = make()
    with _lock:
        known = _objects.get(owner)
        if known is None or known[0] != layout:
            known = _objects[owner] = layout, {}
        return known[1].setdefault(key, value)
