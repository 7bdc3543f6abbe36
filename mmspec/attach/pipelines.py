"""Pipelines of this package: every call of theirs goes through `start`, which is given a decoding."""

from __future__ import annotations

from typing import Any

from mmspec.attach.handle import Handle
from mmspec.core.loop import Decoding


class OnPipeline(Handle):
    """In front of `pipe.start`. A call that names a decoding or a rule has what it names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Decoding:
        if kwargs.get("decoding") is None:
            kwargs["decoding"] = self.drafter
        if self.rule is not None and kwargs.get("rule") is None:
            kwargs["rule"] = self.rule
        try:
            run = self.original(*args, **kwargs)
            if self.exact and not run.rule.exact:
                raise ValueError(f"decoding: expected one that keeps the law, got rule {run.rule.name!r}; enable with "
                                 "mode='relaxed'")  # fmt: skip
        except ValueError as error:
            self._refuse(error)
            raise
        self._follow(run)
        return run
