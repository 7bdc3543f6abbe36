"""A scripted continuation of ordinary tokens, run through `transformers.generate` and through `TextTarget`. The target
reads it as a tree of right and wrong draft tokens, with different accepted counts per row and left padding. Then the
cache's own count of slots and the position of a later node are varied: a pass must not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from mmspec.core.round.cache import SlotCache
from mmspec.core.round.code_state import chance
from mmspec.core.round.draft import Draft, Law, neutralise_bad_scores, root_only
from mmspec.core.round.split_trial import TrialMismatch, path_to, rounding_gap
from mmspec.core.round.tree import chain, static_tree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.hf_model import class_generate
from mmspec.vlm.prefill import PROMPT_ALONE, prepare_inputs
from mmspec.vlm.target import TextTarget


def ordinary_tokens(parts: Parts, batch: int, length: int, seed: int = 0) -> Tensor:
    """Return ids of ordinary tokens, int64 [B, n]: without the ids in configs, such as eos, padding or placeholders."""
    model = parts.model
    named = _numbers(model.config.to_dict()) | _numbers(model.generation_config.to_dict())
    named = {value for value in named if 0 <= value < parts.vocab_size}
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(parts.vocab_size, generator=rng)[: batch * length + len(named) + 1].tolist()
    drawn = [token for token in drawn if token not in named] or [0]
    while len(drawn) < batch * length:
        drawn += drawn
    return torch.tensor(drawn[: batch * length], device=parts.device).view(batch, length)


def _numbers(config: object) -> set[int]:
    if isinstance(config, dict):
        return {
            n
            for name, value in config.items()
            for n in _numbers(value)
            if isinstance(value, dict) or "token" in str(name)
        }
    if isinstance(config, list | tuple):
        return {n for value in config for n in _numbers(value)}
    return {config} if isinstance(config, int) and not isinstance(config, bool) else set()


def padding_id(model: nn.Module) -> int:
    pad = model.generation_config.pad_token_id
    return 0 if pad is None else int(pad)


STEPS = 5  # scripted tokens
_TREE = (0, 0, 0, 1, 2, 4)  # after the root: wrong, right, wrong, right, wrong
_RIGHT = (0, 2, 4)
_WIDE = 96  # tokens of a pass that is wider than most drafts


def text_trial(parts: Parts) -> None:
    ids = ordinary_tokens(parts, 2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    ids[1, :4] = padding_id(parts.model)
    compare_with_generate(parts, {"input_ids": ids[:1]}, "on a tree of drafts")
    compare_with_generate(parts, {"input_ids": ids, "attention_mask": mask}, "in a padded batch")
    _invariant(parts, {"input_ids": ordinary_tokens(parts, 1, 12)})


def step_trial(parts: Parts) -> None:
    compare_with_generate(parts, {"input_ids": ordinary_tokens(parts, 1, 9)}, "in single steps", single_steps)


def width_trial(parts: Parts) -> None:
    """Check that later tokens of its pass do not change a token's logits: users' code may tell a prompt by its length."""
    ids, kwargs = prepare_inputs(parts.model, {"input_ids": ordinary_tokens(parts, 1, 9)})
    value = ordinary_tokens(parts, 1, _WIDE, seed=1)
    target = _target(parts, ids, kwargs)
    draft, evidence = target.prefill()
    target.commit(draft, evidence, path_to(draft, torch.zeros_like(ids[:, 0]), value[:, 0]))
    short, long = (
        target.score(Draft(value[:, :n], chain(n - 1, ids.device), Law("deterministic"))).scores[0] for n in (2, _WIDE)
    )
    if not max(rounding_gap(long[node], short[node], parts.dtype) for node in range(2)) <= 1:
        raise TrialMismatch("logits of a token that depend on how many tokens its pass has")


def draws_numbers(parts: Parts) -> bool:
    ids, kwargs = prepare_inputs(parts.model, {"input_ids": ordinary_tokens(parts, 1, 9)})
    before = chance()
    drafted(_target(parts, ids, kwargs), ordinary_tokens(parts, 1, STEPS, seed=1))
    return chance() != before


def compare_with_generate(parts: Parts, inputs: dict, where: str, run: Callable | None = None) -> None:
    """`run` makes the passes: `single_steps`, or None for `drafted`."""
    ids, kwargs = prepare_inputs(parts.model, inputs)
    script = ordinary_tokens(parts, ids.shape[0], STEPS, seed=1)
    # without a padding id of our own: in a prompt without a mask, `generate` hides the tokens that are equal to it
    settings = dict(max_new_tokens=STEPS, output_logits=True, return_dict_in_generate=True)
    forced = LogitsProcessorList([_Forced(script, ids.shape[1])])
    plain = class_generate(parts.model)(**inputs, do_sample=True, logits_processor=forced, **settings, **PROMPT_ALONE)
    expected = torch.stack(plain.logits, 1).float()  # [B, STEPS, V]
    if not torch.equal(plain.sequences[:, -STEPS:], script):
        raise TrialMismatch("another continuation than the forced tokens")
    expected, bad = neutralise_bad_scores(expected)  # as the target does with rows that stop
    if run is not single_steps and bad is not None and bad.all():
        raise TrialMismatch("no finite logits, which prove nothing of drafts")
    for step, row, logits in (run or drafted)(_target(parts, ids, kwargs), script):
        if bad is not None and bad[row, :step].any():
            continue  # the row has stopped
        gap = rounding_gap(logits, expected[row, step], parts.dtype)
        if not gap <= 1:
            raise TrialMismatch(
                f"logits {gap:.3g} times as far off as rounding explains {where}, {step} tokens after the prompt"
            )


def drafted(target: TextTarget, script: Tensor) -> list[tuple[int, int, Tensor]]:
    """Return (step, row, logits [V]) of a prefill, a pass over a tree, a ragged commit, and a pass over a chain."""
    batch, device = script.shape[0], script.device
    rows = torch.arange(batch, device=device)
    draft, evidence = target.prefill()
    logits = [(0, row, evidence.scores[row, 0]) for row in range(batch)]
    target.commit(draft, evidence, path_to(draft, torch.zeros_like(rows), script[:, 0]))
    tree = static_tree(_TREE, device)
    right = torch.zeros(batch, tree.nodes, dtype=torch.bool, device=device)
    right[:, list(_RIGHT)] = True
    value = script.gather(1, tree.depth.expand(batch, -1))
    other = script.roll(1, 1).gather(1, tree.depth.expand(batch, -1))
    draft = Draft(torch.where(right, value, other), tree, Law("deterministic"))
    evidence = target.score(draft)
    logits += [(step + 1, row, evidence.scores[row, node]) for row in range(batch) for step, node in enumerate(_RIGHT)]
    accepted = 1 - rows % 2  # accepted draft tokens of each row
    target.commit(draft, evidence, path_to(draft, accepted * _RIGHT[1], script[rows, accepted + 1]))
    values = torch.stack([script[row, int(count) + 1 : int(count) + 3] for row, count in enumerate(accepted)])
    evidence = target.score(Draft(values, chain(1, device), Law("deterministic")))
    return logits + [
        (int(accepted[row]) + 2 + node, row, evidence.scores[row, node])
        for row in range(batch)
        for node in range(2)
        if int(accepted[row]) + 2 + node < STEPS
    ]


def single_steps(target: TextTarget, script: Tensor) -> list[tuple[int, int, Tensor]]:
    draft, evidence = target.prefill()
    logits = []
    for step in range(STEPS):
        logits += [(step, row, scores[0]) for row, scores in enumerate(evidence.scores)]
        target.commit(draft, evidence, path_to(draft, torch.zeros_like(script[:, step]), script[:, step]))
        draft = root_only(script[:, step])
        evidence = target.score(draft)
    return logits


def _invariant(parts: Parts, inputs: dict) -> None:
    ids, kwargs = prepare_inputs(parts.model, inputs)
    longest = parts.most_positions or 4096
    longest = min(longest, parts.plan.temperature or longest)
    far = max(longest - ids.shape[1] - 4, 0)
    target = _target(parts, ids, kwargs)
    target.cache = _Miscounting(parts.plan, ids.shape[1] + 16, device=ids.device)
    draft, evidence = target.prefill()
    target.commit(draft, evidence, path_to(draft, torch.zeros_like(ids[:, 0]), ids[:, 0]))
    draft = Draft(ids[:, :3], chain(2, ids.device), Law("deterministic"))
    before = target.score(draft).scores[0]
    target.cache.miscount = far
    after = target.score(draft).scores[0]
    target.cache.miscount = 0
    gaps = [rounding_gap(after[node], before[node], parts.dtype) for node in range(3)]
    if not max(gaps) <= 1:
        raise TrialMismatch(
            "logits that depend on how many slots its cache holds, padding and rejected drafts included"
        )
    depth = draft.tree.depth + far * (draft.tree.depth == 2)
    tree = replace(draft.tree, depth=depth, max_depth=2 + far)
    after = target.score(replace(draft, tree=tree)).scores[0]
    if not max(rounding_gap(after[node], before[node], parts.dtype) for node in range(2)) <= 1:
        raise TrialMismatch("logits of a token that depend on the position of a later token")


class _Miscounting(SlotCache):
    """A cache that reports `miscount` more slots than it has; keys and masks are correct."""

    miscount = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        held = super().get_seq_length(layer_idx)
        return held + self.miscount if held else 0  # Mllama asks whether a layer has read pictures


class _Forced(LogitsProcessor):
    """Allows only the scripted token: `script` int64 [B, n] follows prompts of `length` ids."""

    def __init__(self, script: Tensor, length: int):
        self.script, self.length = script, length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = min(max(input_ids.shape[1] - self.length, 0), self.script.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, self.script[:, step, None], 0.0)


def _target(parts: Parts, ids: Tensor, kwargs: dict) -> TextTarget:
    none = LogitsProcessorList(), StoppingCriteriaList()
    return TextTarget(parts, ids, *none, greedy=True, pad=padding_id(parts.model), model_kwargs=kwargs)
