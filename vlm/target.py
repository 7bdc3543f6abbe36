"""The target of a text request over a transformers model: all state of the request, none of it stored on modules."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext

import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList, StoppingCriteriaList

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import attention_masks
from mmspec.core.layers.rope import StepRope
from mmspec.core.layers.strict import over_prompt, single_steps
from mmspec.core.length.pass_costs import PassCosts, pass_costs_of
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Draft, Evidence, Verdict, neutralise_bad_scores, root_only, run_of
from mmspec.kernels.small_linear import measured_so_far
from mmspec.vlm.architectures import Parts
from mmspec.vlm.conversation.turn import StateCheckpoint, Turn
from mmspec.vlm.distributed import agreed
from mmspec.vlm.generated_rows import GeneratedRows
from mmspec.vlm.hidden_states import Level, record_states
from mmspec.vlm.joined_pass import JoiningProbes, joined_pass
from mmspec.vlm.mixers import stepwise
from mmspec.vlm.partial_passes import entry_of, pass_from
from mmspec.vlm.pass_rows import PassRows, surroundings_of
from mmspec.vlm.prefill import (
    PrefillResult,
    UnreadPrompt,
    first_inputs,
    first_positions,
    first_tokens,
    lasting_inputs,
    read_first,
    read_rest,
    rotary_positions,
    wrapped_logits,
)
from mmspec.vlm.processors.guide import ProcessorGuide
from mmspec.vlm.processors.nodes import NodeProcessors

_ROOM = 512  # slots allocated for generated tokens before the pool has to double


class TextTarget(GeneratedRows):
    """A batch of prompts continued by a causal (vision-)language model.

    `next_position`, of the root, is int64 [B] or [A, B] (A axes of M-RoPE). `prompt_positions` of the tokens that the
    prefill reads is int64 [..., B or 1, P], `prompt_embeds` float [B, P, H] with vision features in place,
    `prompt_hidden` their last states [B, P, H] or the concatenated `levels`, see `record_states`. `length` is P; a
    prompt may be embeddings alone and have no ids. `inputs` is the caller's prompt, see `prompt_inputs`; None if
    unknown. With a `turn`, the cache holds the first `turn.start` tokens, the prefill reads the other `read` tokens,
    and `last_hidden` is float [1, 1, F] of the last token in the cache. Layers with states can go back to `places`, see
    `StateCheckpoint`. `lasting` is of `lasting_inputs`.

    `pads` widens a pass where `pass_costs` says that this is cheaper. With `adapts` costs measured during requests
    count too; without, a seed reproduces its output. `asks` lets a pass wait for the device to learn whether its logits
    are finite. `scored` is the nodes of a row in the last pass, padding included; 0 for a pass of some layers, and for
    a pass that first measured its products. `strict` passes have the bits of single-token passes, see
    `mmspec.core.layers.strict`. `recordable` says that no users' code prevents graphs. `surroundings` return the context
    managers around each pass over a draft."""

    asks, pads, adapts, scored, recordable = True, False, False, 1, True
    pass_costs: PassCosts | None = None

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
        levels: tuple[Level, ...] | None = None,
        turn: Turn | None = None,
        strict: bool = False,
        goes_on: bool = False,
        **rows: object,
    ):
        super().__init__(input_ids, stopping, pad, goes_on=goes_on or turn is not None, **rows)
        self.parts, self.dtype, self.greedy = parts, parts.dtype, greedy
        self.processors = NodeProcessors(processors, self.batch)
        self.processors.open(input_ids, parts.vocab_size, pad)
        self.model_kwargs, self.inputs, self.levels = model_kwargs, inputs, levels
        self.turn, self.read, self.places, self.last_hidden = turn, 0, [], None
        # a prompt of embeddings alone has no ids
        embeds = model_kwargs.get("inputs_embeds")
        self.length = input_ids.shape[1] if embeds is None else embeds.shape[1]
        self.cache = None if turn is None else turn.cache
        if self.cache is None:
            slots = self.length + min(self.most or _ROOM, _ROOM) + 64
            self.cache = SlotCache(parts.plan, slots, device=input_ids.device, places=parts.places)
        self.pending = input_ids[:, -1] if input_ids.shape[1] else input_ids.new_full((self.batch,), pad)
        self.padding: Tensor | None = None
        self.next_position = self.prompt_positions = self.prompt_embeds = self.prompt_hidden = None
        self._barren: Tensor | None = None
        self.lasting: dict[str, Tensor] = {}
        # the length of the longest prompt, and the largest position of a prompt's last token
        self._longest = self._last = 0
        self.rope = StepRope(parts.rotary) if parts.rotary else None
        self.strict = strict
        # closed forms of recurrences over a tree sum in another order than single steps
        self.mixers = stepwise(parts.mixers) if strict else parts.mixers
        self.surroundings = surroundings_of(self)
        # passes that depend on the draft's shape, that several processes share or that users' code sees are not padded
        self.pads = not self.surroundings and parts.group is None and not parts.code
        attention = getattr(parts.decoder.config, "_attn_implementation", None)
        layout = self.batch, self.device, self.dtype, attention, strict, bool(self.processors.bound)
        self.pass_costs = pass_costs_of(parts.model, layout)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        return self.parts.decoder, self.parts.head

    def guide(self) -> ProcessorGuide | None:
        return ProcessorGuide.of(self.processors, self.prompt, self.tokens, self.live, self.parts.vocab_size)

    def agreed(self, number: int) -> int:
        """Return the first process's number if several processes share the target."""
        return agreed(self.parts.group, number)

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        mask = self.model_kwargs.get("attention_mask")
        rest, inputs = None if self.turn is None else self.turn.rest, {}
        if rest is None:
            inputs = first_inputs(self.parts, self.prompt, self.model_kwargs, self.cache)
            positions = first_positions(inputs, self.prompt, self.model_kwargs.get("position_ids"))
            self.lasting = lasting_inputs(self.parts.plan, inputs)
        else:
            positions, self.lasting = rest.positions, rest.lasting
        if self.rope is not None:
            self._longest = int(rotary_positions(positions).max()) + 1
        turned = nullcontext() if self.rope is None else self.rope.at(self._longest)
        with turned, over_prompt() if self.strict else nullcontext():
            read = self._read(inputs, positions) if rest is None else self._read_on(rest)
        self.prompt_embeds, self.prompt_hidden, self.read = read.embeds, read.hidden, positions.shape[-1]
        self.prompt_positions = positions
        self.next_position = positions[..., -1].expand(*positions.shape[:-2], self.batch)
        if self.rope is not None:
            self._last = int(rotary_positions(positions[..., -1:]).max())
        # the last prompt token is the root of round 0, so the commit counts its slot
        self.cache.advance(-1)
        if mask is not None and mask.dim() == 2:
            self.cache.hidden = mask == 0
            self.padding = self.cache.hidden if self.prompt.shape[1] else None
        draft = root_only(self.pending)
        return draft, self._evidence(draft, read.logits, self.prompt_hidden[:, -1:])

    def _read(self, inputs: dict, positions: Tensor) -> PrefillResult:
        """Read the whole prompt; in a conversation with states, the tail that may change later is read separately."""
        count = self.length
        tail = self.turn.tail if self.turn is not None and self.parts.plan.stateful else 0
        if not 0 < tail < count:
            read = read_first(self.parts, inputs, self.levels, self.device)
            self.cache.advance(count)
            return self._checkpoint(count, read)
        settled = count - tail
        kwargs = first_tokens(self.model_kwargs, settled)
        inputs = first_inputs(self.parts, self.prompt[:, :settled], kwargs, self.cache)
        read = read_first(self.parts, inputs, self.levels, self.device)
        self.cache.advance(settled)
        self._checkpoint(settled, read)
        rest = UnreadPrompt.text(self.prompt[:, settled:], positions[..., settled:], self.lasting)
        return self._checkpoint(count, read.then(read_rest(self.parts, self.cache, rest, self.levels)))

    def _read_on(self, rest: UnreadPrompt) -> PrefillResult:
        count, tail = rest.ids.shape[1], self.turn.tail if self.parts.plan.stateful else 0
        pieces = [rest] if not 0 < tail < count else rest.split(count - tail)
        read, end = None, self.turn.start
        for piece in pieces:
            new = read_rest(self.parts, self.cache, piece, self.levels)
            read, end = new if read is None else read.then(new), end + piece.ids.shape[1]
            self._checkpoint(end, read)
        return read

    def _checkpoint(self, count: int, read: PrefillResult) -> PrefillResult:
        """Record that layers with states can go back to the first `count` tokens."""
        if self.turn is not None and self.parts.plan.stateful:
            self.places.append(StateCheckpoint(count, self.cache.mark(), read.hidden[:, -1:].clone()))
        return read

    @torch.no_grad()
    def score(self, draft: Draft) -> Evidence:
        tree, nodes = draft.pass_tree, draft.tree.nodes
        entry, joins = entry_of(self, draft), isinstance(draft.probes, JoiningProbes)
        pads = self.pads and entry is None and not joins
        width = self.pass_costs.padded(tree.nodes, self.adapts) if pads else tree.nodes
        self.scored, measured = width if entry is None else 0, measured_so_far()
        rows = PassRows.of(draft, width)
        inputs = dict(
            rows.inputs(self.parts.embed),
            position_ids=self.positions_of(rows.depth),
            attention_mask=attention_masks(
                self.parts.plan, self.cache, rows.ancestor, rows.depth, tree.max_depth, self.dtype
            ),
            use_cache=True,
            **{CACHE: self.cache},
        )
        if self.lasting:
            inputs |= {name: value.expand(-1, width, *value.shape[2:]) for name, value in self.lasting.items()}
        with ExitStack() as stack:
            if not self.strict:
                stack.enter_context(self.small_products)
            for make in self.surroundings:
                stack.enter_context(make(self, tree))
            if joins:
                logits, hidden = joined_pass(self.parts, draft, inputs)
            elif entry is None:
                logits, hidden = self._pass(inputs, None if draft.probes is None else nodes)
            else:
                logits, hidden = pass_from(self.parts, inputs, entry, self.levels)
        if measured_so_far() > measured:  # its time is not that of a pass
            self.scored = 0
        evidence = self._evidence(draft, logits[:, :nodes], hidden[:, :nodes])
        evidence.probed = None if draft.probes is None else hidden[:, nodes : tree.nodes]
        return evidence

    def _pass(self, inputs: dict, nodes: int | None = None) -> tuple[Tensor, Tensor]:
        """Return hidden states, and the logits of at least the first `nodes` rows, None for all."""
        if self.parts.direct and self.levels is None:
            hidden = self.parts.decoder(**inputs).last_hidden_state.to(self.device)
            return self.parts.head(hidden[:, :nodes]), hidden
        with record_states(self.parts.decoder, self.levels) as seen:
            if self.parts.direct:
                logits = self.parts.head(self.parts.decoder(**inputs).last_hidden_state)
            else:
                logits = wrapped_logits(self.parts, inputs)
        return logits.to(self.device), (seen.hidden if self.levels is None else seen.levels).to(self.device)

    def positions_of(self, depth: Tensor) -> Tensor:
        """Return the positions of nodes at these depths, clamped to the learned table: nodes beyond it are never accepted."""
        places, table = self.next_position[..., None] + depth, self.parts.learned_positions
        return places if table is None else places.clamp(max=table - 1)

    def _evidence(self, draft: Draft, logits: Tensor, hidden: Tensor) -> Evidence:
        logits, bad = neutralise_bad_scores(logits.float(), self.asks)
        scores = self.processors(logits, draft, self.prompt, self.tokens, self.live)
        if not self.greedy:
            scores, bad = self._drawable(scores, bad)
        self._raw = logits if self.keep_scores else None
        return Evidence(scores=scores, greedy=self.greedy, hidden=hidden, bad=bad)

    def _drawable(self, scores: Tensor, bad: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Neutralise nodes for which the processors excluded every token, and count them as bad."""
        scores, barren = neutralise_bad_scores(scores, self.asks)
        if barren is None or bad is None:
            self._barren = barren
            return scores, bad if barren is None else barren
        self._barren = barren & ~bad
        return scores, bad | barren

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        self._scored = evidence if self.keep_scores else None
        accepted = self.commit_paths(verdict, self._failure(evidence), run_of(draft, verdict)[0])
        self.processors.commit(self.paths, self.tokens, self.live)
        if self.turn is not None and self.paths[0]:
            self.last_hidden = evidence.hidden[:, self.paths[0][-1], None].clone()
        self._keep_paths()
        self.pending = verdict.correction
        return accepted

    def read_on(self, draft: Draft, counts: list[int]) -> None:
        """Read known tokens after rows that have ended, and store their scores. The root of `draft`, a chain, is the
        last token of every row. `counts` are the nodes to commit of every row, which gets as many padding tokens."""
        with self.processors.reading(counts):
            evidence = self.score(draft)
        self._scored = evidence if self.keep_scores else None
        self.paths = [list(range(count)) for count in counts]
        for row, count in enumerate(counts):
            self.tokens[row] += [self.pad] * count
            if self.keep_scores:
                self.record(row, count)
        self._keep_paths()

    def _keep_paths(self) -> None:
        """Commit the nodes in `paths`, whose tokens have been appended to the rows."""
        with single_steps(self.device) if self.strict else nullcontext():
            self.cache.commit(self.paths)
        self.next_position = self.next_position + self.steps

    def _failure(self, evidence: Evidence) -> Tensor | None:
        """Return the key in FAILURES of every node, bool or int64 [B, N]; None if no node failed."""
        if evidence.bad is None or self._barren is None:
            return evidence.bad
        return evidence.bad.long() + self._barren
