"""Logits processors of transformers at every node of a draft, called with the prefix of the node's path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from mmspec.core.round.draft import Draft, expand_tree
from mmspec.vlm.processors.branches import Branch, Lockstep, PendingBranch
from mmspec.vlm.processors.copies import Processor
from mmspec.vlm.processors.proof import prove_processors
from mmspec.vlm.processors.truncation import with_fast_truncation


def _classes(names: str) -> tuple[type, ...]:
    return tuple(getattr(hf, name) for name in names.split() if hasattr(hf, name))


# These classes never read the prefix. Their subclasses are not trusted.
CONTEXT_FREE = _classes(
    "TemperatureLogitsWarper TopPLogitsWarper TopKLogitsWarper TopHLogitsWarper MinPLogitsWarper TypicalLogitsWarper "
    "EpsilonLogitsWarper EtaLogitsWarper LogitNormalization SuppressTokensLogitsProcessor InfNanRemoveLogitsProcessor"
)
# These classes read the prefix of a row and nothing else of the batch, so nodes of equal depth are processed together.
ROW_FREE = _classes(
    "RepetitionPenaltyLogitsProcessor NoRepeatNGramLogitsProcessor SequenceBiasLogitsProcessor NoBadWordsLogitsProcessor "
    "MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor "
    "ExponentialDecayLengthPenalty SuppressTokensAtBeginLogitsProcessor WatermarkLogitsProcessor"
)


class NodeProcessors:
    """Processors other than those of `CONTEXT_FREE` and `ROW_FREE` are copied along each path. `open` proves that the
    copies give the scores of `transformers.generate`. `free` do not read the prefix, `bound` tells whether others do,
    and `own` need a proof. `committed` are the copies per row after all committed tokens but the last, empty without
    `own`."""

    def __init__(self, processors: LogitsProcessorList, batch: int):
        self.batch, self.all = batch, processors
        self.free = LogitsProcessorList([p for p in processors if type(p) in CONTEXT_FREE])
        self.always = LogitsProcessorList([p for p in processors if type(p) is hf.SuppressTokensLogitsProcessor])
        self.own = [p for p in processors if type(p) not in CONTEXT_FREE + ROW_FREE]
        self.bound = len(self.free) < len(processors)
        self._warps = with_fast_truncation(self.free)
        self._reduced_warps = with_fast_truncation(p for p in self.free if p not in self.always)
        self.rows = [with_fast_truncation(_of_row(p, row) for p in processors) for row in range(batch)]
        self.committed: list[Branch] = []
        self._nodes: list[list[Branch | PendingBranch]] = []
        self._lockstep: Lockstep | None = None
        self._reading: list[bool] | None = None

    def open(self, prompt: Tensor, vocab: int, pad: int) -> None:
        """Prove that rejected drafts cannot corrupt the processors; `prompt` int64 [B, P], `pad` follows a row's end."""
        if self.own:
            known = [p for p in self.all if type(p) in CONTEXT_FREE + ROW_FREE]
            fork = prove_processors(self.all, known, prompt, vocab)
            self.committed = [Branch.start(row, fork.fork(), prompt) for row in range(self.batch)]
            self._lockstep = Lockstep(self.all, prompt, pad)

    def warp(self, logits: Tensor, reduced: bool = False) -> Tensor:
        """Apply the processors that do not read the prefix, as a drafter does to its own distribution, to float [...,
        V]. Columns of a `reduced` vocabulary exclude no tokens by their index."""
        if not self.free:
            return logits
        flat = logits.reshape(-1, logits.shape[-1])
        return (self._reduced_warps if reduced else self._warps)(_no_prefix(flat), flat).view_as(logits)

    def suppress(self, logits: Tensor) -> Tensor:
        """Apply the processors that always exclude the same tokens to logits [V]."""
        return self.always(_no_prefix(logits[None]), logits[None])[0]

    def __call__(
        self, logits: Tensor, draft: Draft, prompt: Tensor, tokens: Sequence[list[int]], live: Sequence[bool]
    ) -> Tensor:
        """Return the nodes' scores float32 [B, N, V] from logits of that shape and a prompt int64 [B, P]."""
        if not self.bound:
            return self.warp(logits)
        if self.own:
            return self._along_paths(logits, draft, live)
        batch, tree = draft.batch, draft.tree
        depth, path = expand_tree(tree.depth, batch), expand_tree(tree.path, batch)
        scores = torch.empty_like(logits)
        for row in range(batch):
            prefix = torch.cat([prompt[row], prompt.new_tensor(tokens[row])])[:-1]
            for level in range(tree.max_depth + 1):
                node = (depth[row] == level).nonzero()[:, 0]
                if len(node):
                    drafted = draft.value[row][path[row, node, : level + 1]]
                    if not prompt.shape[1] and not tokens[row]:  # the root stands for a prompt without ids
                        drafted = drafted[:, 1:]
                    ids = torch.cat([prefix.expand(len(node), -1), drafted], 1)
                    scores[row, node] = self.rows[row](ids, logits[row, node])
        return scores

    def _along_paths(self, logits: Tensor, draft: Draft, live: Sequence[bool]) -> Tensor:
        scores = logits.clone()
        self._nodes = [[] for _ in range(draft.batch)]
        live = live if self._reading is None else self._reading
        parents, depths = (expand_tree(t, draft.batch).tolist() for t in (draft.tree.parent, draft.tree.depth))
        for row in range(draft.batch):
            if not live[row]:
                continue
            branches: dict[int, Branch | PendingBranch] = {}
            for node in sorted(range(draft.tree.nodes), key=depths[row].__getitem__):
                parent = branches[parents[row][node]] if depths[row][node] else self.committed[row]
                branches[node] = new = self._node(parent, draft, row, node, logits[row, node])
                if isinstance(new, Branch):
                    scores[row, node] = new.scores
            self._nodes[row] = [branches[node] for node in range(draft.tree.nodes)]
        return scores

    def _node(
        self, parent: Branch | PendingBranch, draft: Draft, row: int, node: int, logits: Tensor
    ) -> Branch | PendingBranch:
        token, is_root = draft.value[row, node], parent is self.committed[row]
        dead = isinstance(parent, PendingBranch) or (draft.valid is not None and not draft.valid[row, node])
        if self._reading is None and not is_root and (dead or parent.rules_out(token)):
            return PendingBranch(parent, token, logits)
        return parent.child(token, logits)

    @contextmanager
    def reading(self, counts: Sequence[int]) -> Iterator[None]:
        """Score known tokens after the end of rows inside the block, `counts` draft nodes per row, also if processors
        exclude them. The caller's own objects were already called for these steps."""
        self._reading = [count > 0 for count in counts]
        try:
            yield
        finally:
            self._reading = None
        for row, nodes in enumerate(self._nodes):
            for branch in nodes[: counts[row]]:
                if branch.error is not None:
                    raise branch.error
                self.committed[row] = branch

    def commit(self, paths: Sequence[Sequence[int]], tokens: Sequence[list[int]], live: Sequence[bool]) -> None:
        """Move to the accepted nodes, root first per row, empty for a row that had stopped. Call the caller's own
        objects for the steps that all rows have reached."""
        if not self.own:
            return
        for row, path in enumerate(paths):
            for node in path[: max(len(tokens[row]) - self._lockstep.noted(row), 0)]:
                branch = self._nodes[row][node]
                branch = branch.branch() if isinstance(branch, PendingBranch) else branch
                if branch.error is not None:
                    raise branch.error
                self._lockstep.note(row, branch.logits, branch.scores)
                self.committed[row] = branch
        self._nodes = []
        self._lockstep.advance(tokens, live)


def _of_row(processor: Processor, row: int) -> Processor:
    """Return `processor` for row `row`: the repetition penalty of transformers has a padding length per row."""
    skipped = getattr(processor, "prompt_ignore_length", None)
    if type(processor) is not hf.RepetitionPenaltyLogitsProcessor or not isinstance(skipped, Tensor):
        return processor
    return hf.RepetitionPenaltyLogitsProcessor(processor.penalty, int(skipped[row]))


def _no_prefix(flat: Tensor) -> Tensor:
    return torch.zeros(flat.shape[0], 1, dtype=torch.long, device=flat.device)
