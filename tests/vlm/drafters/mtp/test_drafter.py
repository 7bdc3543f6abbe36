"""Native MTP layers: read from checkpoints by their published names, recursed by hand, exact on every target."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from mmspec.vlm.drafters.mtp.published import write_mtp
from mmspec.vlm.training.losses import cross_entropy
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.drafters.watched import Planted
from tests.vlm.tiny import liven

VOCAB = 60
_SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
_LINEAR = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_conv_kernel_dim=3,
    layer_types=["linear_attention", "full_attention"] * 2,
    num_hidden_layers=4,
)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
_DEEP = dict(
    num_hidden_layers=3,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    n_shared_experts=1,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
)


def qwen_next() -> nn.Module:
    return hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**_SIZES, **_LINEAR, **_EXPERTS))


def qwen_dense() -> nn.Module:
    return hf.Qwen3_5ForCausalLM(hf.Qwen3_5TextConfig(**_SIZES, **_LINEAR))


def deepseek() -> nn.Module:
    mla = dict(q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8)
    return hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(**_SIZES | dict(head_dim=4, num_key_value_heads=4), **_DEEP, **mla)
    )


def glm() -> nn.Module:
    return hf.Glm4MoeForCausalLM(hf.Glm4MoeConfig(**_SIZES, **_DEEP))


def of_class(name: str) -> nn.Module:
    """Of a class with pictures, whose decoder lies deeper."""
    return model_of(name, config_of(name))


TARGETS = {
    "qwen3_next": qwen_next,
    "qwen3_5": qwen_dense,
    "deepseek_v3": deepseek,
    "glm4_moe": glm,
    "glm4v_moe": lambda: of_class("Glm4vMoeForConditionalGeneration"),
    "exaone4_5": lambda: of_class("Exaone4_5_ForConditionalGeneration"),
}
# whose layer stands behind the model's own, and where
BEHIND = {"deepseek_v3": "model.", "glm4_moe": "model.", "glm4v_moe": "model.language_model."}


@cache
def target(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TARGETS[name]().eval().requires_grad_(False)
        liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


def published(name: str) -> dict[str, Tensor]:
    """An MTP layer as its checkpoint names it, beside tensors of the model; experts one by one."""
    parts = take_apart(target(name))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        state = {key: value.clone() for key, value in _layer_like(parts.decoder, parts.layers - 1).items()}
        for value in state.values():
            if value.is_floating_point():
                value.add_(torch.randn_like(value) * 0.05)
        width, norm = parts.hidden_size, parts.decoder.norm.weight
        fc = torch.randn(width, 2 * width) * 0.1
        fc[:, width:] += torch.eye(width)
        norms = [norm + 0.1 * torch.randn(width) for _ in range(3)]
    if name in BEHIND:
        prefix = f"{BEHIND[name]}layers.{parts.layers}."
        own = {
            "eh_proj.weight": fc,
            "enorm.weight": norms[0],
            "hnorm.weight": norms[1],
            "shared_head.norm.weight": norms[2],
            "shared_head.head.weight": torch.zeros(2, width),
            "embed_tokens.weight": torch.zeros(2, width),
        }
        own = {f"{prefix}{key}": value for key, value in own.items()} | {f"{prefix}{k}": v for k, v in state.items()}
    else:
        own = {
            "mtp.fc.weight": fc,
            "mtp.pre_fc_norm_embedding.weight": norms[0],
            "mtp.pre_fc_norm_hidden.weight": norms[1],
            "mtp.norm.weight": norms[2],
        }
        own |= {f"mtp.layers.0.{key}": value for key, value in state.items()}
    return own | {"model.layers.0.input_layernorm.weight": norm, "lm_head.weight": torch.zeros(VOCAB, width)}


def _layer_like(decoder: nn.Module, index: int) -> dict[str, Tensor]:
    """A layer's tensors with its experts apart."""
    found = {}
    for key, value in decoder.layers[index].state_dict().items():
        if key.endswith("experts.gate_up_proj"):
            for number, both in enumerate(value):
                gate, up = both.chunk(2)
                found[key.replace("gate_up_proj", f"{number}.gate_proj.weight")] = gate
                found[key.replace("gate_up_proj", f"{number}.up_proj.weight")] = up
        elif key.endswith("experts.down_proj"):
            found |= {key.replace("down_proj", f"{n}.down_proj.weight"): one for n, one in enumerate(value)}
        else:
            found[key] = value
    return found


@cache
def drafter(name: str) -> Mtp:
    return mmspec.vlm.drafter_from_state_dict("mtp", published(name), {}, target(name))


def ragged() -> dict[str, Tensor]:
    ids = torch.randint(1, VOCAB, (4, 11), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 4, 2, 8)):
        ids[row, :padding] = mask[row, :padding] = 0
    return dict(input_ids=ids, attention_mask=mask)


SHAPES: dict[str, Shape] = {
    "chain": Chain(FixedLength(5)),
    "static": StaticTree((0, 0, 0, 1, 1, 2, 3)),
    "dynamic": DynamicTree(nodes=8, depth=4, width=3),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", TARGETS)
def test_greedy_words_are_the_targets_own_whatever_is_accepted(name: str, shape: str) -> None:
    inputs = dict(ragged(), do_sample=False)
    truth = target(name).generate(**inputs, max_new_tokens=30)
    planted = Planted(drafter(name).with_shape(SHAPES[shape]), truth=truth[:, 11:].tolist(), words=VOCAB)
    for one in (drafter(name).with_shape(SHAPES[shape]), planted):
        out = mmspec.generate(target(name), drafter=one, return_dict=True, max_new_tokens=20, **inputs)
        assert torch.equal(out.sequences, truth[:, :31])
    assert out.stats.accept_length > 2


@pytest.mark.covering(strength=1)
@torch.no_grad()
@pytest.mark.parametrize("rounds", (1, 4))
@pytest.mark.parametrize("name", TARGETS)
def test_a_chain_is_the_layer_fed_by_hand(name: str, rounds: int) -> None:
    """From scratch at every step: the whole text so far through norms, projection, layer and norm."""
    model, mtp = target(name), drafter(name).with_shape(Chain(FixedLength(4)))
    ids = ragged()["input_ids"][:1]
    truth = model.generate(ids, max_new_tokens=30, do_sample=False)[:, 11:]
    planted = Planted(mtp, truth=truth.tolist(), words=VOCAB)
    run = mmspec.vlm.start(model, drafter=planted, input_ids=ids, max_new_tokens=30, do_sample=False)
    for _ in range(rounds):
        run.step()
    planted.propose(run.target, run.keys)
    draft, parts = planted.rounds[-1].draft, take_apart(model)
    text = torch.cat([ids, torch.tensor(run.target.tokens)], 1)
    states, text = parts.decoder(input_ids=text[:, :-1]).last_hidden_state, text[:, 1:]
    for step in range(4):
        read = mtp.fuse(parts.embed(text), states)
        out = mtp(read, torch.arange(1, text.shape[1] + 1)[None], SlotCache(1, 0), None)
        token = parts.head(out[:, -1:]).argmax(-1)
        assert int(token) == int(draft.value[0, step + 1])
        text, states = torch.cat([text, token], 1), torch.cat([states, out[:, -1:]], 1)


@torch.no_grad()
@pytest.mark.parametrize("name", ("deepseek_v3", "glm4_moe"))
def test_the_layer_output_matches_transformers(name: str) -> None:
    model, mtp, ids = target(name), drafter(name), ragged()["input_ids"][:1]
    own_model = getattr(hf.modeling_layers, "MtpModel", None)
    if not hasattr(own_model, "forward_layer"):
        pytest.skip(f"transformers {hf.__version__} has no forward_layer of an MtpModel to compare with")
    theirs = own_model(model, 1).eval()
    layer, own = theirs.layers[0], mtp.decoder
    for module, like in (
        (layer.mtp_block, own.layers[0]),
        (layer.enorm, mtp.embedding_norm),
        (layer.eh_proj, mtp.fc),
        (layer.hnorm, mtp.hidden_norm),
        (layer.post_norm, own.norm),
    ):
        module.load_state_dict(like.state_dict())
    states, place = model.model(ids).last_hidden_state[:, :-1], torch.arange(1, ids.shape[1])[None]
    expected = theirs.forward_layer(0, states, place, hf.cache_utils.MtpCache(), input_ids=ids[:, 1:])
    found = mtp(mtp.fuse(model.get_input_embeddings()(ids[:, 1:]), states), place, SlotCache(1, 0), None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("sampled", (True, False))
@pytest.mark.parametrize("name", ("qwen3_5", "deepseek_v3"))
def test_a_row_drafts_the_same_alone_and_in_a_batch(name: str, sampled: bool) -> None:
    inputs, options = ragged(), dict(max_new_tokens=9, return_dict=True)
    options |= dict(do_sample=True, top_k=4) if sampled else dict(do_sample=False)
    together = mmspec.generate(target(name), drafter=drafter(name), seed=[1, 2, 3, 4], **inputs, **options)
    for row, padding in enumerate((0, 4, 2, 8)):
        ids = inputs["input_ids"][row : row + 1, padding:]
        alone = mmspec.generate(target(name), drafter=drafter(name), seed=[1 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -9:], together.sequences[row, -9:])
        in_batch = [line[row] for line in together.stats.accepted if line[row] is not None]
        assert in_batch == [line[0] for line in alone.stats.accepted]


@pytest.mark.parametrize("name", ("qwen3_5", "deepseek_v3"))
def test_a_prompt_of_one_token_drafts(name: str) -> None:
    inputs = dict(input_ids=torch.tensor([[7]]), max_new_tokens=8, do_sample=False)
    out = mmspec.generate(target(name), drafter=drafter(name), **inputs)
    assert torch.equal(out, target(name).generate(**inputs))


def test_states_in_front_of_the_final_norm_can_be_read_instead() -> None:
    parts = take_apart(target("qwen3_5"))
    made = Mtp(MtpConfig(32, VOCAB, normed=False), parts)
    assert made.levels == (4,)
    inputs = dict(ragged(), max_new_tokens=8, do_sample=False)
    assert torch.equal(mmspec.generate(target("qwen3_5"), drafter=made, **inputs), target("qwen3_5").generate(**inputs))


@pytest.mark.parametrize("name", TARGETS)
def test_every_missing_and_unknown_tensor_of_the_layer_is_listed(name: str) -> None:
    state = published(name)
    gone = next(key for key in state if "post_attention_layernorm" in key and ("mtp" in key or ".0." not in key))
    prefix = gone.rpartition("post_attention_layernorm")[0]
    del state[gone]
    state[f"{prefix}something"] = torch.zeros(1)
    with pytest.raises(ValueError, match="missing .*post_attention_layernorm.*unknown .*something"):
        mmspec.vlm.drafter_from_state_dict("mtp", state, {}, target(name))


def test_an_invalid_mtp_checkpoint_reports_one_error() -> None:
    model = target("qwen3_5")
    for state, given, message in (
        (
            model.state_dict(),
            model,
            "expected the checkpoint's MTP layer, named mtp.*, mtp_layers.* or layers.N.eh_proj",
        ),
        (published("qwen3_5"), None, "expected the model whose checkpoint this is, got none"),
        (published("qwen3_5") | {"mtp.layers.1.norm.weight": torch.zeros(1)}, model, "expected one MTP layer"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            mmspec.vlm.drafter_from_state_dict("mtp", state, {}, given)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="files of its own"):
        drafter("qwen3_5").save_pretrained("nowhere")


def test_a_layer_of_another_target_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size|hidden_size"):
        from tests.vlm.tiny import tiny

        mmspec.generate(tiny("llama"), drafter=drafter("qwen3_5"), input_ids=torch.tensor([[5, 6]]), max_new_tokens=4)


@torch.no_grad()
@pytest.mark.parametrize("name", ("qwen3_5", "glm4v_moe"))
def test_training_computes_every_depth_as_drafting_does(name: str) -> None:
    """By hand: a draft that starts at slot s reads true pairs up to there and its own outputs from then on."""
    mtp, parts, inputs = drafter(name), take_apart(target(name)), ragged()
    answer = torch.arange(11) >= 9
    batch = teacher_pass(parts, inputs, answer.expand(4, -1) & (inputs["attention_mask"] > 0))
    view = batch.prompt_view(parts)
    slots = mtp.read(view)
    depths, first = 3, 1
    found = mtp.unroll(slots, view, first, depths)
    for row, padding in enumerate((0, 4, 2, 8)):
        ids = inputs["input_ids"][row : row + 1, padding:]
        states = parts.decoder(input_ids=ids).last_hidden_state[:, :-1]
        embeds = parts.embed(ids[:, 1:])
        place = torch.arange(1, ids.shape[1])[None]
        for slot in range(first, states.shape[1]):
            for depth in range(min(depths, slot - first + 1)):  # drafts that started at a slot that is computed
                hidden = states[:, : slot - depth + 1]
                for _ in range(depth + 1):
                    count = hidden.shape[1]
                    read = mtp.fuse(embeds[:, :count], hidden)
                    out = mtp(read, place[:, :count], SlotCache(1, 0), None)
                    hidden = torch.cat([hidden, out[:, -1:]], 1)
                expected = found[depth][row, slot - first]
                torch.testing.assert_close(out[0, -1], expected, atol=1e-4, rtol=1e-3)


def test_a_loss_over_drafted_depths_reaches_every_weight_of_the_layer() -> None:
    parts = take_apart(target("qwen3_5"))
    made = Mtp(MtpConfig(32, VOCAB), parts).requires_grad_(True)
    inputs = ragged()
    batch = teacher_pass(parts, inputs, (torch.arange(11) >= 3).expand(4, -1) & (inputs["attention_mask"] > 0))
    loss, notes = Objective(((1.0, cross_entropy),), depths=3)(made, parts, batch)
    loss.backward()
    missed = [name for name, weight in made.named_parameters() if weight.grad is None or not bool(weight.grad.any())]
    assert not missed
    assert {"hit0", "hit1", "hit2"} == notes.keys()
    batch.place = None
    with pytest.raises(ValueError, match="live teacher"):
        Objective(((1.0, cross_entropy),), depths=2)(made, parts, batch)


@pytest.mark.parametrize("name", ("qwen3_5", "qwen3_next", "deepseek_v3", "glm4v_moe"))
def test_a_written_drafter_is_loaded_again(name: str, tmp_path: Path) -> None:
    write_mtp(drafter(name), target(name), tmp_path)
    again = mmspec.vlm.load_drafter(tmp_path, target=target(name))
    assert again.state_dict().keys() == drafter(name).state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in drafter(name).state_dict().items())
    config = json.loads((tmp_path / "config.json").read_text())
    text, own = config.get("text_config", config), target(name).config.get_text_config(decoder=True)
    assert (text["model_type"], text["hidden_size"]) == (
        own.model_type,
        own.hidden_size,
    )  # converters build the layer from it
    assert config["architectures"] == [type(target(name)).__name__] and "_name_or_path" not in config
    unnormed = Mtp(MtpConfig(32, VOCAB, normed=False), take_apart(target("qwen3_5")))
    with pytest.raises(ValueError, match="reads states behind the final norm"):
        write_mtp(unnormed, target("qwen3_5"), tmp_path)
