"""Users' own code around the modules of a model, except that of the libraries of models and adapters. A drafted pass
has several positions where plain decoding has a single position, so such code may give other results."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.modules import module as torch_module

# packages whose hooks do not change the result of a position
_HOOKING = frozenset(("torch", "transformers", "accelerate", "mmspec"))
# packages whose modules compute each position by itself, or are proved with the class of the model
_LIBRARIES = _HOOKING | {
    "peft", "diffusers", "torchvision", "torchao", "bitsandbytes", "compressed_tensors", "gptqmodel", "auto_gptq",
    "awq", "hqq", "optimum", "kernels", "fla", "flash_attn", "mamba_ssm", "causal_conv1d", "open_clip", "timm",
}  # fmt: skip

# modules of transformers that replace a forward to share a layer between processes
_SHARING = "transformers.distributed", "transformers.integrations"


@dataclass(frozen=True, slots=True)
class UserCode:
    kind: str  # the word for it, such as "forward hook"
    code: Any  # the function, the object that is called, or the module
    place: str  # the name of the module that it is on, empty for the model itself

    def __str__(self) -> str:
        return f"the {self.kind} {_name(self.code)} {f'on {self.place}' if self.place else 'on the model itself'}"


def listed(code: Sequence[UserCode]) -> str:
    return " and ".join(map(str, code)) if len(code) < 3 else f"{code[0]} and {len(code) - 1} more"


def user_code(root: nn.Module, *used: nn.Module) -> tuple[UserCode, ...]:
    """Report only code on, in and around the `used` modules, whose passes are rebuilt; without any, the whole model
    counts."""
    known, seen = _LIBRARIES | {_package(type(root).__module__)}, set()
    everywhere = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    pieces = _foreign(everywhere, "every module", "global ")
    for place, module in _around(root, used):
        own, kind = vars(module), type(module)
        if _package(kind.__module__) not in known:
            pieces.append(UserCode("module", module, place))
        elif kind not in seen and not _packages(kind.forward) <= known:
            pieces.append(UserCode("class forward", kind.forward, place))
        seen.add(kind)
        pieces += _foreign((own["_forward_hooks"], own["_forward_pre_hooks"]), place)
        pieces += [UserCode(kind, code, place) for kind, code in _replaced_forward(module)]
    return tuple(pieces)


def user_code_on(module: nn.Module) -> tuple:
    own = vars(module)
    if not (own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own):
        return ()
    hooks = _foreign((own["_forward_hooks"], own["_forward_pre_hooks"]), "")
    return *(weakly(hook.code) for hook in hooks if not only_reads(hook)), *(
        weakly(code) for _, code in _replaced_forward(module)
    )


def code_mark(module: nn.Module) -> tuple:
    """A mark changes with the code and keeps none of it alive."""
    own = vars(module)
    attributes = [weakly(own[name]) for name in ("forward", "_old_forward", "_hf_hook") if name in own]
    return tuple(own["_forward_hooks"]), tuple(own["_forward_pre_hooks"]), weakly(type(module).forward), *attributes


def global_mark() -> tuple:
    return tuple(torch_module._global_forward_hooks), tuple(torch_module._global_forward_pre_hooks)


def weakly(part: object) -> object:
    """Return a weak reference that can be hashed, or the address of an object that allows none."""
    try:
        hash(link := ref(part))
    except TypeError:
        return id(part)
    return link


def is_library(package: str) -> bool:
    return package in _LIBRARIES | {"builtins", "collections", "functools"}


def functions_of(code: object) -> Iterator[object]:
    known: dict[int, object] = {}  # bound methods live only as long as somebody holds them
    waiting = [code]
    while waiting:
        part = waiting.pop()
        if id(part) in known:
            continue
        known[id(part)] = part
        if isinstance(part, MethodType):
            waiting += [part.__func__, part.__self__]
        elif isinstance(part, partial):
            waiting.append(part.func)
        else:
            yield part
            call = (
                type(part).forward if isinstance(part, nn.Module) else type(part).__call__ if callable(part) else None
            )
            waiting += [call] if isinstance(call, FunctionType) else []
        inner = (getattr(part, name, None) for name in ("__wrapped__", "_torchdynamo_orig_callable"))
        waiting += [function for function in inner if callable(function)]


def only_reads(piece: UserCode) -> bool:
    """Whether a hook returns None at every end, and writes neither slices nor in place."""
    functions = [part for part in functions_of(piece.code) if isinstance(part, FunctionType)]
    own = [function for function in functions if not is_library(package_of(function))]
    return piece.kind.endswith(("forward hook", "pre-hook")) and bool(own) and all(map(_returns_nothing, own))


def _returns_nothing(function: FunctionType) -> bool:
    code = list(dis.get_instructions(function))
    for at, step in enumerate(code):
        value = step if step.opname == "RETURN_CONST" else code[at - 1]
        if step.opname.startswith("RETURN_") and (value.argval is not None or "CONST" not in value.opname):
            return False
        into_local = (
            step.opname == "BINARY_OP" and step.argrepr.endswith("=") and code[at + 1].opname.startswith("STORE_FAST")
        )
        is_method = (
            step.opname.startswith("LOAD_") and str(step.argval).endswith("_") and not str(step.argval).endswith("__")
        )
        # from Python 3.13 on, an instruction may load two locals, here the container and the index
        loads_both = code[at - 1].opname.count("LOAD_FAST") == 2
        is_changed = step.opname == "COPY" and code[at + 1].opname == "COPY"  # an item, by an operator such as +=
        of_local = (is_changed or step.opname == "STORE_SUBSCR") and (
            loads_both or code[at - 2].opname.startswith("LOAD_FAST")
        )
        is_slice = step.opname in ("BUILD_SLICE", "STORE_SLICE") or isinstance(step.argval, slice)
        if into_local or is_method or of_local or is_slice or step.argval is ...:
            return False
    return True


def _around(root: nn.Module, used: tuple[nn.Module, ...]) -> Iterator[tuple[str, nn.Module]]:
    named = list(root.named_modules(remove_duplicate=False))
    inside = {id(module) for part in used for module in part.modules()}
    names = {name for name, module in named if id(module) in inside}
    around = {""} | {name[:end] for name in names for end in range(len(name)) if name[end] == "."}
    for name, module in named:
        if not used or name in names or name in around:
            yield name, module


def _replaced_forward(module: nn.Module) -> Iterator[tuple[str, object]]:
    own = vars(module)
    forward, hook = own.get("forward"), own.get("_hf_hook")
    if hook is not None and _is_of_accelerate(forward):
        for part in getattr(hook, "hooks", None) or [hook]:
            if _package(type(part).__module__) not in _HOOKING:
                yield "accelerate hook", part
        forward = own.get("_old_forward")
    if forward is None or isinstance(own["_modules"].get("_orig_mod"), nn.Module):
        return  # a compiled module runs the module inside, which is looked at too
    of_class = {id(part) for part in (module, *functions_of(type(module).forward))}
    others = [part for part in functions_of(forward) if id(part) not in of_class]
    if not all(package_of(part) in ("torch", "mmspec") or _module_of(part).startswith(_SHARING) for part in others):
        yield "replaced forward", forward


def _is_of_accelerate(forward: object) -> bool:
    return isinstance(forward, partial) and _package(forward.func.__module__) == "accelerate"


def _foreign(hooks: tuple[dict, dict], place: str, where: str = "") -> list[UserCode]:
    return [
        UserCode(f"{where}forward {kind}", hook, place)
        for kind, registered in zip(("hook", "pre-hook"), hooks, strict=True)
        for hook in list(registered.values())
        if not _packages(hook) <= _HOOKING
    ]


def _packages(code: object) -> set[str]:
    return {package_of(part) for part in functions_of(code)}


def package_of(part: object) -> str:
    return _package(_module_of(part))


def _module_of(part: object) -> str:
    return part.__globals__.get("__name__", "") if isinstance(part, FunctionType) else type(part).__module__ or ""


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _name(code: object) -> str:
    if isinstance(code, partial):
        return _name(code.func)
    name = None if isinstance(code, nn.Module) else getattr(code, "__qualname__", None)
    return type(code).__name__ if name is None else name.rpartition("<locals>.")[2]
