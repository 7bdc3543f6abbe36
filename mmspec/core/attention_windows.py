"""Attention windows: how far back the layers of a model look, as its config says."""

from __future__ import annotations

from dataclasses import dataclass

_FULL = {"full_attention"}
_WIDTHS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}


@dataclass(frozen=True, slots=True)
class Window:
    """The narrowest window of any layer. tokens: its width.   name: the config field that sets it."""

    tokens: int
    name: str

    def check(self, prompt: int, most: int | None, model: str) -> None:
        """Raises ValueError for a request of which a token would lie outside the window of another.

        prompt: tokens of the longest prompt, padding included.   most: tokens it may generate; None without a limit.
        A window as wide as the whole request is none.
        """
        if not self.hides_nothing(prompt, most):
            asked = "no limit" if most is None else f"{prompt} and {most}"
            raise ValueError(
                f"max_new_tokens: expected prompt and answer to fit the {self.name} of {self.tokens} tokens of {model}, "
                f"got {asked}; a tree of drafts needs the whole context, so shorten them or decode with model.generate"
            )

    def hides_nothing(self, prompt: int, most: int | None) -> bool:
        """Whether every token of such a request lies in the window of every other."""
        return most is not None and prompt + most <= self.tokens


def window_of(config: object) -> Window | None:
    """The narrowest window among the layers of a text config, None where every layer sees the whole context.

    Raises ValueError for layers that are no attention over slots (recurrent, convolution, sparse...).
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        on = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
        return Window(int(on), "sliding_window") if on else None
    unknown = sorted(set(kinds) - _FULL - set(_WIDTHS))
    if unknown:
        raise ValueError(f"model: expected layers of full attention, or with a window, got {', '.join(unknown)}; "
                         "decode it with model.generate")  # fmt: skip
    widths = {_WIDTHS[kind] for kind in kinds if kind in _WIDTHS}
    found = [Window(int(width), name) for name in sorted(widths) if (width := getattr(config, name, None))]
    return min(found, key=lambda window: window.tokens, default=None)
