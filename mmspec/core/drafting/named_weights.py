"""Methods of a pipeline as text, and the parts that a text names: "cspd:gamma=8@runs/draft"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmspec.core.layers.fingerprint import made_once, modules_of
from mmspec.methods import Domain, MethodCall, parse

Load = Callable[[str, Any], Any]  # (a folder, a hub id or "zoo:NAME", the pipeline) -> the part


def read_part(pipe: Any, name: str, source: str) -> Any:
    """Read a part once per pipeline by its `loaders`. `source` is a folder, a hub id or "zoo:NAME"."""
    if name not in pipe.loaders:
        known = ", ".join(pipe.loaders) or "none"
        raise ValueError(f"expected one of the parts that a text can name ({known}), got {name!r}; make it in Python")
    return made_once(pipe, (name, source), lambda: pipe.loaders[name](source, pipe), *modules_of(pipe.model))


@dataclass(frozen=True, slots=True)
class PipelineParts:
    pipe: Any
    call: MethodCall
    own: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # factories of the pipeline's own parts

    @property
    def model(self) -> Any:
        return self.pipe.model

    def part(self, name: str, source: str | None = None) -> Any:
        """See `MethodParts`."""
        if source is None and name in self.own:
            return self.own[name]()
        source = source or self.call.weights
        if source is None:
            raise ValueError(
                f"expected weights of {name!r} behind @, as in '{self.call}@FOLDER', got none; name a folder, a "
                "hub id or zoo:NAME"
            )
        return read_part(self.pipe, name, source)


def decoding_from_text(
    decoding: Any, pipe: Any, domain: Domain, models: str, own: Mapping[str, Callable[[], Any]] | None = None
) -> Any:
    """Read a text such as "sjd:window=64"; a decoding object stays. `models` is the kind of model in
    `mmspec.methods.methods`."""
    if not isinstance(decoding, str):
        return decoding
    call = parse(decoding, domain, "decoding", models=models)
    return call.make(PipelineParts(pipe, call, own or {}))
