"""transformers' top-k and top-p over a wide vocabulary, without sorting it.

A pass over a tree truncates every node's law. Sorting 49,152 scores takes 3 ms a node on a CPU, so the sorts of a tree take as
long as the pass itself. The likeliest tokens are selected instead, and the sort is left to rows that these do not settle.

The tokens that stay are transformers' own. Of equal scores at the cut of top-p, which scores in 16 bits often have, its sort
keeps some in an order that depends on the processor. Here they are those that a stable sort keeps: the highest ids.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

WIDE = 2048  # narrower vocabularies go through transformers' own processors, which cost as little
_CANDIDATES = (128, 1024)  # likeliest tokens among which top-p looks for its cut, in turn
_SPARE = 64  # candidates beyond a top-k, for tokens with the score of the last one
_ROWS = 8  # rows in work at once, so that intermediate results stay small
_MARGIN = 2.0**-18  # a mass so close to top_p may lie on either side by rounding


def with_fast_truncation(processors: Iterable) -> LogitsProcessorList:
    """The processors with transformers' own top-k and top-p replaced by faster ones; all others stay as they are.

    Only objects of these very classes that fill with -Inf are replaced. A top-p right behind a top-k shares its selection.
    """
    found: list = []
    for processor in processors:
        last = found[-1] if found else None
        if type(processor) not in (TopKLogitsWarper, TopPLogitsWarper) or processor.filter_value != -torch.inf:
            found.append(processor)
        elif type(processor) is TopKLogitsWarper:
            found.append(FastTruncation(processor, None))
        elif isinstance(last, FastTruncation) and last.top_p is None:
            found[-1] = FastTruncation(last.top_k, processor)
        else:
            found.append(FastTruncation(None, processor))
    return LogitsProcessorList(found)


class FastTruncation:
    """A top-k, a top-p, or the first followed by the second.

    Args:
        top_k: transformers' processor, None for no top-k.
        top_p: transformers' processor, None for no top-p.
    """

    def __init__(self, top_k: TopKLogitsWarper | None, top_p: TopPLogitsWarper | None):
        self.top_k, self.top_p = top_k, top_p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores float32 [R, V] with -Inf at the tokens that were cut. input_ids: not read."""
        vocab = scores.shape[-1]
        sizes = _CANDIDATES if self.top_k is None else (self.top_k.top_k + _SPARE,)
        sizes = [size for size in sizes if size <= vocab // 4]
        if not scores.is_cpu or scores.dtype != torch.float32 or vocab < WIDE or not sizes:
            for processor in (self.top_k, self.top_p):
                scores = scores if processor is None else processor(input_ids, scores)
            return scores
        kept = torch.full_like(scores, -torch.inf)
        for start in range(0, len(scores), _ROWS):
            rows = slice(start, start + _ROWS)
            left = self._select(scores[rows], kept[rows], sizes[0]) + start
            for size in sizes[1:]:
                if len(left):
                    some = torch.full((len(left), vocab), -torch.inf)
                    unsettled = self._select(scores[left], some, size)
                    kept[left] = some
                    left = left[unsettled]
            for row in left.tolist():
                kept[row] = self._sort(scores[row])
        return kept

    def _select(self, scores: Tensor, kept: Tensor, size: int) -> Tensor:
        """Writes the scores that stay into `kept`, which holds -Inf; returns the rows int64 [n] that need more candidates.

        A row is settled by its `size` likeliest tokens where the cut lies before their end, and not within rounding of
        another place.
        """
        value, token = scores.topk(size + 1, -1)
        settled = value[:, 0].isfinite()
        if self.top_k is None:
            law, inside = scores.softmax(-1), value > -torch.inf
            law = law.gather(-1, token) / law.sum(-1, keepdim=True, dtype=torch.float64)
        else:  # which keeps every token with the score of the last
            inside = value >= value[:, self.top_k.top_k - 1, None]
            settled &= ~inside[:, -1]
            law = value.masked_fill(~inside, -torch.inf).double().softmax(-1) if self.top_p is not None else None
        if law is not None:
            before, edge = law.cumsum(-1) - law, self.top_p.top_p
            settled &= ((before - edge).abs() > _MARGIN).all(-1)
            inside &= (before < edge).index_fill_(-1, torch.arange(self.top_p.min_tokens_to_keep), True)
            settled &= ~inside[:, -1]
        kept.scatter_(-1, token, torch.where(inside & settled[:, None], value, -torch.inf))
        if law is not None:
            self._order_equals(scores, kept, value, inside.sum(-1), settled)
        return settled.logical_not_().nonzero()[:, 0]

    def _order_equals(self, scores: Tensor, kept: Tensor, value: Tensor, number: Tensor, settled: Tensor) -> None:
        """Keeps the highest ids where the cut lies between equal scores. number: int64 [R], tokens that stay."""
        last = value.gather(-1, number[:, None].clamp(min=1) - 1)
        split = settled & (value.gather(-1, number[:, None].clamp(max=value.shape[-1] - 1)) == last)[:, 0]
        for row in split.nonzero()[:, 0].tolist():
            edge = last[row]
            equal = (scores[row] == edge).nonzero()[:, 0]
            stay = int(number[row]) - int((value[row] > edge).sum())
            kept[row, equal[: len(equal) - stay]] = -torch.inf
            kept[row, equal[len(equal) - stay :]] = edge

    def _sort(self, scores: Tensor) -> Tensor:
        """The result of a whole sort for one row [V], as transformers computes it."""
        if self.top_k is not None:
            scores = self.top_k(None, scores[None])[0]
        if self.top_p is None:
            return scores
        ordered, token = scores.sort(dim=-1, stable=True)
        cut = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p.top_p
        cut[-self.top_p.min_tokens_to_keep :] = False
        return scores.masked_fill(cut.scatter(-1, token, cut), -torch.inf)
