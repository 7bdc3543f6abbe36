"""Fingerprints that show that a model computes another function than before, and what is kept for a model until it does.

A fingerprint compares weights by their memory and version counter and by a sample of their values, and modules by their
settings, such as the active adapters. It costs a few milliseconds. It cannot see a change that none of these shows: single
values that are written through `.data`, a forward hook, and weights on the meta device, which are loaded for each pass.
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

from mmspec.core.rope import turns_with_length

_SAMPLES = 8  # values of each tensor
_DEPTH = 3  # of settings in lists and dicts
_SCALARS = frozenset((str, int, float, bool, torch.dtype, torch.device))
_ORDINARY = (Tensor, nn.Parameter, nn.Buffer)
# of every module; and of transformers, plans of how to split a model, which are long, and a mark that passes leave
_BOOKKEEPING = frozenset(vars(nn.Module())) - {"training"} | {
    "_tp_plan",
    "_pp_plan",
    "_ep_plan",
    "_output_capturing_hooks_installed",
}
# the attributes with which adapter layers say what they add, in PEFT and elsewhere
_ADAPTERS = ("active_adapter", "_active_adapter", "active_adapters", "_active_adapters", "disable_adapters",
             "_disable_adapters", "merged", "merged_adapters", "training")  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Fingerprint:
    """The function that modules compute, as far as it can be compared cheaply.

    layout: see `layout_of`.
    settings: the other settings of the modules, such as an adapter's scale.
    addresses: the memory address of each tensor.
    versions: the version counter of each tensor, which every write raises but those through `.data`.
    samples: a few values of each tensor, as integers, side by side for each device and dtype.
    """

    layout: tuple
    settings: tuple
    addresses: tuple[int, ...]
    versions: tuple[int, ...]
    samples: tuple[Tensor, ...]

    @property
    def places(self) -> tuple:
        """Everything that a recorded graph holds on to: it reads these addresses, and its constants are these settings."""
        return self.layout, self.settings, self.addresses

    def same(self, other: Fingerprint | None) -> bool:
        """Whether both are of the same function. It reads the devices once."""
        if other is None or self.versions != other.versions or self.places != other.places:
            return False
        return all(torch.equal(mine, theirs) for mine, theirs in zip(self.samples, other.samples, strict=True))


def fingerprint(*roots: nn.Module) -> Fingerprint:
    """Return the fingerprint of modules.

    Args:
        roots: the modules whose weights and settings count, with everything below them.
    """
    modules = list(_modules(roots))
    tensors = [tensor for module in modules for tensor in _tensors(module)]
    settings = tuple(_settings(module) for module in modules)
    versions = tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)
    addresses = tuple(tensor.data_ptr() if tensor.layout is torch.strided else 0 for tensor in tensors)
    return Fingerprint(_layout(roots, modules, tensors), settings, addresses, versions, _samples(tensors))


def layout_of(*roots: nn.Module) -> tuple:
    """Return the shape, dtype and device of each tensor, the active adapters, and the attention implementations.

    The result can be hashed. It stays the same when only the values of weights change.
    """
    modules = list(_modules(roots))
    return _layout(roots, modules, [tensor for module in modules for tensor in _tensors(module)])


def modules_of(holder: object) -> tuple[nn.Module, ...]:
    """Return the modules that a drafter or a model computes with: itself, or those that it and a drafter inside it hold."""
    if isinstance(holder, nn.Module):
        return (holder,)
    names = (*getattr(holder, "__dict__", ()), *(name for kind in type(holder).__mro__ for name in _slots(kind)))
    own = tuple(part for name in names if isinstance(part := getattr(holder, name, None), nn.Module))
    inner = getattr(holder, "drafter", None)
    return own if inner is None or isinstance(inner, nn.Module) else own + modules_of(inner)


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _layout(roots: tuple[nn.Module, ...], modules: list[nn.Module], tensors: list[Tensor]) -> tuple:
    shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
    adapters = tuple(
        tuple(_constant(value) for name in _ADAPTERS if (value := vars(module).get(name)) is not None)
        for module in modules
    )
    return shapes, adapters, tuple(_attention(root) for root in roots)


def _modules(roots: tuple[nn.Module, ...]) -> Iterator[nn.Module]:
    """The modules in a fixed order, each once. `nn.Module.modules` does the same with names, which take longer."""
    known, waiting = set(), list(roots)
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in known:
            known.add(id(module))
            yield module
            waiting.extend(module._modules.values())


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """The tensors of one module. Frequencies that depend on the length are left out: passes change them."""
    named = module._parameters if turns_with_length(module) else module._parameters | module._buffers
    for tensor in named.values():
        if tensor is not None:
            yield from _parts(tensor)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that hold the values of a tensor: those inside it where it is a wrapper, such as a shard of a group."""
    if type(tensor) not in _ORDINARY and hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    else:
        yield tensor


def _samples(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Values of each tensor at even distances, the first and the last among them: one tensor for each device and dtype."""
    groups: dict[tuple, list[Tensor]] = {}
    with torch.no_grad():
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or not tensor.numel():
                continue
            count = tensor.numel()
            taken = min(count, _SAMPLES)
            values = tensor if tensor.is_contiguous() else _dense(tensor)
            values = values.as_strided((taken,), ((count - 1) // max(taken - 1, 1) or 1,))
            groups.setdefault((tensor.device, tensor.dtype), []).append(values)
        return tuple(torch.cat(group).view(torch.uint8) for group in groups.values())  # bits, so that NaN equals NaN


def _dense(tensor: Tensor) -> Tensor:
    """The values of a tensor in the order of its memory, without a copy where they lie close."""
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True)).contiguous()


def _settings(module: nn.Module) -> tuple:
    """The class of one module and its constants by name. None counts as absent: many a pass puts tensors in its place."""
    if turns_with_length(module):
        return (type(module),)
    found = ((name, _constant(value)) for name, value in vars(module).items() if name not in _BOOKKEEPING)
    return type(module), *((name, value) for name, value in found if value is not ...)


def _constant(value: object, depth: int = _DEPTH) -> object:
    """A setting as something to compare; an ellipsis for None and for an object, whose state is its own."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if depth and issubclass(kind, dict):
        items = ((key, _constant(one, depth - 1)) for key, one in value.items() if type(key) in _SCALARS)
        return tuple(item for item in items if item[1] is not ...)
    if depth and issubclass(kind, list | tuple | set | frozenset):
        items = tuple(_constant(one, depth - 1) for one in value)
        return frozenset(items) if issubclass(kind, set | frozenset) else items
    return ...


def _attention(module: nn.Module) -> tuple:
    """The attention implementations that the configs of a transformers model name; empty for other modules."""
    config = getattr(module, "config", None)
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", None) or ()]
    return tuple(getattr(one, "_attn_implementation", None) for one in (config, *parts) if one is not None)


# the last copy of each module: (its device and dtype, the fingerprint of the original, the copy); gone with the module
_COPIES: WeakKeyDictionary[nn.Module, tuple[tuple, Fingerprint, nn.Module]] = WeakKeyDictionary()


def module_like(module: nn.Module, like: Tensor) -> nn.Module:
    """The module itself where its floating-point weights have the device and dtype of `like`, else a copy that has.

    The copy is made once and again when weights have changed since; requests that share the module share it. What is no
    weight (shapes, settings) belongs to both.
    """
    tensors = (*module.parameters(), *module.buffers())
    if all(_matches(tensor, like) for tensor in tensors):
        return module
    place, now = (like.device, like.dtype), fingerprint(module)
    kept = _COPIES.get(module)
    if kept is None or kept[0] != place or not now.same(kept[1]):
        kept = _COPIES[module] = place, now, _cast_copy(module, like)
    copied = copy.copy(kept[2])
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


# of each owner: the layout of its modules, and the objects by key
_made: WeakKeyDictionary[object, tuple[tuple, dict[Hashable, Any]]] = WeakKeyDictionary()
_lock = Lock()


def made_once(owner: object, key: Hashable, make: Callable[[], Any], *modules: nn.Module) -> Any:
    """What `make` returned when the key was first asked for; nothing is written on the owner.

    It is made again where a module has another device, precision, adapter or attention implementation than before.

    Args:
        owner: The model or the pipeline that the object belongs to and lives as long as.
        key: Tells the objects of an owner apart.
        make: Makes the object, which must not keep the owner alive.
        modules: The modules whose layout counts.
    """
    layout = layout_of(*modules)
    with _lock:
        known = _made.get(owner)
        if known is not None and known[0] == layout and key in known[1]:
            return known[1][key]
    made = make()
    with _lock:
        known = _made.get(owner)
        if known is None or known[0] != layout:
            known = _made[owner] = layout, {}
        return known[1].setdefault(key, made)
