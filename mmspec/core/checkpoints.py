"""Models, processors and tokenizers of transformers: the one place that loads them.

Nothing that came with a checkpoint is run, weights are safetensors, and a weight that the files lack is an error: it would
be a random one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from mmspec.core.loading import some

_LOADING = RLock()
_NUMBER = re.compile(r"\.\d+(?=\.)")


def load_model(kind: type, source: str | Path, *, local: bool = True, dtype: Any = "auto", **how: Any) -> Any:
    """The model of a class of transformers saved in a folder, or on the hub with `local=False`, in eval mode.

    kind: a model class, or an Auto class.   dtype: "auto" for the file's.   how: what else `from_pretrained` takes; with
    `state_dict`, the weights are those and `source` only names them.
    Raises ValueError, one sentence with the source, where code of the checkpoint would have to run, a file is damaged or
    missing, the files lack weights that nothing ties, and where they hold what shows that they are those of another model:
    layers or biases that the config leaves out. Other weights that the class has no place for are left where they are.
    """
    where = None if "state_dict" in how else source
    with _harmless(source):
        model, told = kind.from_pretrained(
            where, dtype=dtype, local_files_only=local, trust_remote_code=False, use_safetensors=True,
            ignore_mismatched_sizes=True, output_loading_info=True, **how,
        )  # fmt: skip
    # how many batches were seen in training is nothing that a model computes with
    if lacking := sorted(name for name in told["missing_keys"] if not name.endswith("num_batches_tracked")):
        raise ValueError(f"{source}: expected all weights of a {type(model).__name__}, got no {some(lacking)}, which would be "
                         "random; use the whole checkpoint")  # fmt: skip
    if misfits := sorted(told["mismatched_keys"]):
        names = [f"{name} of shape {tuple(got)} instead of {tuple(wanted)}" for name, got, wanted in misfits]
        raise ValueError(f"{source}: expected weights in the shapes of the config, got {some(names)}; use the config the "
                         "checkpoint was made with")  # fmt: skip
    if foreign := strangers(told["unexpected_keys"], list(model.state_dict())):
        raise ValueError(f"{source}: expected the weights of the {type(model).__name__} that its config describes, got "
                         f"{some(foreign)} too; use the config the checkpoint was made with")  # fmt: skip
    return model.eval()


def load_part(kind: type, source: str | Path, *, local: bool = True) -> Any:
    """A config, generation config, tokenizer or processor of transformers, as `load_model` finds models.

    Raises ValueError, one sentence with the source, where code of the checkpoint would have to run and where a file is
    damaged or missing.
    """
    from transformers import GenerationConfig

    with _harmless(source):
        if issubclass(kind, GenerationConfig):  # it has no code, and keeps what it does not know as a setting
            return kind.from_pretrained(source, local_files_only=local)
        return kind.from_pretrained(source, local_files_only=local, trust_remote_code=False)


def strangers(unexpected: set[str], own: list[str]) -> list[str]:
    """Names of a file that show that it is another model's: those of a layer beyond the last of the model, and biases of
    modules that have none there. unexpected: names the class does not say are to be ignored.   own: the model's names."""
    layers = {_NUMBER.sub(".*", name) for name in own if _NUMBER.search(name)}
    modules = {name.rpartition(".")[0] for name in own}
    return sorted(
        name
        for name in unexpected
        if (_NUMBER.search(name) and _NUMBER.sub(".*", name) in layers)
        or (name.endswith((".bias", ".weight")) and name.rpartition(".")[0] in modules)
    )


@contextmanager
def _harmless(source: str | Path) -> Iterator[None]:
    """Nobody is asked whether code may run, and whatever goes wrong over the files of `source` is a ValueError that names
    it."""
    from transformers import dynamic_module_utils

    # a processor's parts are loaded without the answer that was given for it; with no time to wait, none is asked for
    _LOADING.acquire()  # another thread's load would set the time back
    patience, dynamic_module_utils.TIME_OUT_REMOTE_CODE = dynamic_module_utils.TIME_OUT_REMOTE_CODE, 0
    try:
        yield
    except Exception as error:  # no end to what readers raise over files of another shape
        reason = " ".join(str(error).split()) or type(error).__name__
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        if "custom code" in reason or "execute code" in reason:
            raise ValueError(f"{source}: expected a model that transformers has the code of, got one that brings its own, "
                             "which is never run; use a converted checkpoint") from error  # fmt: skip
        told = reason if str(source) in reason else f"{source}: {kind}{reason}"
        raise ValueError(told) from error
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = patience
        _LOADING.release()
