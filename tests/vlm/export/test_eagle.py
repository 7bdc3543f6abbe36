"""Exported drafters: names, config and layer ids as the engines read them, and the same scores from the files alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import mmspec.vlm
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.export import Verifier, export_drafter
from tests.vlm.drafters.eagle3.reference import OPTIONS, published
from tests.vlm.drafters.trained import make

V, K, H, I, HEADS, GROUPS, DIM = 40, 13, 32, 48, 4, 2, 16  # heads of another width than H / HEADS
SIZES, LEVELS = (H, I, HEADS, V), (2, 4, 5)
NAMES = {"speculators": "vllm", "sglang": "sglang"}  # the forms, and the engine of each


def drafter_of(normed: bool = False, reduced: bool = True, levels: tuple[int, ...] = LEVELS) -> Eagle3:
    torch.manual_seed(0)
    config = Eagle3Config(
        H,
        I,
        HEADS,
        V,
        levels=levels,
        num_key_value_heads=GROUPS,
        head_dim=DIM,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
        norm_before_residual=normed,
    )
    drafter = Eagle3(config).eval().requires_grad_(False)
    for norm in (drafter.embed_norm, drafter.state_norm, drafter.norm, drafter.layer.norm):
        norm.weight.normal_(1, 0.2)  # so that none stands for another
    return drafter.with_vocabulary(range(1, V, 3)) if reduced else drafter


class Target(Verifier):
    """A verifier of a class with a random embedding, without a checkpoint."""

    def __init__(self, vocab: int = V, **config: object):
        super().__init__("some/target", {"architectures": ["LlavaForConditionalGeneration"], **config})
        self.embedding = torch.randn(vocab, H, generator=torch.Generator().manual_seed(1))


def option_of(option: str) -> Eagle3:
    """A published drafter with an option."""
    config, state = published(option, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    return mmspec.vlm.drafter_from_state_dict("eagle3", state, config)


def export(format: str, drafter: Eagle3, folder: Path, **options: object) -> tuple[dict, dict[str, Tensor]]:
    export_drafter(drafter, folder, engine=NAMES[format], verifier=Target(), **options)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, theta: float) -> Tensor:
    """Llama's positions 0.. of x [B, heads, n, dim]."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] / theta ** (torch.arange(half) / half)
    a, b = x.split(half, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def scores_of_files(config: dict, w: dict[str, Tensor], embeds: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """What an engine computes from the two files: causal outputs [B, n, H] and scores [B, n, V] of a context.

    Written from the description of the format alone.   states: [B, n, 3 H], or the outputs of an earlier call, [B, n, H].
    """
    layer = config.get("transformer_layer_config", config)
    heads, groups, dim = layer["num_attention_heads"], layer["num_key_value_heads"], layer["head_dim"]
    eps, theta = layer["rms_norm_eps"], layer["rope_theta"]
    assert theta == layer["rope_parameters"]["rope_theta"]
    assert not layer["attention_bias"] and not layer["mlp_bias"] and layer["num_hidden_layers"] == 1
    if states.shape[-1] != layer["hidden_size"]:
        states = states @ w["fc.weight"].T
    normed = rms(states, w["layers.0.hidden_norm.weight"], eps)
    x = torch.cat([rms(embeds, w["layers.0.input_layernorm.weight"], eps), normed], -1)
    q, k, v = ((x @ w[f"layers.0.self_attn.{n}_proj.weight"].T).unflatten(-1, (-1, dim)).transpose(1, 2) for n in "qkv")
    q, k = rotated(q, theta), rotated(k, theta)
    k, v = (y.repeat_interleave(heads // groups, 1) for y in (k, v))
    weight = (q @ k.transpose(-1, -2) / dim**0.5).masked_fill(
        torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -torch.inf
    )
    attended = (weight.softmax(-1) @ v).transpose(1, 2).flatten(2)
    residual = normed if config["norm_before_residual"] else states
    u = residual + attended @ w["layers.0.self_attn.o_proj.weight"].T
    y = rms(u, w["layers.0.post_attention_layernorm.weight"], eps)
    gate, up, down = (w[f"layers.0.mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
    out = u + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
    scores = rms(out, w["norm.weight"], eps) @ w["lm_head.weight"].T
    if "d2t" not in w:
        return out, scores
    full = torch.full((*scores.shape[:-1], layer["vocab_size"]), -torch.inf)
    for row, offset in enumerate(w["d2t"].tolist()):
        full[..., row + offset] = scores[..., row]
    return out, full


CASES = (
    ("speculators", False, True),
    ("speculators", True, True),
    ("speculators", False, False),
    ("sglang", False, True),
    ("sglang", False, False),
)


@pytest.mark.parametrize("format, normed, reduced", CASES)
def test_the_files_alone_give_the_drafters_scores(format: str, normed: bool, reduced: bool, tmp_path: Path) -> None:
    drafter = drafter_of(normed, reduced)
    config, weights = export(format, drafter, tmp_path, dtype=torch.float32)
    embeds, states = torch.randn(2, 7, H), torch.randn(2, 7, 3 * H)
    rotary = drafter.layer.rotary(7, embeds.device, embeds.dtype)[None]
    for _ in range(2):  # from the target's states, then from its own outputs
        mine = drafter(*drafter.fuse(embeds, states), rotary, SlotCache(1, 7), None)
        out, scores = scores_of_files(config, weights, embeds, states)
        torch.testing.assert_close(out, mine, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(scores, drafter.logits(mine, 1, None), atol=1e-5, rtol=1e-4)
        states = mine


@pytest.mark.parametrize("format", ("speculators", "sglang"))
def test_names_shapes_and_dtypes(format: str, tmp_path: Path) -> None:
    _, weights = export(format, drafter_of(), tmp_path)
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    shapes = {
        "fc.weight": (H, 3 * H),
        f"{attention}q_proj.weight": (HEADS * DIM, 2 * H),
        f"{attention}k_proj.weight": (GROUPS * DIM, 2 * H),
        f"{attention}v_proj.weight": (GROUPS * DIM, 2 * H),
        f"{attention}o_proj.weight": (H, HEADS * DIM),
        f"{mlp}gate_proj.weight": (I, H),
        f"{mlp}up_proj.weight": (I, H),
        f"{mlp}down_proj.weight": (H, I),
        **{f"layers.0.{n}.weight": (H,) for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        "norm.weight": (H,),
        "lm_head.weight": (K, H),
        "d2t": (K,),
        "t2d": (V,),
    }
    if format == "speculators":
        shapes["embed_tokens.weight"] = (V, H)
        assert torch.equal(weights["embed_tokens.weight"], Target().embedding.bfloat16())
    assert {name: tuple(value.shape) for name, value in weights.items()} == shapes
    assert weights["d2t"].dtype == torch.int64 and weights["t2d"].dtype == torch.bool
    assert {value.dtype for name, value in weights.items() if name not in ("d2t", "t2d")} == {torch.bfloat16}
    ids = (torch.arange(K) + weights["d2t"]).tolist()
    assert len(set(ids)) == K and 0 <= min(ids) <= max(ids) < V
    assert weights["t2d"].nonzero()[:, 0].tolist() == ids
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


LAYER = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": H, "intermediate_size": I, "num_hidden_layers": 1,
    "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": DIM, "vocab_size": V,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip


WINDOWS = {"layer_types": ["full_attention"], "sliding_window": None, "use_sliding_window": False}


def test_the_config_vllm_reads(tmp_path: Path) -> None:
    config, _ = export("speculators", drafter_of(), tmp_path, max_position_embeddings=4096, speculative_tokens=5)
    assert config == {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": K,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "transformer_layer_config": LAYER | WINDOWS,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
            ],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlavaForConditionalGeneration"]},
        },
    }


def test_the_config_sglang_reads(tmp_path: Path) -> None:
    config, _ = export("sglang", drafter_of(), tmp_path, max_position_embeddings=4096)
    assert config == {
        **LAYER,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": K,
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
    }


@pytest.mark.parametrize("format", ("speculators", "sglang"))
def test_transformers_reads_the_layers_config(format: str, tmp_path: Path) -> None:
    config, _ = export(format, drafter_of(), tmp_path)
    read = hf.LlamaConfig.from_dict(config.get("transformer_layer_config", config))
    assert (read.hidden_size, read.head_dim, read.num_key_value_heads, read.vocab_size) == (H, DIM, GROUPS, V)
    assert read.rope_parameters["rope_theta"] == 5e5 and read.rope_parameters["rope_type"] == "default"


@pytest.mark.parametrize("format, normed, reduced", CASES)
def test_an_exported_drafter_loads_again(format: str, normed: bool, reduced: bool, tmp_path: Path) -> None:
    drafter = drafter_of(normed, reduced)
    config, weights = export(format, drafter, tmp_path, dtype=torch.float32)
    again = mmspec.vlm.drafter_from_state_dict("eagle3", weights, config)
    assert again.levels == LEVELS and again.config.norm_before_residual == normed
    state = again.state_dict()
    if format == "speculators":  # without a target nothing says whose the embedding is
        assert torch.equal(state.pop("embed_tokens.weight"), Target().embedding)
    assert state.keys() == drafter.state_dict().keys()
    for name, value in drafter.state_dict().items():
        assert torch.equal(state[name], value), name


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind", ("eagle3", "peagle"))
@pytest.mark.parametrize("option", OPTIONS)
def test_a_published_drafter_with_any_option_is_written_as_it_was(kind: str, option: str, tmp_path: Path) -> None:
    config, state = published(option, eagle_aux_hidden_state_layer_ids=[1, 2, 3], speculators_model_type=kind)
    config["mask_token_id"] = 90
    drafter = mmspec.vlm.drafter_from_state_dict(kind, state, config)
    export_drafter(drafter, tmp_path, verifier=Target(max_position_embeddings=256), dtype=torch.float32)
    weights, read = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert weights.keys() == state.keys()
    assert all(torch.equal(weights[name], value) for name, value in state.items())
    layer = config["transformer_layer_config"]
    assert {name: read["transformer_layer_config"][name] for name in layer} == layer
    assert mmspec.vlm.drafter_from_state_dict(kind, weights, read).config == drafter.config


def test_drafters_that_engines_cannot_serve_are_refused(tmp_path: Path) -> None:
    refused = (
        ("sglang", drafter_of(normed=True), {}, "norm_before_residual"),
        ("sglang", make("eagle"), {}, "expected one of eagle3, which sglang supports, got eagle"),
        ("vllm", make("msd"), {}, "which vllm supports, got msd"),
        ("sglang", make("peagle"), {}, "got peagle; vllm would"),
        ("llama.cpp", drafter_of(), {}, "engine: expected one of sglang, speculators, vllm, got 'llama.cpp'"),
        ("vllm", drafter_of(), dict(speculative_tokens=0), "speculative_tokens"),
        ("sglang", drafter_of(), dict(max_position_embeddings=0), "max_position_embeddings"),
        ("vllm", drafter_of(), dict(verifier=Target(V + 1)), "expected an embedding of shape"),
        ("sglang", option_of("window"), {}, "windows: expected \\(0,\\), got \\(6,\\)"),
        ("sglang", option_of("qwen3"), {}, "qk_norm: expected False"),
        ("sglang", option_of("norm_output"), {}, "norm_output: expected False"),
        (
            "vllm",
            Eagle3(Eagle3Config(*SIZES, LEVELS, num_hidden_layers=2, windows=(4, 8))),
            {},
            "windows: expected the same",
        ),
        *(
            ("sglang", drafter_of(levels=levels), {}, "three rising layers from 1")
            for levels in ((0, 1, 2), (2, 2, 3), (1, 2), (3, 2, 5))
        ),
    )
    for engine, drafter, options, message in refused:
        with pytest.raises(ValueError, match=message):
            export_drafter(drafter, tmp_path, **{"engine": engine, "verifier": Target(), **options})
    assert not list(tmp_path.iterdir())
