"""Hidden Transfer: mapped states join the target's pass behind their nodes, in drafting as in training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.round.draft import Draft, Law, Probes
from mmspec.core.round.tree import static_tree
from mmspec.vlm import joined_pass as module
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.drafters.base.probe_plan import probe_tree
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.hidden_transfer import HiddenTransferConfig
from mmspec.vlm.joined_pass import JoiningProbes
from mmspec.vlm.training.recipes import equal_recipe, published_recipe
from mmspec.vlm.training.transfers import TransferObjective, transferred_states
from tests.vlm.drafters.test_ppd import SHAPES, truth
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Planted
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny
from tests.vlm.training.test_prompts import HOW, answered

CLOSE = dict(atol=2e-5, rtol=1e-4)
CHAINS = torch.tensor([[0, 1, 2, 3, 6, 7]])  # three behind the root, one behind node 1 and two behind node 2


def drafted(target: object) -> Draft:
    value = torch.randint(3, 90, (target.batch, 4), generator=torch.Generator().manual_seed(0))
    value[:, 0] = target.pending
    return Draft(value, static_tree((0, 0, 0, 1)), Law("deterministic"))


def after(kind: str, rounds: int, images: int = 0) -> object:
    """A request's target after some plain rounds."""
    run = start(tiny(kind), **HOW, **prompt(kind, images=images, batch=4))
    for _ in range(rounds):
        run.step()
    return run.target


def joining(draft: Draft, starts: tuple[int, ...], maps: Tensor) -> Draft:
    chains = CHAINS.expand(draft.batch, -1)
    tree, nothing = probe_tree(draft, chains, 3), torch.zeros(1, chains.shape[1], HIDDEN)
    return replace(draft, probes=JoiningProbes(tree, nothing, chains // 3, chains % 3, starts, maps))


@pytest.mark.parametrize(("kind", "images"), [("llava", 1), pytest.param("qwen2_5_vl", 2, marks=pytest.mark.whole)])
def test_identities_at_layer_0_are_ppd_with_copied_embeddings(kind: str, images: int) -> None:
    target = after(kind, 3, images)
    draft = drafted(target)
    maps = torch.eye(HIDDEN).repeat(3, 1, 1)
    mine = target.score(joining(draft, (0, 0, 0), maps))
    chains = CHAINS.expand(4, -1)
    embeds = target.parts.embed(draft.value.gather(1, chains // 3))
    ppd = target.score(replace(draft, probes=Probes(probe_tree(draft, chains, 3), embeds)))
    torch.testing.assert_close(mine.probed, ppd.probed, **CLOSE)
    torch.testing.assert_close(mine.scores, ppd.scores, **CLOSE)


@pytest.mark.parametrize("starts", [(1, 1, 1), (0, 1, 1)])
def test_nodes_do_not_change_with_probes(starts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    target = after("llama", 2)
    draft, maps = drafted(target), torch.randn(3, HIDDEN, HIDDEN)
    alone, beside = target.score(draft), target.score(joining(draft, starts, maps))
    torch.testing.assert_close(alone.scores, beside.scores, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(alone.hidden, beside.hidden, atol=1e-5, rtol=1e-5)
    assert beside.probed.shape == (4, 6, HIDDEN)
    # behind another node, a probe has another state
    other = joining(draft, starts, maps)
    other.probes.node = 0 * other.probes.node
    moved = (target.score(other).probed - beside.probed).abs().amax(-1)
    assert (moved[:, :3] < 1e-5).all() and (moved[:, 3:] > 1e-3).all()
    # nodes that saw probes would change
    layers = module.layers
    monkeypatch.setattr(module, "layers", lambda *args: layers(*args[:-1], torch.zeros_like(args[-1])))
    assert not torch.allclose(alone.scores, target.score(joining(draft, starts, maps)).scores, atol=1e-3)


def through(target: object, ids: Tensor, maps: Tensor, starts: tuple[int, ...]) -> Tensor:
    """The states [K, H] transferred from the last of a text's tokens, layer by layer over the whole text."""
    model = take_apart(tiny("llama")).decoder
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        rows = torch.zeros(3, HIDDEN)
        count = ids.shape[1]
        place = torch.arange(count + 3)[None]
        hidden = torch.cat([states[0], rows[None]], 1)
        mask = torch.full((count + 3, count + 3), torch.finfo(torch.float32).min).triu(1)[None, None]
        for layer in range(len(model.layers)):
            for k, first in enumerate(starts):
                if first == layer:
                    hidden[:, count + k] = hidden[:, count - 1] @ maps[k].T
            rotary = model.rotary_emb(hidden, place)
            out = model.layers[layer](hidden, attention_mask=mask, position_ids=place, position_embeddings=rotary)
            hidden = out[0] if isinstance(out, tuple) else out
        return model.norm(hidden)[0, count:]


@pytest.mark.parametrize("starts", [(1, 1, 1), (0, 1, 1)])
def test_training_and_drafting_compute_the_same_states(starts: tuple[int, ...]) -> None:
    """Those of a plain formulation over the whole text, at two anchors of ragged rows."""
    inputs, batch = answered("llama")
    first, maps = inputs["input_ids"].shape[1], torch.randn(3, HIDDEN, HIDDEN) * 0.3
    made = transferred_states(
        take_apart(tiny("llama")), batch, torch.tensor([[first + 1, first + 4]] * 4), maps, starts
    )
    for n, rounds in enumerate((2, 5)):
        target = after("llama", rounds)
        draft = Draft(target.pending[:, None], static_tree((0,)), Law("none"))
        chains = torch.tensor([[0, 1, 2]] * 4)
        probes = JoiningProbes(
            probe_tree(draft, chains, 3), torch.zeros(1, 3, HIDDEN), chains // 3, chains, starts, maps
        )
        probed = target.score(replace(draft, probes=probes)).probed
        torch.testing.assert_close(made[:, n], probed, **CLOSE)
        text = batch.ids[:1, : first + 1 + 3 * n + 1]
        text = text[:, int((inputs["attention_mask"][0] == 0).sum()) :]
        torch.testing.assert_close(through(target, text, maps, starts), probed[0], **CLOSE)


@pytest.mark.parametrize("shape", ["dynamic", pytest.param("chain", marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    "kind", ["llava", *(pytest.param(k, marks=pytest.mark.whole) for k in ("qwen2_5_vl", "qwen3_vl"))]
)
def test_greedy_text_is_that_of_generate_at_every_accepted_length(kind: str, shape: str) -> None:
    inputs = prompt(kind, images=2, batch=4)
    planted = Planted(make("hidden_transfer").with_shape(SHAPES[shape]).with_probes(7), truth=truth(kind, inputs, 30))
    out = mmspec.generate(tiny(kind), drafter=planted, max_new_tokens=24, do_sample=False, return_dict=True, **inputs)
    assert torch.equal(out.sequences, tiny(kind).generate(**inputs, max_new_tokens=24, do_sample=False))
    assert {0, 1, 2} <= {count for counts in out.stats.accepted for count in counts if count is not None}


@pytest.mark.whole
@pytest.mark.parametrize("shape", ["static", "chain"])
def test_a_sampled_row_alone_equals_the_row_in_a_batch(shape: str) -> None:
    model, inputs, drafter = tiny("llama"), prompt("llama", batch=4), make("hidden_transfer").with_shape(SHAPES[shape])
    how = dict(drafter=drafter, do_sample=True, max_new_tokens=12)
    batch = mmspec.generate(model, seed=[1, 2, 3, 4], **how, **inputs)
    for row in (0, 3):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, seed=[row + 1], **how, input_ids=ids)
        assert torch.equal(alone[0, ids.shape[1] :], batch[row, inputs["input_ids"].shape[1] :])


def test_maps_learn_and_are_saved_and_checked(tmp_path) -> None:
    inputs, batch = answered("llama", batch=2)
    model, parts = tiny("llama"), take_apart(tiny("llama"))
    drafter = new_drafter("hidden_transfer", model)
    objective = equal_recipe(drafter).objective
    assert isinstance(objective, TransferObjective) and drafter.config.starts == (1, 1, 1)
    optimizer, losses = torch.optim.Adam(drafter.parameters(), 0.01), []
    for _ in range(20):
        torch.manual_seed(0)  # the same anchors
        loss, notes = objective(drafter, parts, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0] and {"hit0", "hit2"} <= notes.keys()
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=model)
    assert torch.equal(again.maps, drafter.maps) and [name for name, _ in again.named_parameters()] == ["maps"]
    assert isinstance(published_recipe("hidden_transfer", drafter).objective, TransferObjective)
    for starts in ((1, 0, 1), (1, 1), (-1, 0, 1)):
        with pytest.raises(ValueError, match="starts: expected 3 numbers of layers that do not fall"):
            HiddenTransferConfig(HIDDEN, VOCAB, starts=starts)
    with pytest.raises(ValueError, match="exit: expected a number of layers from 1 to 1, got 5"):
        new_drafter("hidden_transfer", model, starts=(1, 1, 5)).check(parts)
    with pytest.raises(ValueError, match="strict passes"):
        mmspec.generate(model, drafter=drafter, strict=True, max_new_tokens=4, do_sample=False, **inputs)
