"""Attention windows of models whose passes take one mask for all layers."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.layers.plan import plan_of


@dataclass(frozen=True, slots=True)
class Window:
    """The narrowest window of any layer. tokens: its width.   name: the config field that sets it."""

    tokens: int
    name: str

    def hides_nothing(self, prompt: int, most: int | None) -> bool:
        """Whether every token of such a request lies in the window of every other. most: None without a limit."""
        return most is not None and prompt + most <= self.tokens


def window_of(config: object) -> Window | None:
    """The narrowest window among the layers of a text config, None where every layer sees the whole context.

    Raises ValueError for layers that are no attention over slots (recurrent, convolution, sparse...).
    """
    plan = plan_of(config)
    others = sorted({layer.kind for layer in plan.layers if not layer.slots or layer.states})
    if others:
        raise ValueError(f"model: expected layers of full attention, or with a window, got {', '.join(others)}; "
                         "decode it with model.generate")  # fmt: skip
    return next((Window(layer.width, layer.field) for layer in plan.narrow), None)
