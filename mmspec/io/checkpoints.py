"""The only loader of models, processors and tokenizers of transformers. No code of a checkpoint is run. Weights are
safetensors. A missing weight is an error, since it would be random."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import nn

from mmspec.io.loading import abbreviated, sketch
from mmspec.io.readers import read_json, read_shapes

_LOADING = RLock()
_MOST_A_BYTE, _SPARE = 16, 10**6  # numbers per byte of weights, and numbers without stored bytes (tied weights)
_NUMBER = re.compile(r"\.\d+(?=\.)")


def load_model(kind: type, source: str | Path, *, local: bool = True, dtype: Any = "auto", **how: Any) -> Any:
    """Load a model of transformers in eval mode, by its class or an Auto class, from a folder, or from a hub id with
    `local=False`. `dtype` "auto" is that of the files. `how` are further arguments of `from_pretrained`; with
    `state_dict` and `config`, nothing is read from `source`, which appears in errors only. Unknown weights of the files
    are ignored, unless they show that the config is another model's."""
    state, where = how.get("state_dict"), source
    with _harmless(source):
        if state is not None:
            where = None
            _check_sizes(kind, how["config"], len(state), sum(value.nbytes for value in state.values()), source)
        elif local:
            _check_folder(kind, Path(source))
        model, loading = kind.from_pretrained(
            where,
            dtype=dtype,
            local_files_only=local,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **how,
        )
    # no output depends on the number of training batches
    if lacking := sorted(name for name in loading["missing_keys"] if not name.endswith("num_batches_tracked")):
        raise ValueError(
            f"{source}: expected all weights of a {type(model).__name__}, got no {abbreviated(lacking)}, "
            "which would be random; use the whole checkpoint"
        )
    if misfits := sorted(loading["mismatched_keys"]):
        names = [f"{name} of shape {tuple(got)} instead of {tuple(wanted)}" for name, got, wanted in misfits]
        raise ValueError(
            f"{source}: expected weights in the shapes of the config, got {abbreviated(names)}; use the "
            "config the checkpoint was made with"
        )
    if foreign := foreign_weights(loading["unexpected_keys"], model):
        raise ValueError(
            f"{source}: expected the weights of the {type(model).__name__} that its config describes, got "
            f"{abbreviated(foreign)} too; use the config the checkpoint was made with"
        )
    return model.eval()


def load_part(kind: type, source: str | Path, *, local: bool = True, **how: Any) -> Any:
    """Load a config, generation config, tokenizer or processor of transformers, by its class or an Auto class, from a
    folder, or from a hub id with `local=False`. `how` are arguments of `from_pretrained`, such as a GGUF file's name.
    """
    from transformers import GenerationConfig

    with _harmless(Path(source, how["gguf_file"]) if "gguf_file" in how else source):
        if issubclass(kind, GenerationConfig):  # it runs no code, and would store the argument as a setting
            return kind.from_pretrained(source, local_files_only=local, **how)
        return kind.from_pretrained(source, local_files_only=local, trust_remote_code=False, **how)


@contextmanager
def without_bars() -> Iterator[None]:
    """Load small models of transformers without a bar on the screen."""
    from transformers.utils import logging

    is_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_shown:
            logging.enable_progress_bar()


def cast_weights(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a model to a precision in place, as `from_pretrained(dtype=...)` does. `Module.to` would round its rotary
    frequencies too: in bfloat16, positions of a long prompt would then coincide."""
    rotary = [
        (module, name, value)
        for module in model.modules()
        for name, value in module.named_buffers(recurse=False)
        if name.endswith("inv_freq") and name in module._non_persistent_buffers_set
    ]
    model.to(dtype)
    for module, name, value in rotary:
        setattr(module, name, value)
    return model


def _check_sizes(kind: type, config: Any, tensors: int, held: int, source: str | Path) -> None:
    """Refuse a config that describes far more numbers than the files hold, before memory is allocated for them. `held`
    is the bytes of the files' tensors together."""

    def make() -> Any:
        return kind.from_config(config, trust_remote_code=False) if hasattr(kind, "from_config") else kind(config)

    count = sum(parameter.numel() for parameter in sketch(make, tensors, source).parameters())
    if count > _MOST_A_BYTE * held + _SPARE:
        raise ValueError(
            f"{source}: expected the weights of its config, {count:,} numbers, got {held:,} bytes; use the "
            "config the checkpoint was made with"
        )


def _check_folder(kind: type, folder: Path) -> None:
    from transformers import AutoConfig

    if files := weight_files(folder):  # without files, transformers reports which are missing
        tensors, held = sum(len(read_shapes(file)) for file in files), sum(file.stat().st_size for file in files)
        config = load_part(getattr(kind, "config_class", None) or AutoConfig, folder)
        _check_sizes(kind, config, tensors, held, folder)


def weight_files(folder: Path) -> list[Path]:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole] if whole.is_file() else []
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ValueError(f"{index}: expected a weight_map from tensors to files, got {shards!r:.60}; fetch it again")
    return [folder / name for name in sorted(set(shards.values()))]


def foreign_weights(unexpected: Iterable[str], model: nn.Module) -> list[str]:
    """Return the unexpected names that show that the weights are another model's: entries of a module list that is
    shorter in the model, and weights or biases of modules that have none. Names that the model ignores are no part of
    them."""
    modules = dict(model.named_modules())
    foreign = []
    for name in sorted(unexpected):
        parent, _, last = name.rpartition(".")
        owner = modules.get(parent)
        bare = owner is not None and last in ("weight", "bias") and bool(owner._parameters)
        places = [(name[: at.start()], name[: at.end()]) for at in _NUMBER.finditer(name)]
        if bare or any(isinstance(modules.get(row), nn.ModuleList) and place not in modules for row, place in places):
            foreign.append(name)
    return foreign


@contextmanager
def _harmless(source: str | Path) -> Iterator[None]:
    """Run no code of a checkpoint, and convert every error over its files to a ValueError that names `source`."""
    from transformers import dynamic_module_utils

    with _LOADING:  # another thread's load would reset the timeout
        # parts of a processor do not inherit trust_remote_code; a timeout of 0 skips the prompt for them
        patience, dynamic_module_utils.TIME_OUT_REMOTE_CODE = dynamic_module_utils.TIME_OUT_REMOTE_CODE, 0
        try:
            yield
        except Exception as error:  # readers raise errors of any class over malformed files
            if isinstance(error, ValueError) and str(error).startswith(str(source)):
                raise
            raise ValueError(_error_text(error, source)) from error
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = patience


def _error_text(error: Exception, source: str | Path) -> str:
    reason = " ".join(str(error).split())
    if "custom code" in reason or "execute code" in reason:
        return (
            f"{source}: expected a model class of transformers, got a checkpoint that brings its own code, which is never "
            "run; use a converted checkpoint"
        )
    if not isinstance(error, ValueError | OSError):
        reason = f"{type(error).__name__}: {reason}"
    return f"{source}: expected files that transformers can read, got {reason!r}; check them"
