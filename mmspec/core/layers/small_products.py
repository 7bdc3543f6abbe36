"""Passes in which linear layers compute few rows in their fastest form, see `mmspec.kernels.small_linear`. Inside the
block each plain `nn.Linear` has its own `forward` in its instance dictionary, and a mark of the calling thread makes it
effective. So hooks, adapters and replaced weights work as before, and other threads keep `F.linear`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from threading import Lock, local

import torch
from torch import Tensor, nn

from mmspec.core.round.snapshot import fields
from mmspec.kernels.small_linear import (
    DTYPES,
    MEASURED,
    MOST_ROWS,
    few_rows,
    forget_changed,
    form_of,
    in_eager_inference,
    set_form,
)

_MOST_HELD = 64  # entries of a sequence that may be modules or drafters, and not a table of tokens
_lock = Lock()


class _Thread(local):
    """The open blocks of the thread: for each, the form of its products or "measured"."""

    def __init__(self) -> None:
        self.forms: list[str] = []


_thread = _Thread()


class SmallLinear:
    """The `forward` of a layer in `SmallProducts`. `alike`: weights of its shape; `users`: open blocks in all threads."""

    __slots__ = ("alike", "forms", "layer", "users")

    def __init__(self, layer: nn.Linear, alike: list[Tensor]):
        self.layer, self.alike, self.users = layer, alike, 0
        self.forms: dict[tuple[int, int], str] = {}

    def __call__(self, x: Tensor) -> Tensor:
        layer, rows = self.layer, x.numel() // (x.shape[-1] or 1)
        form, weight = _thread.forms[-1] if _thread.forms else "linear", layer._parameters["weight"]
        if (
            form != "linear"
            and 2 <= rows <= MOST_ROWS
            and type(x) is Tensor
            and x.dtype == weight.dtype
            and weight.is_cpu
        ):
            if form == MEASURED and (form := self.forms.get(key := (rows, torch.get_num_threads()))) is None:
                form = self.forms[key] = form_of(weight, rows, self.alike)
            if form != "linear":
                return few_rows(form, x, weight, layer._parameters["bias"])
        return type(layer).forward(layer, x)


class SmallProducts:
    """A block in which the linear layers of modules are `SmallLinear`; it may be entered again and nested."""

    def __init__(self, *roots: nn.Module):
        alike: dict[object, list[Tensor]] = defaultdict(list)
        self._forwards: list[tuple[dict, SmallLinear]] = []
        for layer in _linear_layers(roots):
            same = alike[layer.weight.dtype, layer.weight.shape]
            same.append(layer.weight)
            self._forwards.append((vars(layer), SmallLinear(layer, same)))
        if set_form() == "packed":
            forget_changed(weight for same in alike.values() for weight in same)

    def __enter__(self) -> None:
        with _lock:
            for attributes, own in self._forwards:
                if type(forward := attributes.setdefault("forward", own)) is SmallLinear:
                    forward.users += 1
        _thread.forms.append(set_form() if in_eager_inference() else "linear")

    def __exit__(self, *error: object) -> None:
        _thread.forms.pop()
        with _lock:
            for attributes, _ in self._forwards:
                if type(forward := attributes.get("forward")) is SmallLinear:
                    forward.users -= 1
                    if not forward.users:
                        del attributes["forward"]


def modules_within(holder: object, depth: int = 4) -> Iterator[nn.Module]:
    """Look in attributes and in short sequences of objects."""
    if isinstance(holder, nn.Module):
        yield holder
    elif depth and isinstance(holder, list | tuple) and len(holder) <= _MOST_HELD:
        for part in holder:
            yield from modules_within(part, depth - 1)
    elif depth and type(holder).__module__.startswith("mmspec."):
        for part in fields(holder).values():
            yield from modules_within(part, depth - 1)


def _linear_layers(roots: tuple[nn.Module, ...]) -> Iterator[nn.Linear]:
    """Plain layers with dense weights on a CPU, each once, without those inside compiled modules."""
    known, waiting = set(), list(roots)
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in known or _is_compiled(module):
            continue
        known.add(id(module))
        if type(module) is nn.Linear:
            weight = module.weight
            if weight.is_cpu and weight.layout is torch.strided and weight.dtype in DTYPES:
                yield module
        else:
            waiting.extend(module._modules.values())


def _is_compiled(module: nn.Module) -> bool:
    """Calls run a graph that was compiled from the module, which a new `forward` inside would void."""
    own = vars(module)
    forward = own.get("forward")
    return (
        own.get("_compiled_call_impl") is not None
        or isinstance(module._modules.get("_orig_mod"), nn.Module)
        or hasattr(forward, "_torchdynamo_orig_callable")
    )
