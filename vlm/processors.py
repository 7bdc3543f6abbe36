"""transformers' logits processors at every node of a draft, each fed the prefix of its own path."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from mmspec.core.draft import Draft, expand_tree

# scores in, scores out: they never look at the prefix
_CONTEXT_FREE = tuple(
    getattr(hf, name)
    for name in (
        "TemperatureLogitsWarper TopPLogitsWarper TopKLogitsWarper TopHLogitsWarper MinPLogitsWarper TypicalLogitsWarper "
        "EpsilonLogitsWarper EtaLogitsWarper LogitNormalization SuppressTokensLogitsProcessor InfNanRemoveLogitsProcessor"
    ).split()
    if hasattr(hf, name)
)
# they keep state from call to call, or run a model of their own: a rolled-back draft would corrupt them
_STATEFUL = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor",
             "WhisperTimeStampLogitsProcessor", "WhisperNoSpeechDetection")  # fmt: skip
# they look at one row's prefix and know nothing of the batch, so nodes of one depth go through them together
_ROW_FREE = tuple(
    getattr(hf, name)
    for name in (
        "RepetitionPenaltyLogitsProcessor NoRepeatNGramLogitsProcessor SequenceBiasLogitsProcessor MinLengthLogitsProcessor "
        "MinNewTokensLengthLogitsProcessor ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor "
        "ExponentialDecayLengthPenalty SuppressTokensAtBeginLogitsProcessor WatermarkLogitsProcessor"
    ).split()
    if hasattr(hf, name)
)


class NodeProcessors:
    """Applies a LogitsProcessorList to all nodes of a draft.

    A processor of a kind not known here, or one that tells rows by their place, sees one node at a time in a batch as
    wide as the request's. Raises ValueError for processors that keep state between calls.
    """

    def __init__(self, processors: LogitsProcessorList, batch: int):
        for processor in processors:
            name = type(processor).__name__
            if name in _STATEFUL:
                raise ValueError(f"logits_processor: {name} keeps state between calls, which a rejected draft would corrupt; "
                                 "remove it or decode with transformers.generate")  # fmt: skip
        self.batch = batch
        self.rows = [LogitsProcessorList([_of_row(p, row) for p in processors]) for row in range(batch)]
        self.free = LogitsProcessorList([p for p in processors if isinstance(p, _CONTEXT_FREE)])
        self.always = LogitsProcessorList([p for p in processors if isinstance(p, hf.SuppressTokensLogitsProcessor)])
        self.one_by_one = not all(isinstance(p, _CONTEXT_FREE + _ROW_FREE) for p in processors)
        self.bound = len(self.free) < len(processors)

    def warp(self, logits: Tensor) -> Tensor:
        """Only the processors that look at no prefix, on logits [..., V]: what a drafter's own law goes through."""
        if not self.free:
            return logits
        flat = logits.reshape(-1, logits.shape[-1])
        return self.free(_no_prefix(flat), flat).view_as(logits)

    def suppress(self, logits: Tensor) -> Tensor:
        """Only the processors that rule tokens out for good, on logits [V]."""
        return self.always(_no_prefix(logits[None]), logits[None])[0]

    def __call__(self, logits: Tensor, draft: Draft, prefix: list[Tensor]) -> Tensor:
        """Scores [B, N, V] from logits [B, N, V]. prefix[b]: int64 [L_b], row b's ids up to, not including, the root."""
        if not self.bound:
            return self.warp(logits)
        batch, tree = draft.batch, draft.tree
        depth, path = expand_tree(tree.depth, batch), expand_tree(tree.path, batch)
        scores = torch.empty_like(logits)
        for row in range(batch):
            for level in range(tree.max_depth + 1):
                node = (depth[row] == level).nonzero()[:, 0]
                for part in node.split(1) if self.one_by_one else (node,):
                    if len(part):
                        drafted = draft.value[row][path[row, part, : level + 1]]
                        ids = torch.cat([prefix[row].expand(len(part), -1), drafted], 1)
                        scores[row, part] = self._one_row(row, ids, logits[row, part])
        return scores

    def _one_row(self, row: int, ids: Tensor, logits: Tensor) -> Tensor:
        if not self.one_by_one:
            return self.rows[row](ids, logits)
        wide = self.batch, -1
        return self.rows[row](ids.expand(*wide).clone(), logits.expand(*wide).clone())[row : row + 1]


def _of_row(processor: object, row: int) -> object:
    """`processor` as row `row` needs it: transformers gives the repetition penalty one padding length per row."""
    skipped = getattr(processor, "prompt_ignore_length", None)
    if not isinstance(skipped, Tensor):
        return processor
    return hf.RepetitionPenaltyLogitsProcessor(processor.penalty, int(skipped[row]))


def _no_prefix(flat: Tensor) -> Tensor:
    return torch.zeros(flat.shape[0], 1, dtype=torch.long, device=flat.device)
