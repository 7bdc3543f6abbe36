"""Forward passes of transformers' recurrent and convolution layers over a draft tree. During such a pass, each layer
with states runs its class's code with closed forms in place of functions, or its single steps (`mixer_passes.py`). The
states are stored in the request's cache; calls with any other cache go to the class's own forward."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType

from torch import Tensor, nn

from mmspec.core.layers.compat import undecorated
from mmspec.core.layers.layer_plan import LayerPlan
from mmspec.core.round.cache import LayerStates, SlotCache
from mmspec.core.round.tree import Tree
from mmspec.vlm.mixer_passes import StepwisePass, TreePass, form_of, refuse_single_step, stand_ins

_LOCK = threading.Lock()
_INSTALLED: dict[int, int] = {}
_WRITERS = {"update_conv_state", "update_recurrent_state"}


@dataclass(frozen=True, eq=False)
class Mixer:
    """A module with recurrent or convolution states."""

    module: nn.Module
    index: int  # of its layer
    form: dict[str, str] | None  # per function of its forward, a method of `TreePass`; None for single steps
    alone: bool = False  # whether every node is a step of its own

    @cached_property
    def code(self) -> Callable:
        return _code(self.module)

    @cached_property
    def single(self) -> dict[str, Callable]:
        code = self.code
        names = (n for n in code.__code__.co_names if n.endswith(("_update", "recurrent_gated_delta_rule")))
        return {name: refuse_single_step for name in names if name in code.__globals__}


def mixers_of(decoder: nn.Module, plan: LayerPlan) -> tuple[Mixer, ...]:
    if not plan.stateful:
        return ()
    mixers = []
    for module in decoder.modules():
        if getattr(module, "layer_idx", None) in plan.stateful:
            names = set(_code(module).__code__.co_names)
            if names & _WRITERS:
                mixers.append(Mixer(module, module.layer_idx, form_of(names)))
            elif any(called & _WRITERS for called in _methods(module, names)):
                mixers.append(Mixer(module, module.layer_idx, None))
    missing = sorted(set(plan.stateful) - {mixer.index for mixer in mixers})
    if missing:
        raise ValueError(
            f"model: expected recurrent layers that keep their states in the cache, got layer {missing[0]} of a "
            f"{type(decoder).__name__} that does not; decode it with model.generate"
        )
    return tuple(mixers)


def stepwise(mixers: tuple[Mixer, ...]) -> tuple[Mixer, ...]:
    """Return the mixers with single steps in place of closed forms, one node at a time."""
    return tuple(replace(mixer, form=None, alone=True) for mixer in mixers)


@contextmanager
def tree_passes(mixers: tuple[Mixer, ...], cache: SlotCache, tree: Tree) -> Iterator[None]:
    """Make forward passes with `cache` inside the block read the nodes of `tree`."""
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
    """Return the attribute of the new forward, below accelerate's forward, which moves weights, if that is installed."""
    return "_old_forward" if hasattr(module, "_hf_hook") else "forward"


def _install(mixer: Mixer) -> None:
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
    cache = next((value for value in (*args, *kwargs.values()) if isinstance(value, SlotCache)), None)
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
    """Bring offloaded convolution weights to their device: the pass reads them without a call of their module."""
    away = [child for child in module.children() if isinstance(child, nn.Conv1d) and hasattr(child, "_hf_hook")]
    for child in away:
        child._hf_hook.pre_forward(child)
    yield
    for child in away:
        child._hf_hook.post_forward(child, ())


def _rebound(mixer: Mixer, part: TreePass) -> Callable:
    code = mixer.code
    names = code.__globals__ | mixer.single | stand_ins(mixer.form, part)
    forward = FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
    forward.__kwdefaults__ = code.__kwdefaults__
    return forward


def _code(module: nn.Module) -> Callable:
    return undecorated(type(module).forward)


def _methods(module: nn.Module, names: set[str]) -> Iterator[set[str]]:
    """Yield the names in the code of each method among `names`: Mamba layers of transformers 5.13 have a method a kernel."""
    for name in names:
        if inspect.isfunction(method := getattr(type(module), name, None)):
            yield set(undecorated(method).__code__.co_names)
