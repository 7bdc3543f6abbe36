"""Tiny models with layers of every kind, and what a fresh pass over a row's own ids would leave."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LogitsProcessorList, StoppingCriteriaList

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.tree import Tree
from mmspec.vlm.admission import take_apart
from mmspec.vlm.prefill import prepare_inputs
from mmspec.vlm.target import TextTarget
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.classes.variants import variants

# class -> the kinds of its layers, for the names of tests
KINDS = {
    "LlamaForCausalLM": "full",
    "Gemma3ForCausalLM": "full and window",
    "Gemma3nForCausalLM": "shared",
    "Gemma4ForCausalLM": "two shapes",
    "GptOssForCausalLM": "window with sinks",
    "Llama4ForCausalLM": "chunk",
    "Lfm2ForCausalLM": "convolution",
    "Lfm3ForCausalLM": "convolution and window",
    "Qwen3_5ForCausalLM": "gated delta",
    "Qwen3NextForCausalLM": "gated delta",
    "OlmoHybridForCausalLM": "gated delta",
    "KimiLinearForCausalLM": "channelwise delta",
    "BambaForCausalLM": "mamba 2",
    "FalconH1ForCausalLM": "mamba 2 beside attention",
    "NemotronHForCausalLM": "mamba 2 and empty",
    "JambaForCausalLM": "single steps",
}
STATEFUL = tuple(list(KINDS)[6:])
# of two classes with the same kind the default lane runs the first, but for greedy words
SECOND = ("Qwen3NextForCausalLM", "OlmoHybridForCausalLM", "FalconH1ForCausalLM", "NemotronHForCausalLM")
ONCE = [
    pytest.param(name, id=f"{kind}-{name}", marks=[pytest.mark.whole] if name in SECOND else [])
    for name, kind in KINDS.items()
]
STATEFUL_ONCE = [pytest.param(name, marks=[pytest.mark.whole] if name in SECOND else []) for name in STATEFUL]
WINDOW = 8


@cache
def model_with(name: str) -> nn.Module:
    """A tiny model whose windows and chunks hold fewer tokens than the prompts below."""
    config = dict(variants(name)).get("window", config_of(name))
    text = config.get_text_config(decoder=True)
    if name == "Llama4ForCausalLM":
        text.attn_temperature_tuning = False
        text.layer_types = (["chunked_attention", "full_attention"] * text.num_hidden_layers)[: text.num_hidden_layers]
    model = model_of(name, copy.deepcopy(config))
    for module in model.modules():
        if hasattr(
            module, "time_step_limit"
        ):  # transformers holds the scan of a prompt to it, and not its single steps
            module.time_step_limit = (0.0, float("inf"))
    return model


def ragged(lengths: tuple[int, ...], seed: int = 0) -> dict[str, Tensor]:
    """Left-padded rows of ordinary ids."""
    rng = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids, mask = (
        torch.zeros(len(lengths), longest, dtype=torch.long),
        torch.zeros(len(lengths), longest, dtype=torch.long),
    )
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = torch.randint(5, 60, (length,), generator=rng)
        mask[row, longest - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def opened(name: str, inputs: dict[str, Tensor]) -> TextTarget:
    """A request behind its prompt's first token, which is 7 in every row."""
    parts = take_apart(model_with(name))
    ids, kwargs = prepare_inputs(parts.model, inputs)
    none = LogitsProcessorList(), StoppingCriteriaList()
    target = TextTarget(parts, ids, *none, greedy=True, pad=0, model_kwargs=kwargs)
    draft, evidence = target.prefill()
    keep(target, draft, evidence, [0] * target.batch, 7)
    return target


def random_draft(tree: Tree, batch: int, rng: torch.Generator, target: TextTarget) -> Draft:
    value = torch.randint(5, 60, (batch, tree.nodes), generator=rng)
    value[:, 0] = target.pending
    return Draft(value, tree, Law("deterministic"))


def keep(target: TextTarget, draft: Draft, evidence: Evidence, node: list[int], correction: int) -> None:
    """Commits the path to one node a row; the next root is `correction`."""
    batch, tree, rows = draft.batch, draft.tree, torch.arange(draft.batch)
    node = torch.tensor(node)
    path, depth = tree.path.expand(batch, -1, -1)[rows, node], tree.depth.expand(batch, -1)[rows, node]
    target.commit(draft, evidence, Verdict("path", node, path, depth, torch.full((batch,), correction)))


def committed(target: TextTarget, row: int) -> list[int]:
    """A row's ids whose slots are committed: without padding, and without its pending token."""
    mask = target.model_kwargs.get("attention_mask")
    prompt = target.prompt[row] if mask is None else target.prompt[row][mask[row].bool()]
    return prompt.tolist() + target.tokens[row][:-1]


def drafted(draft: Draft, row: int, node: int) -> list[int]:
    """The values on the path root..node."""
    tree = draft.tree
    at = min(row, len(tree.path) - 1)
    return [int(draft.value[row, n]) for n in tree.path[at, node, : int(tree.depth[at, node]) + 1]]


@torch.no_grad()
def fresh(name: str, ids: list[int]) -> tuple[Tensor, DynamicCache]:
    """Logits behind `ids` [V], read in one pass without padding, and transformers' own cache behind them."""
    model = model_with(name)
    held = DynamicCache(config=model.config)
    return model(input_ids=torch.tensor([ids]), past_key_values=held, use_cache=True).logits[0, -1].float(), held
