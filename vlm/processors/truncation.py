"""Top-k and top-p of transformers over a wide vocabulary, without sorting it.

Sorting 49,152 scores takes 3 ms per node on a CPU, so the sorts of a tree would take as long as the pass itself. The
most likely tokens are selected instead, and only rows that they do not decide are sorted. The tokens are those of
transformers, except for ties at the cut of top-p, which are frequent in 16 bits. The sort of transformers breaks them
in an order that depends on the CPU; here the highest ids remain, as in a stable sort."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

WIDE = 2048  # for smaller vocabularies the processors of transformers are as fast
_CANDIDATES = (128, 1024)  # numbers of most likely tokens among which the cut of top-p is searched, in turn
_SPARE = 64  # candidates beyond a top-k, for tokens that tie with its last token
_ROWS = 8  # rows processed at once, which limits intermediate results
_MARGIN = 2.0**-18  # a mass this close to top_p may be on either side because of rounding


def with_fast_truncation(processors: Iterable) -> LogitsProcessorList:
    """Subclasses and fills other than -Inf are not replaced. A top-p directly after a top-k uses its selection."""
    result: list = []
    for processor in processors:
        last = result[-1] if result else None
        if type(processor) not in (TopKLogitsWarper, TopPLogitsWarper) or processor.filter_value != -torch.inf:
            result.append(processor)
        elif type(processor) is TopKLogitsWarper:
            result.append(FastTruncation(processor, None))
        elif isinstance(last, FastTruncation) and last.top_p is None:
            result[-1] = FastTruncation(last.top_k, processor)
        else:
            result.append(FastTruncation(None, processor))
    return LogitsProcessorList(result)


class FastTruncation:
    def __init__(self, top_k: TopKLogitsWarper | None, top_p: TopPLogitsWarper | None):
        self.top_k, self.top_p = top_k, top_p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores float32 [R, V] with -Inf for the removed tokens; `input_ids` are not read."""
        vocab = scores.shape[-1]
        sizes = _CANDIDATES if self.top_k is None else (self.top_k.top_k + _SPARE,)
        sizes = [size for size in sizes if size <= vocab // 4]
        if not scores.is_cpu or scores.dtype != torch.float32 or vocab < WIDE or not sizes:
            for processor in (self.top_k, self.top_p):
                scores = scores if processor is None else processor(input_ids, scores)
            return scores
        result = torch.full_like(scores, -torch.inf)
        for start in range(0, len(scores), _ROWS):
            rows = slice(start, start + _ROWS)
            left = self._select(scores[rows], result[rows], sizes[0]) + start
            for size in sizes[1:]:
                if len(left):
                    some = torch.full((len(left), vocab), -torch.inf)
                    unsettled = self._select(scores[left], some, size)
                    result[left] = some
                    left = left[unsettled]
            for row in left.tolist():
                result[row] = self._sort(scores[row])
        return result

    def _select(self, scores: Tensor, result: Tensor, size: int) -> Tensor:
        """Write the remaining scores into `result`, which holds -Inf; return the undecided rows, int64 [n]. The `size`
        most likely tokens decide a row if the cut lies before the last of them, and no other cut is within rounding."""
        value, token = scores.topk(size + 1, -1)
        settled = value[:, 0].isfinite()
        if self.top_k is None:
            law, inside = scores.softmax(-1), value > -torch.inf
            law = law.gather(-1, token) / law.sum(-1, keepdim=True, dtype=torch.float64)
        else:  # top-k also accepts every token that ties with its last token
            inside = value >= value[:, self.top_k.top_k - 1, None]
            settled &= ~inside[:, -1]
            law = value.masked_fill(~inside, -torch.inf).double().softmax(-1) if self.top_p is not None else None
        if law is not None:
            before, edge = law.cumsum(-1) - law, self.top_p.top_p
            settled &= ((before - edge).abs() > _MARGIN).all(-1)
            inside &= (before < edge).index_fill_(-1, torch.arange(self.top_p.min_tokens_to_keep), True)
            settled &= ~inside[:, -1]
        result.scatter_(-1, token, torch.where(inside & settled[:, None], value, -torch.inf))
        if law is not None:
            self._order_equals(scores, result, value, inside.sum(-1), settled)
        return settled.logical_not_().nonzero()[:, 0]

    def _order_equals(self, scores: Tensor, result: Tensor, value: Tensor, number: Tensor, settled: Tensor) -> None:
        """Select the highest ids if the cut lies between equal scores; `number` int64 [R] tokens remain in each row."""
        last = value.gather(-1, number[:, None].clamp(min=1) - 1)
        split = settled & (value.gather(-1, number[:, None].clamp(max=value.shape[-1] - 1)) == last)[:, 0]
        for row in split.nonzero()[:, 0].tolist():
            edge = last[row]
            equal = (scores[row] == edge).nonzero()[:, 0]
            stay = int(number[row]) - int((value[row] > edge).sum())
            result[row, equal[: len(equal) - stay]] = -torch.inf
            result[row, equal[len(equal) - stay :]] = edge

    def _sort(self, scores: Tensor) -> Tensor:
        if self.top_k is not None:
            scores = self.top_k(None, scores[None])[0]
        if self.top_p is None:
            return scores
        ordered, token = scores.sort(dim=-1, stable=True)
        cut = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p.top_p
        cut[-self.top_p.min_tokens_to_keep :] = False
        return scores.masked_fill(cut.scatter(-1, token, cut), -torch.inf)
