"""Models, processors and tokenizers of transformers: the one place that loads them.

Nothing that came with a checkpoint is run, weights are safetensors, and a weight that the files lack is an error: it would
be a random one.
"""

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
_MOST_A_BYTE, _SPARE = 16, 10**6  # numbers a byte of weights can stand for, and that need none: those that are tied
_NUMBER = re.compile(r"\.\d+(?=\.)")


def load_model(kind: type, source: str | Path, *, local: bool = True, dtype: Any = "auto", **how: Any) -> Any:
    """The model of a class of transformers saved in a folder, or on the hub with `local=False`, in eval mode.

    kind: a model class, or an Auto class.   dtype: "auto" for the file's.   how: what else `from_pretrained` takes; with
    `state_dict` and `config`, the model is theirs and `source` only names them.
    Raises ValueError, one sentence with the source, where code of the checkpoint would have to run, a file is damaged or
    missing, the files lack weights that nothing ties, and where they hold what shows that they are those of another model:
    layers or biases that the config leaves out. Other weights that the class has no place for are left where they are.
    """
    state, where = how.get("state_dict"), source
    with _harmless(source):
        if state is not None:
            where = None
            _check_sizes(kind, how["config"], len(state), sum(value.nbytes for value in state.values()), source)
        elif local:
            _check_folder(kind, Path(source))
        model, told = kind.from_pretrained(
            where, dtype=dtype, local_files_only=local, trust_remote_code=False, use_safetensors=True,
            ignore_mismatched_sizes=True, output_loading_info=True, **how,
        )  # fmt: skip
    # how many batches were seen in training is nothing that a model computes with
    if lacking := sorted(name for name in told["missing_keys"] if not name.endswith("num_batches_tracked")):
        raise ValueError(f"{source}: expected all weights of a {type(model).__name__}, got no {abbreviated(lacking)}, "
                         "which would be random; use the whole checkpoint")  # fmt: skip
    if misfits := sorted(told["mismatched_keys"]):
        names = [f"{name} of shape {tuple(got)} instead of {tuple(wanted)}" for name, got, wanted in misfits]
        raise ValueError(f"{source}: expected weights in the shapes of the config, got {abbreviated(names)}; use the "
                         "config the checkpoint was made with")  # fmt: skip
    if foreign := foreign_weights(told["unexpected_keys"], model):
        raise ValueError(f"{source}: expected the weights of the {type(model).__name__} that its config describes, got "
                         f"{abbreviated(foreign)} too; use the config the checkpoint was made with")  # fmt: skip
    return model.eval()


def load_part(kind: type, source: str | Path, *, local: bool = True, **how: Any) -> Any:
    """A config, generation config, tokenizer or processor of transformers, as `load_model` finds models.

    how: what else `from_pretrained` takes, such as the name of a GGUF file.
    Raises ValueError, one sentence with the source, where code of the checkpoint would have to run and where a file is
    damaged or missing.
    """
    from transformers import GenerationConfig

    with _harmless(Path(source, how["gguf_file"]) if "gguf_file" in how else source):
        if issubclass(kind, GenerationConfig):  # it has no code, and keeps what it does not know as a setting
            return kind.from_pretrained(source, local_files_only=local, **how)
        return kind.from_pretrained(source, local_files_only=local, trust_remote_code=False, **how)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a model to a precision, as `from_pretrained(dtype=...)` loads it: its rotary frequencies keep theirs.

    `Module.to` alone would round the frequencies too, and in bfloat16 the positions of a long prompt would run into one
    another.

    Args:
        model: Any model of transformers.
        dtype: The precision of the weights.

    Returns:
        The same model.
    """
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
    """Raises ValueError where a config asks for far more than `tensors` tensors of `held` bytes together: what the files lack
    would take memory first, and then be refused."""

    def make() -> Any:
        return kind.from_config(config, trust_remote_code=False) if hasattr(kind, "from_config") else kind(config)

    asked = sum(parameter.numel() for parameter in sketch(make, tensors, source).parameters())
    if asked > _MOST_A_BYTE * held + _SPARE:
        raise ValueError(f"{source}: expected the weights of its config, {asked:,} numbers, got {held:,} bytes; use the "
                         "config the checkpoint was made with")  # fmt: skip


def _check_folder(kind: type, folder: Path) -> None:
    """`_check_sizes` for a model's folder."""
    from transformers import AutoConfig

    if files := weight_files(folder):  # where there are none, transformers says which are missing
        tensors, held = sum(len(read_shapes(file)) for file in files), sum(file.stat().st_size for file in files)
        config = load_part(getattr(kind, "config_class", None) or AutoConfig, folder)
        _check_sizes(kind, config, tensors, held, folder)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model's folder."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole] if whole.is_file() else []
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ValueError(f"{index}: expected a weight_map from tensors to files, got {shards!r:.60}; fetch it again")
    return [folder / name for name in sorted(set(shards.values()))]


def foreign_weights(unexpected: Iterable[str], model: nn.Module) -> list[str]:
    """Names of a file that show that it is another model's: those in a list of modules that is shorter here, and weights and
    biases of modules that have none. unexpected: names the model has no place for and does not say are to be ignored."""
    modules = dict(model.named_modules())
    found = []
    for name in sorted(unexpected):
        parent, _, last = name.rpartition(".")
        owner = modules.get(parent)
        bare = owner is not None and last in ("weight", "bias") and bool(owner._parameters)
        places = [(name[: at.start()], name[: at.end()]) for at in _NUMBER.finditer(name)]
        if bare or any(isinstance(modules.get(row), nn.ModuleList) and place not in modules for row, place in places):
            found.append(name)
    return found


@contextmanager
def _harmless(source: str | Path) -> Iterator[None]:
    """Nobody is asked whether code may run, and whatever goes wrong over the files of `source` is a ValueError that names
    it."""
    from transformers import dynamic_module_utils

    with _LOADING:  # another thread's load would set the time back
        # a processor's parts are loaded without the answer given for it; with no time to wait, none is asked for
        patience, dynamic_module_utils.TIME_OUT_REMOTE_CODE = dynamic_module_utils.TIME_OUT_REMOTE_CODE, 0
        try:
            yield
        except Exception as error:  # no end to what readers raise over files of another shape
            if isinstance(error, ValueError) and str(error).startswith(str(source)):
                raise
            raise ValueError(_error_text(error, source)) from error
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = patience


def _error_text(error: Exception, source: str | Path) -> str:
    """The sentence for what went wrong over the files of `source`."""
    reason = " ".join(str(error).split())
    if "custom code" in reason or "execute code" in reason:
        return (f"{source}: expected a model that transformers has the code of, got one that brings its own, which is never "
                "run; use a converted checkpoint")  # fmt: skip
    if not isinstance(error, ValueError | OSError):
        reason = f"{type(error).__name__}: {reason}"
    return f"{source}: expected files that transformers can read, got {reason!r}; check them"
