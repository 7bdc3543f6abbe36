"""The bit-for-bit comparison of strict passes over chains and trees with strict single passes, also in a padded batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from mmspec.core.layers.strict_ops import BLOCK
from mmspec.core.round.draft import Draft, Law, root_only
from mmspec.core.round.split_trial import TrialMismatch, path_to
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import prepare_inputs
from mmspec.vlm.proof.trial import ordinary_tokens, padding_id
from mmspec.vlm.target import TextTarget

_DEEP = BLOCK + 2  # draft tokens of the chain, which is longer than a block of rows
_PROMPT, _PADDING = 58, 21  # the chain then crosses a multiple of 64 slots
_BRANCHES = 5  # branches of the tree, whose right tokens come after wrong tokens


def same_bits(parts: Parts) -> None:
    """Check that strict passes over drafts have the bits of single passes. For attention, rows must not depend on each
    other either. Recurrent layers are exempt: they read a padded prompt in other pieces than the same prompt alone."""
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
    """The results of a row's passes: logits [n, V], and its keys, values and states without padding."""

    logits: Tensor
    cached: list[Tensor]


def _compare(expected: list[_Bits], actual: list[_Bits], where: str) -> None:
    for single, drafted in zip(expected, actual, strict=True):
        if not torch.equal(single.logits, drafted.logits):
            raise TrialMismatch(f"logits of other bits in {where}")
        if not all(map(torch.equal, single.cached, drafted.cached)):
            raise TrialMismatch(f"keys, values or states of other bits after {where}")


def _branching(device: torch.device) -> tuple[Tree, list[int]]:
    """Return a tree and the nodes of its longest path; each right token has a wrong sibling with a child before it."""
    parents, right = [0], [0]
    for _ in range(_BRANCHES):
        at = len(parents)
        parents += [right[-1], at, right[-1]]
        right.append(at + 2)
    return static_tree(tuple(parents), device), right


def _single(parts: Parts, inputs: dict, script: Tensor) -> list[_Bits]:
    target, logits = _opened(parts, inputs, script[:, 0]), []
    for step in range(script.shape[1]):
        draft = root_only(script[:, step])
        evidence = target.score(draft)
        logits.append(evidence.scores[:, 0])
        target.commit(draft, evidence, path_to(draft, script[:, 0] * 0, script[:, (step + 1) % script.shape[1]]))
    return _bits(target, torch.stack(logits, 1))


def _drafted(parts: Parts, inputs: dict, script: Tensor, tree: Tree, right: list[int]) -> list[_Bits]:
    target = _opened(parts, inputs, script[:, 0])
    value = ordinary_tokens(parts, len(script), tree.nodes, seed=2)
    value[:, right] = script
    draft = Draft(value, tree, Law("deterministic"))
    evidence = target.score(draft)
    target.commit(draft, evidence, path_to(draft, torch.full_like(script[:, 0], right[-1]), script[:, -1]))
    return _bits(target, evidence.scores[:, right])


def _bits(target: TextTarget, logits: Tensor) -> list[_Bits]:
    return [_Bits(row_logits, _cached(target, row)) for row, row_logits in enumerate(logits)]


def _cached(target: TextTarget, row: int) -> list[Tensor]:
    cache = target.cache
    span = slice(0 if cache.hidden is None else int(cache.hidden[row].sum()), cache.lengths[row])
    slots = [n for n, layer in enumerate(target.parts.plan.layers) if layer.slots]
    tensors = [tensor[row, :, span] for n in slots for tensor in cache.at(n)]
    for layer in cache.stateful:
        kinds = layer.committed.conv, layer.committed.recurrent
        tensors += [state[row] for kind in kinds for state in kind.values() if state is not None]
    return tensors


def _opened(parts: Parts, inputs: dict, first: Tensor) -> TextTarget:
    ids, kwargs = prepare_inputs(parts.model, inputs)
    none = LogitsProcessorList(), StoppingCriteriaList()
    pad = padding_id(parts.model)
    target = TextTarget(parts, ids, *none, greedy=True, pad=pad, model_kwargs=kwargs, strict=True)
    draft, evidence = target.prefill()
    target.commit(draft, evidence, path_to(draft, torch.zeros_like(first), first))
    return target
