"""Draft model: a smaller model of the same vocabulary."""

from __future__ import annotations

from torch import nn

from mmspec.core.length import FixedLength, LengthControl
from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters.small_model.state import SmallModelState
from mmspec.vlm.target import TextTarget
from mmspec.vlm.unwrapping import unwrapped


class SmallModel:
    """Chain drafts from any smaller transformers model ("Fast Inference from Transformers via Speculative Decoding").

    model: of the target's class, then it sees the whole prompt, images included; or text-only, then it sees the text.
        Its vocabulary must be the target's (a shorter one, as padded sizes differ, never proposes the rest).
    length: FixedLength, ConfidenceStop...; decides before each draw, so sampled drafts keep their law.

    Greedy requests draft the argmax (deterministic); sampled ones draw from the model's law after the request's own
    temperature, top-k, top-p..., which goes on record. Exact with every exact rule for chains. Never proposes ids of
    visual placeholders. Raises ValueError for unsupported models, and when a request's target has another vocabulary,
    class or device.
    """

    name = "small_model"
    from_ids = True

    def __init__(self, model: nn.Module, length: LengthControl | None = None):
        self.parts = take_apart(unwrapped(model))
        if self.parts.plan.stateful:
            raise ValueError(f"model: expected a draft model whose cache forgets what it read ahead, got the recurrent "
                             f"{type(self.parts.model).__name__}; draft with a model of attention alone")  # fmt: skip
        self.length = FixedLength() if length is None else length

    def open(self, target: TextTarget) -> SmallModelState:
        state = self.open_without_prefill(target)
        state.prefill(target)
        return state

    def open_without_prefill(self, target: TextTarget) -> SmallModelState:
        """State of one request whose prompt is read before the first draft."""
        small, large = self.parts, target.parts
        device = small.device
        if small.vocab_size > large.vocab_size:
            raise ValueError(f"model: expected the target's vocabulary of {large.vocab_size}, got {small.vocab_size}; "
                             "draft with a model of the same tokenizer")  # fmt: skip
        if device != target.device:
            raise ValueError(f"model: expected it on {target.device} with the target, got {device}; move it there")
        alike = type(small.model) is type(large.model) and small.placeholders == large.placeholders
        if small.placeholders and not alike:
            raise ValueError(f"model: expected a {type(large.model).__name__} with the target's placeholder ids or a "
                             f"text-only model, got a {type(small.model).__name__}; both read one prompt")  # fmt: skip
        return SmallModelState(self, target)
