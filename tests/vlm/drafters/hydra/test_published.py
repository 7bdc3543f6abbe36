"""Hydra files: the public forward written out in plain torch is what the loaded heads compute, in training and drafting."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.hydra import Hydra
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny

HEADS, LAYERS, COUNT, INNER = 3, 3, 9, 48
ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=500.0)
CONFIG = dict(
    hydra_num_heads=HEADS,
    hydra_num_layers=LAYERS,
    grounded_heads=True,
    hidden_state_offset=0,
    base_model_name_or_path="random",
)
PLUS = dict(CONFIG, hydra_head_arch="prefix-mlp", **ATTENTION)
PREFIX, LAYER = "prefix_embeding_layer.", "prefix_embeding_layer.layers.0."


def prefix_layer() -> dict[str, Tensor]:
    """Names and shapes of a Llama model of one layer."""
    shapes = {f"self_attn.{x}_proj": (8 * n, HIDDEN) for x, n in (("q", 4), ("k", 2), ("v", 2), ("o", 4))}
    shapes |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
    made = {f"{LAYER}{name}.weight": torch.randn(shape) * 0.3 for name, shape in shapes.items()}
    for name in (f"{LAYER}input_layernorm", f"{LAYER}post_attention_layernorm", f"{PREFIX}norm"):
        made[f"{name}.weight"] = torch.rand(HIDDEN) + 0.5
    return made | {f"{PREFIX}embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}


def file(plus: bool) -> dict[str, Tensor]:
    """A small published file. All but the first block of a head are one, stored once for each; with dropout between them,
    as Hydra++ is trained, blocks have odd numbers."""
    made = {"input_embed_fn.weight": torch.randn(VOCAB, HIDDEN)}
    for head in range(HEADS):
        wide, shared = (head + 2) * HIDDEN, (torch.randn(HIDDEN, HIDDEN) * 0.2, torch.randn(HIDDEN) * 0.2)
        for layer in range(LAYERS):
            block = f"hydra_mlp.{head}.{2 * layer + 1 if plus else layer}"
            for part in ("linear", "res_connection") if layer == 0 else ("linear",):
                fresh = torch.randn(HIDDEN, wide) * 0.2, torch.randn(HIDDEN) * 0.2
                weight, bias = shared if layer else fresh
                made |= {f"{block}.{part}.weight": weight, f"{block}.{part}.bias": bias}
        last = f"hydra_lm_head.{head}.1" if plus else f"hydra_lm_head.{head}"
        made |= {f"{last}.weight": torch.randn(VOCAB, HIDDEN) * 0.3, f"{last}.bias": torch.randn(VOCAB)}
    return made | prefix_layer() if plus else made


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + ATTENTION["rms_norm_eps"]).sqrt()


def turned(x: Tensor) -> Tensor:
    """Rotary positions 0, 1, ... of [heads, n, 8]."""
    angle = torch.arange(x.shape[1])[:, None] * ATTENTION["rope_theta"] ** (-torch.arange(0, 8, 2) / 8)
    first, second = x[..., :4], x[..., 4:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def prefix_states(state: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """What the published prefix layer makes of states [n, H]: one Llama layer, then the model's final norm."""
    w = {name.removeprefix(LAYER).removesuffix(".weight"): value for name, value in state.items()}
    read = normed(hidden, w["input_layernorm"])
    q, k, v = ((read @ w[f"self_attn.{x}_proj"].T).unflatten(-1, (-1, 8)).transpose(0, 1) for x in "qkv")
    q, k, v = turned(q), turned(k).repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    later = torch.ones(len(hidden), len(hidden)).triu(1).bool()
    weight = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
    u = hidden + (weight @ v).transpose(0, 1).flatten(1) @ w["self_attn.o_proj"].T
    read = normed(u, w["post_attention_layernorm"])
    u = u + (F.silu(read @ w["mlp.gate_proj"].T) * (read @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    return normed(u, state[f"{PREFIX}norm.weight"])


def published_logits(state: dict[str, Tensor], hidden: Tensor, embeds: Tensor, plus: bool) -> list[Tensor]:
    """Logits [n, V] of every head at every place t: head i reads the prefix state of t and the embeddings of t + 1 to
    t + 1 + i, and predicts the token at t + 2 + i.   embeds: [n, H], of tokens 1..n; rolled past the end as in public."""
    start, found = prefix_states(state, hidden) if plus else hidden, []
    for head in range(HEADS):
        x = torch.cat([start, *(embeds.roll(-i, 0) for i in range(head + 1))], -1)
        for layer in range(LAYERS):
            block = f"hydra_mlp.{head}.{2 * layer + 1 if plus else layer}"
            linear = x @ state[f"{block}.linear.weight"].T + state[f"{block}.linear.bias"]
            if layer == 0:
                x = x @ state[f"{block}.res_connection.weight"].T + state[f"{block}.res_connection.bias"]
            x = x + F.silu(linear)
        last = f"hydra_lm_head.{head}.1" if plus else f"hydra_lm_head.{head}"
        found.append(x @ state[f"{last}.weight"].T + state[f"{last}.bias"])
    return found


def load(plus: bool, state: dict[str, Tensor], **config: object) -> Hydra:
    return mmspec.vlm.drafter_from_state_dict("hydra", state, dict(PLUS if plus else CONFIG, **config))


def test_the_prefix_layer_reference_is_a_llama_model_of_one_layer() -> None:
    state, hidden = prefix_layer(), torch.randn(COUNT, HIDDEN)
    sizes = {name: value for name, value in ATTENTION.items() if name != "rope_theta"}
    model = hf.LlamaModel(
        hf.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=1,
            head_dim=8,
            rope_parameters={"rope_type": "default", "rope_theta": ATTENTION["rope_theta"]},
            **sizes,
        )
    ).eval()
    model.load_state_dict({name.removeprefix(PREFIX): value for name, value in state.items()})
    expected = model(inputs_embeds=hidden[None]).last_hidden_state[0]
    torch.testing.assert_close(prefix_states(state, hidden), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("plus", (True, False), ids=("hydra++", "hydra"))
def test_every_head_computes_the_published_logits(plus: bool) -> None:
    state = file(plus)
    drafter, hidden, embeds = load(plus, state), torch.randn(COUNT, HIDDEN), torch.randn(COUNT, HIDDEN)
    view = PromptView(embeds[None], hidden[None], torch.zeros(1, COUNT, dtype=torch.long))
    outputs = drafter.unroll(drafter.read(view), view, 0, HEADS)
    for head, expected in enumerate(published_logits(state, hidden, embeds, plus)):
        # unrolled, depth d of slot r is what a draft that started d slots earlier holds there
        ours = drafter.logits(outputs[head][0, head:], head + 1, None)
        torch.testing.assert_close(ours, expected[: COUNT - head], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("plus", (True, False), ids=("hydra++", "hydra"))
def test_a_draft_holds_the_best_tokens_of_the_published_heads(plus: bool) -> None:
    """One round behind a prompt, through the prompt's cache and the observed state."""
    model, state = tiny("llama"), file(plus)
    parts, inputs = take_apart(model), prompt("llama")
    watched = Watched(load(plus, state).with_shape(Chain(FixedLength(HEADS))))
    out = mmspec.generate(model, drafter=watched, max_new_tokens=8, do_sample=False, **inputs)
    ids, drafted = inputs["input_ids"], watched.rounds[0].draft.value[0].tolist()
    count = ids.shape[1]
    assert torch.equal(out, model.generate(**inputs, max_new_tokens=8, do_sample=False))
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state[0]
        for head in range(HEADS):
            known = torch.tensor([*ids[0].tolist(), *drafted[: head + 1]])
            embeds = parts.embed(known)[1:]
            # of the places behind the prompt's last token nothing is asked
            states = torch.cat([hidden, torch.zeros(len(embeds) - count, HIDDEN)])
            logits = published_logits(state, states, embeds, plus)[head][count - 1]
            assert int(logits.argmax()) == drafted[head + 1]


def test_the_prefix_layers_settings_are_the_targets_unless_the_config_has_them() -> None:
    state = file(plus=True)
    plain = dict(CONFIG, hydra_head_arch="prefix-mlp")
    made = mmspec.vlm.drafter_from_state_dict("hydra", state, plain, tiny("llama"))
    config = tiny("llama").config
    assert (made.config.num_attention_heads, made.config.num_key_value_heads) == (4, 2)
    assert made.config.rope_theta == config.rope_parameters["rope_theta"] == 10000
    assert made.config.rms_norm_eps == config.rms_norm_eps
    assert made.config.final_norm and made.config.intermediate_size == INNER
    made = mmspec.vlm.drafter_from_state_dict("hydra", state, PLUS, tiny("llama"))
    assert (made.config.rope_theta, made.config.rms_norm_eps) == (500, 1e-5)
    with pytest.raises(ValueError, match="num_attention_heads of the prefix layer, or a target that gives it"):
        mmspec.vlm.drafter_from_state_dict("hydra", state, plain)


def test_copies_of_the_shared_block_become_blocks_of_their_own() -> None:
    state = file(plus=True)
    state["hydra_mlp.1.5.linear.weight"] = torch.randn(HIDDEN, HIDDEN)
    first, second, third = load(True, state).blocks[1]
    assert torch.equal(second.linear.weight, state["hydra_mlp.1.3.linear.weight"])
    assert torch.equal(third.linear.weight, state["hydra_mlp.1.5.linear.weight"])
    assert first.linear.weight.shape == (2 * HIDDEN, 3 * HIDDEN)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(hydra_head_arch="cross-attn"), "hydra_head_arch: expected 'mlp' or 'prefix-mlp', got 'cross-attn'"),
        (dict(grounded_heads=False), "grounded_heads: expected heads that read the draft tokens"),
        (dict(hidden_state_offset=2), "hidden_state_offset: expected 0"),
        (dict(hydra_num_heads=2), r"unknown \['hydra_lm_head.2.1.bias'"),
        (dict(hydra_num_layers=4), "missing .*hydra_mlp.0.7.linear.weight"),
        (dict(rope_scaling={"type": "dynamic"}), "rope_scaling: expected plain"),
    ],
)
def test_unsupported_head_configs_are_refused(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(True, file(plus=True), **config)


def test_a_config_without_the_number_of_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="got none for hydra_num_layers"):
        mmspec.vlm.drafter_from_state_dict("hydra", file(plus=True), {"hydra_num_heads": HEADS})


def test_a_prefix_layer_without_its_final_norm_is_refused() -> None:
    state = file(plus=True)
    del state[f"{PREFIX}norm.weight"]
    with pytest.raises(ValueError, match=rf"missing \['{PREFIX}norm.weight'\]"):
        load(True, state)
