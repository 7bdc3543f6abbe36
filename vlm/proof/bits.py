"""Whether strict passes over drafts give the bits of strict single passes: in a chain and a tree, alone and in a padded batch."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from mmspec.core.draft import Draft, Law, root_only
from mmspec.core.strict.rows import BLOCK
from mmspec.core.tree import Tree, chain, static_tree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prompts import prepare
from mmspec.vlm.proof.differs import Differs
from mmspec.vlm.proof.ordinary_tokens import ordinary, padding_id
from mmspec.vlm.proof.trial import path_to
from mmspec.vlm.target import TextTarget

_DEEP = BLOCK + 2  # drafted tokens of the chain, which is longer than a block of rows
_PROMPT, _PADDING = 58, 21  # so that the chain ends behind a whole number of slots
_BRANCHES = 5  # of the tree, whose right tokens stand behind wrong ones


def same_bits(parts: Parts) -> None:
    """Raises Differs where logits, keys, values or states differ in a bit."""
    ids = ordinary(parts, 2, _PROMPT)
    script = ordinary(parts, 2, _DEEP + 1, seed=1)
    mask = torch.ones_like(ids)
    mask[1, :_PADDING] = 0
    ids[1, :_PADDING] = padding_id(parts.model)
    together = {"input_ids": ids, "attention_mask": mask}
    alone = [{"input_ids": ids[:1]}, {"input_ids": ids[1:, _PADDING:]}]
    for tree, right in ((chain(_DEEP, ids.device), list(range(_DEEP + 1))), _branching(ids.device)):
        single = [_single(parts, one, script[row : row + 1, : len(right)]) for row, one in enumerate(alone)]
        for inputs in (alone[0], together):
            rows = inputs["input_ids"].shape[0]
            where = f"over {tree.nodes} nodes" + (" in a padded batch" if rows > 1 else "")
            logits, target = _drafted(parts, inputs, script[:rows], tree, right)
            for row, (wanted, held) in enumerate(single[:rows]):
                if not torch.equal(logits[row], wanted):
                    raise Differs(f"logits of other bits in a pass {where}")
                if not all(map(torch.equal, _kept(target, row), _kept(held, 0))):
                    raise Differs(f"keys, values or states of other bits behind a pass {where}")


def _branching(device: torch.device) -> tuple[Tree, list[int]]:
    """A tree of twigs, and its nodes of the longest path: behind every right token first a wrong one and its child."""
    parents, right = [0], [0]
    for _ in range(_BRANCHES):
        at = len(parents)
        parents += [right[-1], at, right[-1]]
        right.append(at + 2)
    return static_tree(tuple(parents), device), right


def _single(parts: Parts, inputs: dict, script: Tensor) -> tuple[Tensor, TextTarget]:
    """Logits [n, V] behind each token of a script [1, n], by single passes, and the target behind them."""
    target, found = _opened(parts, inputs, script[:, 0]), []
    for step in range(script.shape[1]):
        draft = root_only(script[:, step])
        evidence = target.score(draft)
        found.append(evidence.scores[0, 0])
        target.commit(draft, evidence, path_to(draft, script[:, 0] * 0, script[:, (step + 1) % script.shape[1]]))
    return torch.stack(found), target


def _drafted(
    parts: Parts, inputs: dict, script: Tensor, tree: Tree, right: list[int]
) -> tuple[Tensor, TextTarget]:
    """Logits [B, n, V] of the nodes `right` of a pass over a tree on which they hold the script, all others other tokens;
    and the target behind them."""
    target = _opened(parts, inputs, script[:, 0])
    value = script.roll(1, 1)[:, tree.depth[0]]
    value[:, right] = script[:, : len(right)]
    draft = Draft(value, tree, Law("deterministic"))
    evidence = target.score(draft)
    target.commit(draft, evidence, path_to(draft, torch.full_like(script[:, 0], right[-1]), script[:, -1]))
    return evidence.scores[:, right], target


def _kept(target: TextTarget, row: int) -> list[Tensor]:
    """Committed keys and values of a row without its padding, and its states."""
    cache = target.cache
    span = slice(0 if cache.hidden is None else int(cache.hidden[row].sum()), cache.lengths[row])
    found = [one[row, :, span] for n, layer in enumerate(target.parts.plan.layers) if layer.slots for one in cache.at(n)]
    for layer in cache.stateful:
        states = layer.committed
        found += [one[row] for kind in (states.conv, states.recurrent) for one in kind.values() if one is not None]
    return found


def _opened(parts: Parts, inputs: dict, first: Tensor) -> TextTarget:
    """A strict request behind its prompt, whose first token is `first` [B]."""
    ids, kwargs = prepare(parts.model, inputs)
    none = LogitsProcessorList(), StoppingCriteriaList()
    pad = padding_id(parts.model)
    target = TextTarget(parts, ids, *none, greedy=True, pad=pad, model_kwargs=kwargs, strict=True)
    draft, evidence = target.prefill()
    target.commit(draft, evidence, path_to(draft, torch.zeros_like(first), first))
    return target
