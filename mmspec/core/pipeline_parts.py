"""Methods of a pipeline given as text, and the parts that a text names: "cspd:gamma=8@runs/draft"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmspec.core.fingerprint import made_once, modules_of
from mmspec.methods import Domain, MethodCall, parse

Load = Callable[[str, Any], Any]  # (a folder, a hub id or "zoo:NAME", the pipeline) -> the part


def read_part(pipe: Any, name: str, source: str) -> Any:
    """Return a saved part, which is read once per pipeline.

    Args:
        pipe: The pipeline. Its `loaders` are the readers of its parts by name.
        name: The name of the part.
        source: A folder, a hub id or "zoo:NAME".

    Raises:
        ValueError: The pipeline has no such part, or its reader fails.
    """
    if name not in pipe.loaders:
        known = ", ".join(pipe.loaders) or "none"
        raise ValueError(f"expected one of the parts that a text can name ({known}), got {name!r}; make it in Python")
    return made_once(pipe, (name, source), lambda: pipe.loaders[name](source, pipe), *modules_of(pipe.model))


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """The parts of a method that was requested as text.

    Attributes:
        pipe: The pipeline.
        call: The parsed text.
        own: Factories of the parts that the pipeline has itself.
    """

    pipe: Any
    call: MethodCall
    own: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The pipeline's model."""
        return self.pipe.model

    def part(self, name: str, source: str | None = None) -> Any:
        """Return a part, see `MethodParts`.

        Raises:
            ValueError: The text names no weights, or `read_part` fails.
        """
        if source is None and name in self.own:
            return self.own[name]()
        source = source or self.call.weights
        if source is None:
            raise ValueError(f"expected weights of {name!r} behind @, as in '{self.call}@FOLDER', got none; name a folder, a "
                             "hub id or zoo:NAME")  # fmt: skip
        return read_part(self.pipe, name, source)


def decoding_from_text(
    decoding: Any, pipe: Any, domain: Domain, models: str, own: Mapping[str, Callable[[], Any]] | None = None
) -> Any:
    """Return a decoding object as it is, or the decoding of a text such as "sjd:window=64".

    Args:
        decoding: The argument of a call.
        pipe: The pipeline that decodes.
        domain: The domain of the name.
        models: The kind of the pipeline's model, see `mmspec.methods.methods`.
        own: The `own` of `PipelineParts`.

    Raises:
        ValueError: The text is not a decoding, see `parse`; or a part is missing.
    """
    if not isinstance(decoding, str):
        return decoding
    call = parse(decoding, domain, "decoding", models=models)
    return call.make(PipelineParts(pipe, call, own or {}))


def fitted_pipeline(made: Any, kind: type, pipe: Any) -> Any:
    """Return a smaller pipeline that drafts for another, moved to its device and precision.

    Args:
        made: The part that was read.
        kind: The class that it must have.
        pipe: The pipeline that it drafts for.

    Raises:
        ValueError: The part is of another class.
    """
    if not isinstance(made, kind):
        raise ValueError(
            f"expected a {kind.__name__} behind @, got {type(made).__name__}; name another folder or model"
        )
    like = next(weight for module in modules_of(pipe.model) for weight in module.parameters())
    return made.to(device=like.device, dtype=like.dtype)
