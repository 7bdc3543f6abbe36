"""Recurrent and convolution layers of transformers' classes, passed over a drafted tree.

During a pass over a draft the forward of a layer, and only its forward, reads a tree: the class's own code with closed forms
in the place of the functions that it calls, or its own single steps (`mixer_passes.py`). States are the request's, in its
cache; calls with any other cache go to the class's own forward.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType

from torch import Tensor, nn

from mmspec.core.cache import LayerStates, SlotCache
from mmspec.core.layer_plan import LayerPlan
from mmspec.core.tree import Tree
from mmspec.vlm.mixer_passes import StepwisePass, TreePass, form_of, refuse_single_step, stand_ins

_LOCK = threading.Lock()
_INSTALLED: dict[int, int] = {}
_WRITERS = {"update_conv_state", "update_recurrent_state"}


@dataclass(frozen=True, eq=False)
class Mixer:
    """A module that keeps states.   index: of its layer.   form: what stands for which of its functions; None for steps.
    alone: steps of single nodes."""

    module: nn.Module
    index: int
    form: dict[str, str] | None
    alone: bool = False

    @cached_property
    def code(self) -> Callable:
        """The class's own forward."""
        return _code(self.module)

    @cached_property
    def single(self) -> dict[str, Callable]:
        """What stands for the functions of single steps that it calls."""
        code = self.code
        names = (n for n in code.__code__.co_names if n.endswith(("_update", "recurrent_gated_delta_rule")))
        return {name: refuse_single_step for name in names if name in code.__globals__}


def mixers_of(decoder: nn.Module, plan: LayerPlan) -> tuple[Mixer, ...]:
    """The mixers of a decoder's layers with states.   Raises ValueError for a layer that does not keep them in the cache."""
    if not plan.stateful:
        return ()
    found = []
    for module in decoder.modules():
        if getattr(module, "layer_idx", None) in plan.stateful:
            names = set(_code(module).__code__.co_names)
            if names & _WRITERS:
                found.append(Mixer(module, module.layer_idx, form_of(names)))
    missing = sorted(set(plan.stateful) - {mixer.index for mixer in found})
    if missing:
        raise ValueError(f"model: expected recurrent layers that keep their states in the cache, got layer {missing[0]} of a "
                         f"{type(decoder).__name__} that does not; decode it with model.generate")  # fmt: skip
    return tuple(found)


def stepwise(mixers: tuple[Mixer, ...]) -> tuple[Mixer, ...]:
    """The same modules by their own steps, a node at a time."""
    return tuple(replace(mixer, form=None, alone=True) for mixer in mixers)


@contextmanager
def tree_passes(mixers: tuple[Mixer, ...], cache: SlotCache, tree: Tree) -> Iterator[None]:
    """Passes with `cache` made inside go over the nodes of `tree`."""
    if not mixers:
        yield
        return
    cache.open(tree)
    for mixer in mixers:
        _install(mixer)
    try:
        yield
    finally:
        for mixer in mixers:
            _remove(mixer)
        cache.open(None)


def _slot(module: nn.Module) -> str:
    """Where a forward is put: below accelerate's, which moves weights, where there is one."""
    return "_old_forward" if hasattr(module, "_hf_hook") else "forward"


def _install(mixer: Mixer) -> None:
    """Puts a forward in the module's own place that asks each call's cache whether it goes over a draft."""
    module = mixer.module
    with _LOCK:
        count = _INSTALLED.get(id(module), 0)
        if not count:
            own, had = getattr(module, _slot(module)), vars(module).get(_slot(module))
            forward = lambda *args, **kwargs: _forward(mixer, own, args, kwargs)  # noqa: E731
            forward.had = had
            vars(module)[_slot(module)] = forward
        _INSTALLED[id(module)] = count + 1


def _remove(mixer: Mixer) -> None:
    module = mixer.module
    with _LOCK:
        _INSTALLED[id(module)] -= 1
        if _INSTALLED[id(module)]:
            return
        del _INSTALLED[id(module)]
        had = vars(module).pop(_slot(module)).had
        if had is not None:
            vars(module)[_slot(module)] = had


def _forward(mixer: Mixer, own: Callable, args: tuple, kwargs: dict) -> Tensor:
    cache = next((one for one in (*args, *kwargs.values()) if isinstance(one, SlotCache)), None)
    if cache is None or cache.tree is None:
        return own(*args, **kwargs)
    layer = cache.layers[mixer.index]
    if mixer.form is None:
        part = StepwisePass(mixer.module, layer, args, kwargs, cache.tree, mixer.alone)
        out = part.run(own)
    else:
        part = TreePass(layer, cache.tree, cache.columns)
        with layer.serving(layer.committed, LayerStates()), _weights_at_hand(mixer.module):
            out = _rebound(mixer, part)(mixer.module, *args, **kwargs)
            part.full = layer.full
    layer.pending.append(part)
    return out


@contextmanager
def _weights_at_hand(module: nn.Module) -> Iterator[None]:
    """Filters are read without a call of their module, which accelerate would need to bring what it has put elsewhere."""
    away = [child for child in module.children() if isinstance(child, nn.Conv1d) and hasattr(child, "_hf_hook")]
    for child in away:
        child._hf_hook.pre_forward(child)
    yield
    for child in away:
        child._hf_hook.post_forward(child, ())


def _rebound(mixer: Mixer, part: TreePass) -> Callable:
    """The class's own forward, calling the stand-ins."""
    code = mixer.code
    names = code.__globals__ | mixer.single | stand_ins(mixer.form, part)
    made = FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
    made.__kwdefaults__ = code.__kwdefaults__
    return made


def _code(module: nn.Module) -> Callable:
    return inspect.unwrap(type(module).forward)
