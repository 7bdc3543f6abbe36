"""P-EAGLE: all depths in one pass equal one causal pass from nothing, and its published files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

import mmspec
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.peagle import PEagle, default_mask
from mmspec.vlm.hidden_states import record_states
from tests.vlm.drafters.eagle3.reference import OPTIONS, Reference, published
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny

CONFIG = dict(
    architectures=["PEagleSpeculator"],
    speculators_model_type="peagle",
    mask_token_id=90,
    draft_vocab_size=60,
    eagle_aux_hidden_state_layer_ids=[0, 1, 1],
    norm_before_residual=True,
    transformer_layer_config=dict(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        num_hidden_layers=4,
        rms_norm_eps=1e-5,
        model_type="llama",
        hidden_act="silu",
    ),
    speculators_config=dict(proposal_methods=[dict(proposal_type="greedy", speculative_tokens=5)]),
)


def random_file() -> dict[str, Tensor]:
    torch.manual_seed(0)
    state = {
        "embed_tokens.weight": torch.randn(VOCAB, HIDDEN),
        "lm_head.weight": torch.randn(60, HIDDEN),
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN) * 0.1,
        "norm.weight": torch.ones(HIDDEN),
        "mask_hidden": torch.randn(1, 1, 3 * HIDDEN),
    }
    for n in range(4):
        read = HIDDEN if n else 2 * HIDDEN
        rows = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
        state |= {f"layers.{n}.self_attn.{name}.weight": torch.randn(size, read) * 0.2 for name, size in rows.items()}
        state[f"layers.{n}.self_attn.o_proj.weight"] = torch.randn(HIDDEN, 32) * 0.2
        state |= {f"layers.{n}.mlp.{name}_proj.weight": torch.randn(48, HIDDEN) * 0.2 for name in ("gate", "up")}
        state[f"layers.{n}.mlp.down_proj.weight"] = torch.randn(HIDDEN, 48) * 0.2
        state |= {
            f"layers.{n}.{name}_layernorm.weight": 1 + 0.1 * torch.randn(HIDDEN) for name in ("input", "post_attention")
        }
    state["layers.0.hidden_norm.weight"] = torch.ones(HIDDEN)
    ids = torch.arange(60) + 7
    marked = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    return state | {"d2t": ids - torch.arange(60), "t2d": marked}


def load(**changed: object) -> PEagle:
    return mmspec.vlm.drafter_from_state_dict("peagle", random_file(), {**CONFIG, **changed})


@torch.no_grad()
@pytest.mark.parametrize("drafter", (lambda: make("peagle"), load), ids=("ours", "published"))
def test_parallel_depths_match_a_causal_pass_from_scratch(drafter) -> None:
    drafter, model = drafter(), tiny("llama")
    inputs = prompt("llama")
    run = mmspec.vlm.start(model, drafter=drafter, max_new_tokens=30, do_sample=False, **inputs)
    for _ in range(3):
        run.step()
        run.state.propose(run.target, run.keys)
    text = torch.cat([inputs["input_ids"], torch.tensor(run.target.tokens)], 1)
    with record_states(take_apart(model).decoder, drafter.levels) as seen:
        model(text[:, :-1])
    blank, states = drafter.masks(1, drafter.config.depths - 1)
    embeds = torch.cat([drafter.embed_tokens(text[:, 1:]), blank], 1)
    attend, carry = drafter.fuse(embeds, torch.cat([seen.levels, states], 1))
    rotary = drafter.layer.rotary(attend.shape[1], attend.device, attend.dtype)[None]
    whole = drafter(attend, carry, rotary, SlotCache(drafter.config.num_hidden_layers, 0), None)
    torch.testing.assert_close(run.state.rows, whole[:, text.shape[1] - 2 :], atol=1e-4, rtol=1e-3)
    assert run.state.cache.lengths == [text.shape[1] - 1]


@torch.no_grad()
@pytest.mark.parametrize("option", OPTIONS)
def test_drafts_of_every_option_match_the_reference(option: str) -> None:
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5}
    config, state = published(
        option, speculators_model_type="peagle", mask_token_id=90, speculators_config={"proposal_methods": [proposal]}
    )
    drafter, model = mmspec.vlm.drafter_from_state_dict("peagle", state, config), tiny("llama")
    config = {**config, "norm_output": False}  # no output is read on
    reference, rows, inputs = Reference(config, state), state["embed_tokens.weight"], prompt("llama")
    run = mmspec.vlm.start(model, drafter=drafter, max_new_tokens=30, do_sample=False, **inputs)
    for _ in range(3):
        run.step()
        run.state.propose(run.target, run.keys)
        text = torch.cat([inputs["input_ids"], torch.tensor(run.target.tokens)], 1)
        with record_states(take_apart(model).decoder, drafter.levels) as seen:
            model(text[:, :-1])
        embeds = torch.cat([rows[text[0, 1:]], rows[90].expand(4, -1)])
        levels = torch.cat([seen.levels[0], state["mask_hidden"][0].expand(4, -1)])
        expected = reference.outputs(embeds, reference.joined(levels))[-5:]
        torch.testing.assert_close(run.state.rows[0], expected, atol=1e-4, rtol=1e-4)
        scores = drafter.logits(run.state.rows[0], 1, None)
        torch.testing.assert_close(scores, reference.scores(expected), atol=1e-4, rtol=1e-4)


def test_a_published_file_drafts_its_own_vocabulary_and_keeps_the_targets_words() -> None:
    drafter, model = load(), tiny("llama")
    assert drafter.config.depths == 5 and len(drafter.rest) == 3 and drafter.levels == (0, 1, 1)
    inputs = dict(prompt("llama", batch=4), max_new_tokens=14, do_sample=False)
    out = mmspec.generate(model, drafter=drafter, return_dict=True, **inputs)
    assert torch.equal(out.sequences, model.generate(**inputs))
    assert out.stats.drafter_passes <= out.stats.target_passes + 1


def test_a_mask_that_the_config_leaves_out_follows_the_rule_of_the_training(tmp_path: Path) -> None:
    model = tiny("llama")
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(95)}, unk_token="w0"))
    model.save_pretrained(tmp_path)
    target = type(model).from_pretrained(tmp_path)
    for tokens, expected in (({"mask_token": "w5"}, 5), ({}, 95), ({"pad_token": "w7"}, 95)):
        hf.PreTrainedTokenizerFast(tokenizer_object=words, **tokens).save_pretrained(tmp_path)
        assert default_mask(target) == expected
    words.add_tokens([f"more{n}" for n in range(VOCAB - 95)])
    hf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w7").save_pretrained(tmp_path)
    assert default_mask(target) == 7
    config = {**CONFIG, "mask_token_id": None}
    assert mmspec.vlm.drafter_from_state_dict("peagle", random_file(), config, target).config.mask_token_id == 7
    hf.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tokenizer of .* has no token for it"):
        default_mask(target)


def test_missing_config_fields_and_weights_are_reported() -> None:
    with pytest.raises(ValueError, match="expected the field mask_token_id, got none"):
        load(mask_token_id=None)
    state = random_file()
    del state["mask_hidden"]
    with pytest.raises(ValueError, match="expected mask_hidden"):
        mmspec.vlm.drafter_from_state_dict("peagle", state, CONFIG)
