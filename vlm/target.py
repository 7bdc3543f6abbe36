"""The target's side of one text request over a transformers model: all of its state, none of it on modules."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from mmspec.core.batch_target import NOT_FINITE, BatchTarget
from mmspec.core.cache import SlotCache
from mmspec.core.draft import Draft, expand_tree, root_only
from mmspec.core.evidence import Evidence, neutralised
from mmspec.core.layers.masks import masks
from mmspec.core.rope import StepRope, length_dependent
from mmspec.core.verdict import Verdict, run_of
from mmspec.vlm.architectures import Parts
from mmspec.vlm.capture import Level, watch
from mmspec.vlm.mixers import drafting
from mmspec.vlm.processors import NodeProcessors
from mmspec.vlm.prompts import first_inputs, first_positions, lasting, wrapped_logits
from mmspec.vlm.requests import table_of_positions
from mmspec.vlm.stopping import Stopping

_FAILURES = {
    1: NOT_FINITE,
    2: "expected a token to draw, got all of them ruled out by the logits processors",
}
_ROOM = 512  # slots allocated for generated tokens before the pool has to double


class TextTarget(BatchTarget):
    """A batch of prompts being continued by a causal (vision-)language model.

    tokens: per row, the generated ids.   next_position: int64 [B] or [A, B] (A axes of M-RoPE), position of the root.
    cache.lengths: rows of the cache. These three advance together but none is derived from another.
    prompt_positions: int64 [..., B or 1, P], as `next_position`.
    prompt_embeds, prompt_hidden: float [B, P, H], the merged input embeddings and the last hidden states of the prompt;
        with `levels`, prompt_hidden and the evidence's hidden hold the states at those levels (see `watch`), side by side.
    inputs: the prompt as the caller gave it, see `prompts.py`; None when it is not known.
    """

    def __init__(
        self,
        parts: Parts,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        stopping: StoppingCriteriaList,
        *,
        greedy: bool,
        pad: int,
        model_kwargs: dict,
        inputs: dict | None = None,
        listener: object | None = None,
        keep_scores: bool = False,
        levels: tuple[Level, ...] | None = None,
    ):
        super().__init__(input_ids.shape[0])
        self.parts, self.prompt, self.greedy, self.pad = parts, input_ids, greedy, pad
        self.processors = NodeProcessors(processors, self.batch)
        self.stopping = Stopping(stopping, input_ids)
        self.model_kwargs, self.inputs = model_kwargs, inputs
        self.listener, self.keep_scores, self.levels = listener, keep_scores, levels
        room = min(self.stopping.most or _ROOM, _ROOM)
        self.cache = SlotCache(parts.plan, input_ids.shape[1] + room + 64)
        self.tokens: list[list[int]] = [[] for _ in range(self.batch)]
        self.scores: list[list[Tensor]] = [[] for _ in range(self.batch)]
        self.logits: list[list[Tensor]] = [[] for _ in range(self.batch)]
        self.pending = input_ids[:, -1]
        self.padding: Tensor | None = None
        self.next_position = self.prompt_positions = self.prompt_embeds = self.prompt_hidden = None
        self._raw = self._barren = None
        self.table, self._lasting = table_of_positions(parts), {}
        turning = length_dependent(parts.decoder)
        self.rope = StepRope(turning) if turning else None
        self._longest = self._last = (
            0  # tokens of the longest prompt, and the largest position of a prompt's last token
        )

    @property
    def emitted(self) -> list[int]:
        return [len(t) for t in self.tokens]

    @property
    def most(self) -> int | None:
        """Tokens a row may generate; None without a limit."""
        return self.stopping.most

    @property
    def room(self) -> list[int] | None:
        return None if self.most is None else [self.most - count for count in self.emitted]

    @property
    def device(self) -> torch.device:
        return self.prompt.device

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        mask = self.model_kwargs.get("attention_mask")
        inputs = first_inputs(self.parts, self.prompt, self.model_kwargs, self.cache)
        self._lasting = lasting(self.parts.plan, inputs)
        positions = first_positions(inputs, self.prompt, self.model_kwargs["position_ids"])
        if self.rope is not None:
            self._longest = int(_rotary(positions).max()) + 1
        with self._rotated(), watch(self.parts.decoder, self.levels) as seen:
            logits = self.parts.model(**inputs, return_dict=True).logits[:, -1:]
        self.prompt_embeds = seen.embeds
        self.prompt_hidden = seen.hidden if self.levels is None else seen.levels
        self.prompt_positions = positions
        self.next_position = positions[..., -1].expand(*positions.shape[:-2], self.batch)
        if self.rope is not None:
            self._last = int(_rotary(positions[..., -1:]).max())
        # the last prompt token is the root of round 0, so its slot is left for the commit to count
        self.cache.advance(self.prompt.shape[1] - 1)
        if mask is not None and mask.dim() == 2:
            self.padding = mask == 0
            self.cache.hidden = self.padding
        draft = root_only(self.pending)
        return draft, self._evidence(draft, logits, self.prompt_hidden[:, -1:])

    @torch.no_grad()
    def score(self, draft: Draft) -> Evidence:
        depth = expand_tree(draft.tree.depth, self.batch)
        tree, dtype = draft.tree, self.parts.embed.weight.dtype
        inputs = dict(
            input_ids=draft.value,
            position_ids=self._places(depth),
            attention_mask=masks(self.parts.plan, self.cache, tree.ancestor, depth, tree.max_depth, dtype),
            past_key_values=self.cache,
            use_cache=True,
        )
        inputs |= {name: value.expand(-1, tree.nodes, *value.shape[2:]) for name, value in self._lasting.items()}
        with self._rotated(depth, tree.max_depth), drafting(self.parts.mixers, self.cache, tree):
            logits, hidden = self._pass(inputs)
        return self._evidence(draft, logits, hidden)

    def _pass(self, inputs: dict) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of one pass."""
        if self.parts.direct and self.levels is None:
            hidden = self.parts.decoder(**inputs).last_hidden_state
            return self.parts.head(hidden), hidden
        with watch(self.parts.decoder, self.levels) as seen:
            if self.parts.direct:
                logits = self.parts.head(self.parts.decoder(**inputs).last_hidden_state)
            else:
                logits = wrapped_logits(self.parts, inputs)
        return logits, seen.hidden if self.levels is None else seen.levels

    def _rotated(self, depth: Tensor | None = None, deepest: int = 0) -> AbstractContextManager:
        """Passes inside see the rotary embeddings of plain decoding, where these depend on the sequence's length; there all
        rows take their steps together. depth: int64 [B, N] of a draft; None for the prompt."""
        if self.rope is None:
            return nullcontext()
        if depth is None:
            return self.rope.at(self._longest)
        step = max(self.emitted) + deepest
        if max(self._longest, self._last + 1 + step) < self.rope.switch:
            return self.rope.at(self._longest)
        emitted = torch.tensor(self.emitted, device=depth.device)[:, None]
        return self.rope.at((self._last + 1 + emitted + depth).clamp_min(self._longest))

    def _places(self, depth: Tensor) -> Tensor:
        """Positions of a draft's nodes. Nodes that no row can keep may lie beyond a learned table's last one."""
        places = self.next_position[..., None] + depth
        return places if self.table is None else places.clamp(max=self.table - 1)

    def _evidence(self, draft: Draft, logits: Tensor, hidden: Tensor) -> Evidence:
        logits, bad = neutralised(logits.float())
        scores = self.processors(logits, draft, self._prefixes() if self.processors.bound else [])
        if not self.greedy:
            scores, bad = self._drawable(scores, bad)
        self._raw = logits if self.keep_scores else None
        return Evidence(scores=scores, greedy=self.greedy, hidden=hidden, bad=bad)

    def _drawable(self, scores: Tensor, bad: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scores with nodes neutralised, and counted as bad, from which nothing can be drawn: processors left no token."""
        scores, barren = neutralised(scores)
        if barren is None or bad is None:
            self._barren = barren
            return scores, bad if barren is None else barren
        self._barren = barren & ~bad
        return scores, bad | barren

    def _prefixes(self) -> list[Tensor]:
        """Ids of every row before the root, laid out as `transformers.generate` holds them."""
        rows = []
        for prompt, tokens in zip(self.prompt, self.tokens, strict=True):
            if tokens:
                rows.append(torch.cat([prompt, torch.tensor(tokens[:-1], dtype=prompt.dtype, device=prompt.device)]))
            else:
                rows.append(prompt[:-1])
        return rows

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        failure = evidence.bad
        if failure is not None and self._barren is not None:
            failure = failure.long() + self._barren
        accepted = self.take_paths(verdict, failure, run_of(draft, verdict)[0])
        if self.keep_scores:
            self._record(evidence)
        self.cache.commit(self.paths)
        self.next_position = self.next_position + self.steps
        self.pending = verdict.correction
        return accepted

    def take(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        """Appends a run to a live row, see `BatchTarget.take`.   failure: which of _FAILURES ended it, 0 for none."""
        kept, stop = self.stopping.cut(row, self.tokens[row], run) if run else ([], False)
        self.tokens[row] += kept
        self.live[row] = not stop
        if failure and not stop:
            self.fail(row, _FAILURES[failure], f"{len(self.tokens[row])} generated tokens")
        accepted = min(len(kept), depth)
        if self.listener is not None:
            self.listener(row, kept, accepted)
        return accepted

    def _record(self, evidence: Evidence) -> None:
        for row, path in enumerate(self.paths):
            for node in path[: len(self.tokens[row]) - len(self.scores[row])]:
                self.scores[row].append(evidence.scores[row, node])
                self.logits[row].append(self._raw[row, node])


def _rotary(positions: Tensor) -> Tensor:
    """Positions that reach rotary tables: of the four axes of M-RoPE the first is the text's, which only masks read."""
    return positions[1:] if positions.dim() == 3 and positions.shape[0] == 4 else positions
