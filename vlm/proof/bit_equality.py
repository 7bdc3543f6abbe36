"""Whether strict passes over drafts give the bits of strict single passes: chains and trees, alone and in a padded batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from mmspec.core.draft import Draft, Law, root_only
from mmspec.core.strict_ops import BLOCK
from mmspec.core.tree import Tree, chain, static_tree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import prepare_inputs
from mmspec.vlm.proof.trial import TrialMismatch, ordinary_tokens, padding_id, path_to
from mmspec.vlm.target import TextTarget

_DEEP = BLOCK + 2  # drafted tokens of the chain, which is longer than a block of rows
_PROMPT, _PADDING = 58, 21  # so that the chain ends behind a whole number of slots
_BRANCHES = 5  # of the tree, whose right tokens stand behind wrong ones


def same_bits(parts: Parts) -> None:
    """Raises TrialMismatch where logits, keys, values or states differ in a bit. Rows of attention must not depend on
    each other either; recurrent layers read a padded prompt in other pieces than the same prompt alone."""
    ids = ordinary_tokens(parts, 2, _PROMPT)
    script = ordinary_tokens(parts, 2, _DEEP + 1, seed=1)
    mask = torch.ones_like(ids)
    mask[1, :_PADDING] = 0
    ids[1, :_PADDING] = padding_id(parts.model)
    first, last = {"input_ids": ids[:1]}, {"input_ids": ids[1:, _PADDING:]}
    both = {"input_ids": ids, "attention_mask": mask}
    for tree, right in ((chain(_DEEP, ids.device), list(range(_DEEP + 1))), _branching(ids.device)):
        script = script[:, : len(right)]
        where = f"a pass over {tree.nodes} nodes"
        _compare(_single(parts, first, script[:1]), _drafted(parts, first, script[:1], tree, right), where)
        together = _single(parts, both, script)
        _compare(together, _drafted(parts, both, script, tree, right), f"{where} in a padded batch")
    if not parts.plan.stateful:
        _compare(_single(parts, last, script[1:]), together[1:], "a single pass beside another row")


@dataclass(frozen=True, slots=True)
class _Bits:
    """What a row's passes left. logits: [n, V].   kept: keys and values without padding, and states."""

    logits: Tensor
    kept: list[Tensor]


def _compare(wanted: list[_Bits], found: list[_Bits], where: str) -> None:
    for one, other in zip(wanted, found, strict=True):
        if not torch.equal(one.logits, other.logits):
            raise TrialMismatch(f"logits of other bits in {where}")
        if not all(map(torch.equal, one.kept, other.kept)):
            raise TrialMismatch(f"keys, values or states of other bits behind {where}")


def _branching(device: torch.device) -> tuple[Tree, list[int]]:
    """A tree of twigs, and its nodes of the longest path: behind every right token first a wrong one and its child."""
    parents, right = [0], [0]
    for _ in range(_BRANCHES):
        at = len(parents)
        parents += [right[-1], at, right[-1]]
        right.append(at + 2)
    return static_tree(tuple(parents), device), right


def _single(parts: Parts, inputs: dict, script: Tensor) -> list[_Bits]:
    """Of each row, by single passes over a script [B, n]."""
    target, found = _opened(parts, inputs, script[:, 0]), []
    for step in range(script.shape[1]):
        draft = root_only(script[:, step])
        evidence = target.score(draft)
        found.append(evidence.scores[:, 0])
        target.commit(draft, evidence, path_to(draft, script[:, 0] * 0, script[:, (step + 1) % script.shape[1]]))
    return _bits(target, torch.stack(found, 1))


def _drafted(parts: Parts, inputs: dict, script: Tensor, tree: Tree, right: list[int]) -> list[_Bits]:
    """Of each row, by one pass over a tree on which the nodes `right` hold the script, all others other tokens."""
    target = _opened(parts, inputs, script[:, 0])
    value = ordinary_tokens(parts, len(script), tree.nodes, seed=2)
    value[:, right] = script
    draft = Draft(value, tree, Law("deterministic"))
    evidence = target.score(draft)
    target.commit(draft, evidence, path_to(draft, torch.full_like(script[:, 0], right[-1]), script[:, -1]))
    return _bits(target, evidence.scores[:, right])


def _bits(target: TextTarget, logits: Tensor) -> list[_Bits]:
    """logits: [B, n, V]."""
    return [_Bits(one, _kept(target, row)) for row, one in enumerate(logits)]


def _kept(target: TextTarget, row: int) -> list[Tensor]:
    """Committed keys and values of a row without its padding, and its states."""
    cache = target.cache
    span = slice(0 if cache.hidden is None else int(cache.hidden[row].sum()), cache.lengths[row])
    found = [
        one[row, :, span] for n, layer in enumerate(target.parts.plan.layers) if layer.slots for one in cache.at(n)
    ]
    for layer in cache.stateful:
        states = layer.committed
        found += [one[row] for kind in (states.conv, states.recurrent) for one in kind.values() if one is not None]
    return found


def _opened(parts: Parts, inputs: dict, first: Tensor) -> TextTarget:
    """A strict request behind its prompt, whose first token is `first` [B]."""
    ids, kwargs = prepare_inputs(parts.model, inputs)
    none = LogitsProcessorList(), StoppingCriteriaList()
    pad = padding_id(parts.model)
    target = TextTarget(parts, ids, *none, greedy=True, pad=pad, model_kwargs=kwargs, strict=True)
    draft, evidence = target.prefill()
    target.commit(draft, evidence, path_to(draft, torch.zeros_like(first), first))
    return target
