"""Files of layers over features, blocks and heads, as other trainers lay them out, are read as what they compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mmspec
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.base.feature_drafter import FeatureConfig
from mmspec.vlm.drafters.dflash import DFlash
from mmspec.vlm.drafters.dspark import DSpark
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.drafters.medusa import Medusa
from mmspec.vlm.drafters.msd import Msd
from mmspec.vlm.drafters.vispec import ViSpec
from mmspec.vlm.drafters.xpress import XPress, XPressConfig
from tests.vlm.drafters.dflash.test_attention import KINDS
from tests.vlm.drafters.test_trainer_layouts import (
    ATTENTION,
    FIELDS,
    I,
    Opened,
    R,
    decodes,
    frequent,
    layer,
    renamed,
    same,
    weights,
    written,
)
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny


def feature_file(norms: bool, bias: bool) -> dict[str, Tensor]:
    shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), **layer("layers.0.")}
    if bias:
        shapes |= {"fc.bias": (HIDDEN,)} | {f"layers.0.self_attn.{x}_proj.bias": (ATTENTION[x][0],) for x in "qkv"}
    if norms:
        return weights(**shapes, **{"norm.weight": (HIDDEN,)})
    del shapes["layers.0.input_layernorm.weight"]
    return weights(**shapes)


def written_out(state: dict[str, Tensor], fused: Tensor) -> Tensor:
    """The features of EAGLE's layer over a whole sequence [n, H], with the norms and biases of the file."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (HIDDEN,), state[name], 1e-6) if name in state else x

    read = norm(fused, "layers.0.input_layernorm.weight")
    heads = {
        x: F.linear(read, state[f"layers.0.self_attn.{x}_proj.weight"], state.get(f"layers.0.self_attn.{x}_proj.bias"))
        .view(len(fused), -1, 8)
        .transpose(0, 1)
        for x in "qkv"
    }
    angle = torch.arange(len(fused))[:, None] * 1e4 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = (torch.cat([f, f], -1) for f in (angle.cos(), angle.sin()))
    for x in "qk":
        front, back = heads[x].chunk(2, -1)
        heads[x] = heads[x] * cos + torch.cat([-back, front], -1) * sin
    attended = F.scaled_dot_product_attention(heads["q"], heads["k"], heads["v"], is_causal=True, enable_gqa=True)
    out = fused + F.linear(attended.transpose(0, 1).flatten(1), state["layers.0.self_attn.o_proj.weight"])
    read = norm(out, "layers.0.post_attention_layernorm.weight")
    gate = F.silu(F.linear(read, state["layers.0.mlp.gate_proj.weight"]))
    up = F.linear(read, state["layers.0.mlp.up_proj.weight"])
    return norm(out + F.linear(gate * up, state["layers.0.mlp.down_proj.weight"]), "norm.weight")


@pytest.mark.parametrize("norms, bias", ((True, True), (True, False), (False, True), (False, False)))
def test_an_eagle_file_shows_its_norms_and_biases(norms: bool, bias: bool, tmp_path: Path) -> None:
    """NeMo Automodel's files have norms that SafeAILab's lack, and biases only on demand."""
    state, model = feature_file(norms, bias), tiny("llama")
    config = dict(
        FIELDS, architectures=["LlamaEagleDraftModel"] if norms else ["LlamaForCausalLM"], draft_vocab_size=None
    )
    found = mmspec.vlm.load_drafter(written(tmp_path, renamed(state, "model."), **config), model)
    wanted = EagleConfig(HIDDEN, I, 4, VOCAB, 2, 8, bias=bias, qkv_bias=bias, input_norm=norms, output_norm=norms)
    assert type(found) is Eagle and found.config == wanted
    embeds, hidden = torch.randn(2, 7, HIDDEN)
    fused = F.linear(torch.cat([embeds, hidden], -1), state["fc.weight"], state.get("fc.bias"))
    attend, carry = found.fuse(embeds[None], hidden[None])
    table = found.layer.rotary(7, torch.device("cpu"), torch.float32)[None]
    cache = SlotCache(1, 0)
    cache.reserve(torch.zeros(1, 2, 0, 8), torch.zeros(1, 2, 0, 8))
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    bias_ = torch.zeros(1, 1, 7, 7).masked_fill(~seen, -torch.inf)
    assert torch.allclose(found(attend, carry, table, cache, bias_)[0], written_out(state, fused), atol=1e-4)
    assert decodes(model, found)


def test_a_copy_of_the_targets_head_is_ignored_and_another_head_refused(tmp_path: Path) -> None:
    state, model = feature_file(False, True), tiny("llama")
    config = dict(FIELDS, draft_vocab_size=None)
    copied = state | {"lm_head.weight": model.lm_head.weight}
    found = mmspec.vlm.load_drafter(written(tmp_path / "copy", copied, **config), model)
    assert same(found, mmspec.vlm.load_drafter(written(tmp_path / "none", state, **config), model))
    with pytest.raises(
        ValueError, match="lm_head.weight: expected the target's own head or none in the file, got another"
    ):
        written(tmp_path / "other", state | {"lm_head.weight": model.lm_head.weight + 1}, **config)
        mmspec.vlm.load_drafter(tmp_path / "other", model)


def test_automodels_vispec_and_msd(tmp_path: Path) -> None:
    model, inputs = tiny("qwen2_5_vl"), prompt("qwen2_5_vl", images=2)
    state = feature_file(True, True)
    for x in "kv":  # as many keys as queries
        state[f"layers.0.self_attn.{x}_proj.weight"] = torch.randn(HIDDEN, HIDDEN)
        state[f"layers.0.self_attn.{x}_proj.bias"] = torch.randn(HIDDEN)
    state |= {f"img_adaptor.{x}_proj.weight": torch.randn(HIDDEN, HIDDEN) for x in "kvo"}
    state |= {f"img_adaptor.{x}_proj.bias": torch.randn(HIDDEN) for x in "kv"}
    state |= {
        "img_adaptor.query": torch.randn(2, 4, 8),
        "img_fc.weight": torch.randn(HIDDEN, 2 * HIDDEN),
        "img_fc.bias": torch.randn(HIDDEN),
    }
    config = dict(
        FIELDS, num_key_value_heads=4, qkv_bias=True, fc_bias=True, model_type="qwen2_5_vl_text", draft_vocab_size=None
    )
    found = mmspec.vlm.load_drafter(
        written(tmp_path / "vispec", state, **config, architectures=["VispecDraftModel"]), model
    )
    assert (
        type(found) is ViSpec
        and found.config.output_norm
        and found.config.input_norm
        and decodes(model, found, **inputs)
    )
    assert torch.equal(found.adaptor.q, state["img_adaptor.query"])
    state = feature_file(True, False)
    config = dict(
        FIELDS, model_type="qwen2_5_vl_text", draft_vocab_size=None, architectures=["MultimodalEagleDraftModel"]
    )
    found = mmspec.vlm.load_drafter(written(tmp_path / "msd", state, **config), model)
    assert type(found) is Msd and found.config == FeatureConfig(
        HIDDEN, I, 4, VOCAB, 2, 8, bias=False, input_norm=True, output_norm=True
    )
    assert decodes(model, found, **inputs)


def test_msd_drafts_for_a_target_with_padded_rows(tmp_path: Path) -> None:
    """The published MSD has 32,000 tokens, and the target in transformers 64 rows more."""
    model, state = tiny("llava"), feature_file(False, False) | {"fc.bias": torch.randn(HIDDEN)}
    config = dict(
        FIELDS, vocab_size=95, model_type="llava", architectures=["LlavaLlamaForCausalLM"], draft_vocab_size=None
    )
    folder = written(tmp_path, state, **config)
    found = mmspec.vlm.load_drafter(folder, model, "msd")
    assert type(found) is Msd and found.config.vocab_size == 95
    watched = Opened(found)
    inputs = prompt("llava", images=1)
    assert decodes(model, watched, **inputs)
    assert bool((watched.state.ruling[95:] == -torch.inf).all()) and bool((watched.state.ruling[:95] == 0).all())
    assert decodes(model, f"msd@{folder}", **inputs)
    with pytest.raises(ValueError, match="EAGLE's and MSD's tensors are named alike.*pass kind='eagle' or kind='msd'"):
        mmspec.vlm.load_drafter(folder, model)


HEAD = torch.randn(R, HIDDEN, generator=torch.Generator().manual_seed(11))


def dflash(vocab: int = VOCAB, head: bool = True) -> dict[str, Tensor]:
    shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), "hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)}
    for index in range(2):
        shapes |= layer(f"layers.{index}.")
        shapes |= {f"layers.{index}.self_attn.{x}_norm.weight": (8,) for x in "qk"}
    state = weights(**shapes)
    if head:
        state["lm_head.weight"], state["d2t"] = HEAD, torch.arange(R) * 3 // 2 - torch.arange(R)
        state["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, torch.arange(R) * 3 // 2, True)
    return state


FLAT = {
    **KINDS,
    **{name: value for name, value in FIELDS.items() if name != "draft_vocab_size"},
    "num_hidden_layers": 2,
    "block_size": 4,
    "dflash_config": {"mask_token_id": 9, "target_layer_ids": [0, 1]},
    "model_type": "qwen3",
}


@pytest.mark.parametrize(
    "name", ("DFlashDraftModel", "QwenDFlashDraftModel", "Qwen3DFlashDraftModel", "LlamaForCausalLM")
)
@pytest.mark.parametrize("where", ("top", "dflash_config"))
def test_a_flat_dflash_config(name: str, where: str, tmp_path: Path) -> None:
    config = json.loads(json.dumps({**FLAT, "architectures": [name], "draft_vocab_size": R}))
    (config if where == "top" else config["dflash_config"])["sample_from_anchor"] = True
    found = mmspec.vlm.load_drafter(written(tmp_path, frequent(dflash()), **config), tiny("llama"))
    rising = mmspec.vlm.load_drafter(written(tmp_path / "b", renamed(dflash(), "model."), **config), tiny("llama"))
    assert type(found) is DFlash and found.config.from_root and found.config.drafted == 4 and same(found, rising)
    assert torch.equal(found.head.weight, HEAD) and decodes(tiny("llama"), found)


@pytest.mark.parametrize("anchor", (False, True))
def test_a_flat_xpress_config_says_whether_the_root_drafts(anchor: bool, tmp_path: Path) -> None:
    sizes = dict(mask_token_id=9, block_size=4, num_hidden_layers=2, refiner_rank=4, from_root=anchor)
    refiner = XPress(XPressConfig(HIDDEN, I, 4, VOCAB, (0, 1), **sizes)).refiner_head.state_dict()
    state = dflash(head=False) | {f"refiner_head.{name}": torch.randn_like(value) for name, value in refiner.items()}
    config = {**FLAT, "xpress_rank": 4, "xpress_mlp_ratio": 2, "sample_from_anchor": anchor}
    found = mmspec.vlm.load_drafter(written(tmp_path, state, **config), tiny("llama"))
    assert type(found) is XPress and found.config.from_root is anchor and found.config.drafted == 3 + anchor
    assert all(torch.equal(found.refiner_head.state_dict()[name], state[f"refiner_head.{name}"]) for name in refiner)
    rows = torch.randn(1, 4, HIDDEN)
    assert torch.equal(found.drafting(rows, torch.tensor([3]))[..., :HIDDEN], rows if anchor else rows[:, 1:])
    assert decodes(tiny("llama"), found)


def test_modelopts_dspark_has_no_prefix(tmp_path: Path) -> None:
    heads = {"markov_w1.weight": (VOCAB, 4), "markov_w2.weight": (VOCAB, 4), "confidence_proj.weight": (1, HIDDEN + 4)}
    heads = weights(**heads, **{"confidence_proj.bias": (1,)})
    own = {"projector_type": "dspark", "shift_label": True, "markov_rank": 4, "use_confidence_head": True}
    config = {**FLAT, "architectures": ["DFlashDraftModel"], "dflash_config": {**FLAT["dflash_config"], **own}}
    found = mmspec.vlm.load_drafter(written(tmp_path / "a", dflash(head=False) | heads, **config), tiny("llama"))
    plain = {f"markov_head.{name}": heads[name] for name in ("markov_w1.weight", "markov_w2.weight")}
    plain |= {f"confidence_head.proj.{x}": heads[f"confidence_proj.{x}"] for x in ("weight", "bias")}
    wanted = mmspec.vlm.load_drafter(written(tmp_path / "b", dflash(head=False) | plain, **config), tiny("llama"))
    assert type(found) is DSpark and found.config.from_root and same(found, wanted) and decodes(tiny("llama"), found)
    cut = {
        **heads,
        "markov_w1.weight": heads["markov_w1.weight"][:98],
        "markov_w2.weight": heads["markov_w2.weight"][:98],
    }
    folder = written(tmp_path / "c", dflash(head=False) | cut, **config | {"vocab_size": 98})
    found = mmspec.vlm.load_drafter(folder, tiny("llama"))
    assert not found.markov_head.markov_w1.weight[98:].any() and found.width == 98 and decodes(tiny("llama"), found)
    for field, value in (("shift_label", False), ("projector_type", "domino")):
        other = {**config, "dflash_config": {**config["dflash_config"], field: value}}
        with pytest.raises(ValueError, match=f"{field}: expected .*, got {value!r}"):
            mmspec.vlm.load_drafter(written(tmp_path / field, dflash(head=False) | heads, **other), tiny("llama"))


@pytest.mark.parametrize(
    "fields",
    (
        {"target_layer_ids": [1, 0], "dflash_config": {"mask_token_id": 9}},
        {"aux_hidden_state_layer_ids": [2, 1], "dflash_config": {"mask_token_id": 9}},
        {"dflash_config": {"mask_token_id": 9, "target_layers": [1, 0]}},
    ),
)
def test_synonyms_of_the_layers_of_a_dflash_config(fields: dict, tmp_path: Path) -> None:
    found = mmspec.vlm.load_drafter(written(tmp_path, dflash(head=False), **{**FLAT, **fields}), tiny("llama"))
    assert found.config.taps == (1, 0) and decodes(tiny("llama"), found)


def test_windows_of_modelopt_and_default_taps(tmp_path: Path) -> None:
    own = {"mask_token_id": 9, "use_swa": True, "swa_window_size": 5, "causal": False}
    config = {**FLAT, "layer_types": ["full_attention"] * 2, "num_target_layers": 2, "dflash_config": own}
    found = mmspec.vlm.load_drafter(
        written(tmp_path, dflash(head=False), **config, architectures=["DFlashDraftModel"]), tiny("llama")
    )
    assert found.config.reach == (4, 4) and found.config.causal == (False, False) and found.config.taps == (1, 1)


def test_a_block_drafter_of_a_padded_vocabulary(tmp_path: Path) -> None:
    model = tiny("llama")
    for head in (False, True):
        config = {**FLAT, "vocab_size": 98, "architectures": ["DFlashDraftModel"]} | (
            {"draft_vocab_size": R} if head else {}
        )
        found = mmspec.vlm.load_drafter(written(tmp_path / str(head), dflash(98, head), **config), model)
        assert found.config.vocab_size == VOCAB and found.width == (R if head else 98)
        assert head or torch.equal(found.head.weight, model.lm_head.weight[:98])
        assert decodes(model, found)


@pytest.mark.parametrize("prefix", ("", "medusa_head.", "module.medusa_heads."))
def test_medusas_counts_come_from_its_tensors(prefix: str, tmp_path: Path) -> None:
    shapes = {"weight": (HIDDEN, HIDDEN), "bias": (HIDDEN,)}
    state = {f"{n}.0.linear.{x}": torch.randn(shape) for n in range(3) for x, shape in shapes.items()}
    heads = {f"{n}.1.weight": torch.randn(VOCAB, HIDDEN) for n in range(3)}
    model = tiny("llama")
    for number, (file, own) in enumerate(((state | heads, True), (state, False))):
        for config in (
            {"medusa_num_heads": 2, "medusa_num_layers": 1},
            {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3"},
        ):
            folder = written(tmp_path / f"{number}{len(config)}", renamed(file, prefix), **config)
            found = mmspec.vlm.load_drafter(folder, model)
            assert type(found) is Medusa and (found.config.heads, found.config.own_head) == (3, own)
            assert torch.equal(found.blocks[2][0].linear.weight, state["2.0.linear.weight"]) and decodes(model, found)
            hidden = torch.randn(1, 1, HIDDEN)
            block = hidden + F.silu(F.linear(hidden, state["1.0.linear.weight"], state["1.0.linear.bias"]))
            wanted = F.linear(block, heads["1.1.weight"] if own else model.lm_head.weight)
            assert torch.allclose(found.logits(found.feature(1, hidden), 2, model.lm_head), wanted, atol=1e-4)
    cut = state | {f"{n}.1.weight": heads[f"{n}.1.weight"][:96] for n in range(3)}
    found = mmspec.vlm.load_drafter(written(tmp_path / "cut", renamed(cut, prefix), base="vicuna"), model)
    assert found.config.vocab_size == 96 and decodes(model, found)
