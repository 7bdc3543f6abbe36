"""Wrong caches, masks and mixers are found out by the trial that every class outside the list passes first."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.core.layers import layer_plan as masks_module
from mmspec.core.layers.layer_plan import LayerSpec
from mmspec.core.layers.tree_recurrence import CommittedPaths
from mmspec.core.round.cache import StateLayer
from mmspec.core.round.pool import SlotPool
from mmspec.vlm import mixer_passes
from mmspec.vlm import target as target_module
from mmspec.vlm.admission import take_apart
from tests.vlm.layer_kinds import model_with

HYBRIDS = ("Qwen3_5ForCausalLM", "BambaForCausalLM", "Lfm2ForCausalLM", "JambaForCausalLM")


def proven(name: str) -> None:
    """Takes a model apart that no earlier proof knows.   Raises ValueError where its passes differ from its steps."""
    take_apart(copy.deepcopy(model_with(name)))


@pytest.mark.parametrize("name", ("Gemma3ForCausalLM", "Llama4ForCausalLM", *HYBRIDS))
def test_unmodified_layers_pass_the_proof(name: str) -> None:
    proven(name)


@pytest.mark.parametrize("name", ("Gemma3ForCausalLM", "Llama4ForCausalLM"))
def test_one_mask_for_all_layers_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        target_module, "attention_masks", lambda plan, pool, ancestor, *_: pool.bias(ancestor, torch.float32)
    )
    with pytest.raises(ValueError, match="far off"):
        proven(name)


@pytest.mark.parametrize("more", (-1, 1))
def test_a_window_off_by_one_token_is_detected(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = masks_module.narrow_bias

    def off(bias: Tensor, pool: SlotPool, depth: Tensor, layer: LayerSpec) -> Tensor:
        return own(bias, pool, depth, replace(layer, width=layer.width + more))

    monkeypatch.setattr(masks_module, "narrow_bias", off)
    with pytest.raises(ValueError, match="far off"):
        proven("Gemma3ForCausalLM")


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_that_stay_behind_the_last_node(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers' own `crop` leaves them: at the end of the pass, whatever was accepted."""

    def last(layer: StateLayer, paths: CommittedPaths) -> None:
        for part in layer.pending or ():
            end = part.tree.ancestor[0, -1].nonzero()[:, 0].tolist()
            layer.committed = part.behind(
                layer.committed, CommittedPaths([end if nodes else [] for nodes in paths.rows])
            )

    monkeypatch.setattr(StateLayer, "commit", last)
    with pytest.raises(ValueError, match="far off"):
        proven(name)


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_that_a_commit_forgets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateLayer, "commit", lambda layer, path: None)
    with pytest.raises(ValueError, match="far off"):
        proven(name)


@pytest.mark.parametrize("name", ("Qwen3_5ForCausalLM", "Lfm2ForCausalLM"))
def test_nodes_that_read_the_draft_as_a_sequence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = mixer_passes.TreePass.__init__

    def chained(run: mixer_passes.TreePass, layer: StateLayer, tree: object, columns: dict) -> None:
        count = tree.nodes
        path = torch.arange(count).minimum(torch.arange(count)[:, None])[None]
        own(run, layer, replace(tree, ancestor=torch.ones(1, count, count, dtype=torch.bool).tril(), path=path))

    monkeypatch.setattr(mixer_passes.TreePass, "__init__", chained)
    with pytest.raises(ValueError, match="far off"):
        proven(name)
