"""Files as other trainers lay them out are read as the same weights in the project's own layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file
from torch import Tensor

import mmspec
from mmspec.core.drafting.rotary import axes_of, rotary
from mmspec.vlm.drafters.base.feature_drafter import FeatureConfig
from mmspec.vlm.drafters.checkpoints import published_kind
from mmspec.vlm.drafters.dflash import DFlash
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.drafters.medusa import Medusa
from mmspec.vlm.drafters.msd import Msd
from mmspec.vlm.drafters.peagle import PEagle
from mmspec.vlm.drafters.vispec import ViSpec
from tests.vlm.drafters.dflash.test_attention import zlab
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny

I, R = 48, 60
GREEDY = dict(max_new_tokens=12, do_sample=False)
FIELDS = dict(
    model_type="llama", hidden_size=HIDDEN, intermediate_size=I, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    vocab_size=VOCAB, draft_vocab_size=R, num_hidden_layers=1, rms_norm_eps=1e-6, hidden_act="silu", rope_theta=1e4,
)  # fmt: skip
ATTENTION = {"q": (HIDDEN, HIDDEN), "k": (16, HIDDEN), "v": (16, HIDDEN), "o": (HIDDEN, HIDDEN)}
MLP = {"gate": (I, HIDDEN), "up": (I, HIDDEN), "down": (HIDDEN, I)}


def weights(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(7)
    return {name: torch.randn(shape, generator=rng) * 0.2 + ("norm" in name) for name, shape in shapes.items()}


def layer(prefix: str, read: int = 1) -> dict[str, tuple[int, ...]]:
    shapes = {f"{prefix}self_attn.{x}_proj.weight": (n, m if x == "o" else read * m) for x, (n, m) in ATTENTION.items()}
    shapes |= {f"{prefix}mlp.{x}_proj.weight": shape for x, shape in MLP.items()}
    return shapes | {f"{prefix}{x}_layernorm.weight": (HIDDEN,) for x in ("input", "post_attention")}


def eagle3(levels: int = 3, prefix: str = "midlayer.", vocab: int = VOCAB) -> dict[str, Tensor]:
    """An EAGLE-3 file as SafeAILab writes it, with the tokens in rising order."""
    shapes = {"fc.weight": (HIDDEN, levels * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (R, HIDDEN)}
    state = weights(**shapes, **layer(prefix, 2), **{f"{prefix}hidden_norm.weight": (HIDDEN,)})
    ids = torch.arange(R) * 3 // 2
    marked = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return state | {"d2t": ids - torch.arange(R), "t2d": marked}


def written(folder: Path, state: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors")
    return folder


def same(found: torch.nn.Module, wanted: torch.nn.Module) -> bool:
    """Whether two drafters have the same config and weights, and so draft from the same laws."""
    mine, theirs = found.state_dict(), wanted.state_dict()
    assert found.config == wanted.config and mine.keys() == theirs.keys()
    return all(torch.equal(value, theirs[name]) for name, value in mine.items())


def decodes(model: torch.nn.Module, drafter: object, **inputs: Tensor) -> bool:
    inputs = inputs or prompt("llama")
    return torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **GREEDY), model.generate(**inputs, **GREEDY))


@pytest.fixture(scope="module")
def own() -> Eagle3:
    """The weights of `eagle3` under the project's own names."""
    file = eagle3()
    config = Eagle3Config(HIDDEN, I, 4, VOCAB, (0, 0, 1), R, 2, 8)
    attention = torch.cat([file[f"midlayer.self_attn.{x}_proj.weight"] for x in "qkv"])
    names = {"layer.out": "self_attn.o_proj", "layer.norm": "post_attention_layernorm", "layer.down": "mlp.down_proj",
             "embed_norm": "input_layernorm", "state_norm": "hidden_norm"}  # fmt: skip
    state = {f"{name}.weight": file[f"midlayer.{theirs}.weight"] for name, theirs in names.items()}
    state |= {"layer.qkv.weight": attention, "head.weight": file["lm_head.weight"], "head.d2t": file["d2t"]}
    state |= {"layer.gate_up.weight": torch.cat([file[f"midlayer.mlp.{x}_proj.weight"] for x in ("gate", "up")])}
    state |= {"head.t2d": file["t2d"], "fc.weight": file["fc.weight"], "norm.weight": file["norm.weight"]}
    drafter = Eagle3(config)
    drafter.load_state_dict(state)
    return drafter.eval()


def frequent(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The file with its tokens in another order and without `t2d`, as ModelOpt writes it."""
    order = torch.randperm(R, generator=torch.Generator().manual_seed(1))
    ids = (state["d2t"] + torch.arange(R))[order]
    changed = {"d2t": ids - torch.arange(R), "lm_head.weight": state["lm_head.weight"][order]}
    return {name: value for name, value in (state | changed).items() if name != "t2d"}


def renamed(state: dict[str, Tensor], prefix: str, *plain: str) -> dict[str, Tensor]:
    return {name if name in plain else prefix + name: value for name, value in state.items()}


def zeroth(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("midlayer.", "layers.0."): value for name, value in state.items()}


TABLES = ("lm_head.weight", "d2t", "t2d")
MODELOPT = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": True, "use_last_layernorm": True,
            "use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1}, "pad_token_id": None}  # fmt: skip
LAYOUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SafeAILab": (lambda state: state, dict(architectures=["LlamaForCausalLM"])),
    "SpecForge": (lambda state: state, dict(architectures=["LlamaForCausalLMEagle3"], rope_scaling=None)),
    "SpecForge for Phi": (lambda state: state, dict(architectures=["LlamaForCausalLMEagle3"], model_type="phi3")),
    "SpecForge's levels": (
        lambda state: state,
        dict(architectures=["LlamaForCausalLMEagle3"], eagle_config={"eagle_aux_hidden_state_layer_ids": [-1, -1, 0]}),
    ),
    "AngelSlim": (
        lambda state: state,
        dict(architectures=["Eagle3LlamaForCausalLM"], target_model_type="qwen3", tie_word_embeddings=True),
    ),
    "a wrong width of heads": (lambda state: state, dict(architectures=["Eagle3LlamaForCausalLM"], head_dim=4)),
    "CosyVoice": (
        lambda state: state,
        dict(architectures=["CosyVoice3Eagle3LlamaForCausalLM"], num_hidden_layers=24),
    ),
    "ModelOpt": (
        lambda state: frequent(zeroth(state)),
        dict(architectures=["LlamaForCausalLMEagle3"], **MODELOPT),
    ),
    "Automodel": (
        lambda state: renamed(zeroth(state), "model.", *TABLES),
        dict(architectures=["LlamaEagle3DraftModel"], model_type="qwen3", num_hidden_layers=36, fc_norm=False,
             norm_output=False, parallel_drafting=False, target_hidden_size=HIDDEN),
    ),
    "a wrapper": (lambda state: renamed(state, "module.draft_model."), {}),
    "vLLM": (
        lambda state: state | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)},
        dict(model_type="eagle", model={**FIELDS, "architectures": ["LlamaForCausalLM"]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change, fields", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kind", (None, "eagle3"))
def test_an_eagle3_layout_gives_the_same_drafter(own, change, fields, kind, tmp_path: Path) -> None:
    """The tensors show the kind where the class is the target's."""
    folder = written(tmp_path, change(eagle3()), **{**FIELDS, **fields})
    found = mmspec.vlm.load_drafter(folder, tiny("llama"), kind)
    assert type(found) is Eagle3 and same(found, own) and decodes(tiny("llama"), found)
    assert decodes(tiny("llama"), f"eagle3@{folder}")


def test_a_targets_class_is_no_kind(tmp_path: Path) -> None:
    assert published_kind({"architectures": ["LlamaForCausalLM"]}, tiny("llama")) is None
    written(
        tmp_path, {"odd.weight": torch.ones(2, 2), "fc.weight": torch.ones(2, 2)}, architectures=["LlamaForCausalLM"]
    )
    with pytest.raises(
        ValueError, match=r"kind: expected a config or tensors that show it.*pass kind=, one of .*eagle3"
    ):
        mmspec.vlm.load_drafter(tmp_path, tiny("llama"))


@pytest.mark.parametrize("kind, near", (("EAGLE3", "eagle3"), ("p-eagle", "peagle"), ("dflsh", "dflash")))
def test_a_misspelt_kind_is_named(kind: str, near: str, tmp_path: Path) -> None:
    written(tmp_path, eagle3(), **FIELDS)
    with pytest.raises(ValueError, match=rf"kind: expected one of .*, got '{kind}'; did you mean '{near}'\?"):
        mmspec.vlm.load_drafter(tmp_path, tiny("llama"), kind)


def test_another_kind_than_the_saved_one_is_refused(own, tmp_path: Path) -> None:
    own.save_pretrained(tmp_path)
    assert same(mmspec.vlm.load_drafter(tmp_path, tiny("llama"), "eagle3"), own)
    with pytest.raises(
        ValueError, match="kind: expected 'eagle3' as in the config.json of .*, got 'msd'; leave it out"
    ):
        mmspec.vlm.load_drafter(tmp_path, tiny("llama"), "msd")


def test_a_file_without_a_head_shares_the_targets(tmp_path: Path) -> None:
    model, state = tiny("llama"), eagle3()
    head = state.pop("lm_head.weight")
    found = mmspec.vlm.load_drafter(written(tmp_path, state, **FIELDS), model)
    ids = state["d2t"] + torch.arange(R)
    assert len(head) == R and found.config.tied_head and torch.equal(found.head.weight, model.lm_head.weight[ids])
    out = torch.randn(1, 2, HIDDEN)
    scores = F.linear(F.rms_norm(out, (HIDDEN,), found.norm.weight, 1e-6), model.lm_head.weight)[..., ids]
    assert torch.allclose(found.scores(out), scores, atol=1e-5) and decodes(model, found)
    whole = {name: value for name, value in state.items() if name not in TABLES}
    found = mmspec.vlm.load_drafter(
        written(tmp_path / "whole", whole, **{**FIELDS, "draft_vocab_size": None}), model, "eagle3"
    )
    assert torch.equal(found.head.weight, model.lm_head.weight) and decodes(model, found)
    with pytest.raises(ValueError, match="expected the model whose head this drafter shares"):
        mmspec.vlm.drafter_from_state_dict("eagle3", state, {**FIELDS, "target_layer_ids": [-1, -1, 0]}).scores(out)


DEEPSPEC = dict(FIELDS, architectures=["Qwen3Eagle3Model"], model_type="qwen3", num_target_layers=8, ttt_length=7)


def deep() -> hf.PreTrainedModel:
    sizes = {name: FIELDS[name] for name in FIELDS if name not in ("draft_vocab_size", "rope_theta", "model_type")}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**{**sizes, "num_hidden_layers": 8, "pad_token_id": 0})).eval()
    model.generation_config = hf.GenerationConfig(pad_token_id=0, bos_token_id=1)
    return model.requires_grad_(False)


@pytest.mark.parametrize("where", ({}, {"part": "eagle_config"}, {"name": "aux_layer_ids"}))
def test_five_levels_and_the_norms_of_heads(where: dict[str, str], tmp_path: Path) -> None:
    """`target_layer_ids` count the layers whose output is read, and levels the states."""
    model, state = deep(), zeroth(eagle3(5)) | {f"layers.0.self_attn.{x}_norm.weight": torch.rand(8) for x in "qk"}
    state = {name: value for name, value in state.items() if name not in ("d2t", "t2d")}
    state |= {"lm_head.weight": torch.randn(VOCAB, HIDDEN), "embed_tokens.weight": model.model.embed_tokens.weight}
    ids = {where.get("name", "target_layer_ids"): [1, 2, 4, 5, 6]}
    config = {**DEEPSPEC, "draft_vocab_size": None, **({where["part"]: ids} if "part" in where else ids)}
    found = mmspec.vlm.load_drafter(written(tmp_path, state, **config), model)
    assert found.config.levels == (2, 3, 5, 6, 7) and found.config.qk_norm and found.embed_tokens is None
    assert torch.equal(found.layer.q_norm.weight, state["layers.0.self_attn.q_norm.weight"])
    inputs = dict(input_ids=torch.arange(5, 20)[None])
    assert decodes(model, found, **inputs)
    if not where:
        states = model(**inputs, output_hidden_states=True).hidden_states
        joined = torch.cat([states[level] for level in found.config.levels], -1)
        _, carry = found.fuse(model.model.embed_tokens(inputs["input_ids"]), joined)
        assert torch.equal(carry, F.linear(joined, state["fc.weight"]))


@pytest.mark.parametrize(
    "fields, message",
    (
        ({"target_layer_ids": [1, 2, 4]}, "target_layer_ids: expected 5 layers of the target, as many as fc.weight joins"),
        ({}, "expected target_layer_ids or eagle_aux_hidden_state_layer_ids, the 5 layers"),
        ({"target_layer_ids": [1, 2, 4, 5, 6], "eagle_config": {"target_layer_ids": [1, 2, 3, 5, 6]}}, "expected the same layers"),
        ({"target_layer_ids": [1, 2, 4, 5, 7]}, "expected layers in front of the target's last, got 7"),
        ({"target_layer_ids": "[1, 2]"}, "target_layer_ids: expected a list of whole numbers, got"),
        ({"hidden_size": "32"}, "hidden_size: expected a whole number, got '32'"),
        ({"eagle_config": [1]}, "eagle_config: expected a group of fields"),
        ({"architectures": "Qwen3Eagle3Model"}, "architectures: expected a list of texts"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps: expected a number"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu' or 'swish', got 'gelu'"),
        ({"residual_multiplier": 0.2}, "residual_multiplier: expected 1, got 0.2"),
        ({"logits_scaling": 8.0}, "logits_scaling: expected 1, got 8.0"),
        ({"model_type": "gemma3_text"}, "model_type: expected a drafter with a Llama or Qwen layer"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm: expected False, got True"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step: expected 0 or 1, got 4"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state: expected true"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling: expected plain rotary positions.*'longrope'"),
    ),
)  # fmt: skip
def test_a_field_that_changes_the_drafter_is_refused_by_name(fields: dict, message: str, tmp_path: Path) -> None:
    written(tmp_path, zeroth(eagle3(5)), **{**DEEPSPEC, **fields})
    with pytest.raises(ValueError, match=message) as caught:
        mmspec.vlm.load_drafter(tmp_path, deep(), "eagle3")
    assert "\n" not in str(caught.value)


def test_unread_files_are_refused(tmp_path: Path) -> None:
    state = eagle3()
    state["fc.weight"] = state["fc.weight"].to(torch.float8_e4m3fn)
    with pytest.raises(
        ValueError, match="expected floating-point weights of at least 16 bits, got torch.float8_e4m3fn in fc.weight"
    ):
        mmspec.vlm.load_drafter(written(tmp_path / "fp8", state, **FIELDS), tiny("llama"))
    with pytest.raises(ValueError, match="norm_output: expected true or no such field"):
        fields = dict(FIELDS, architectures=["LlamaForCausalLMEagle3"], norm_output=False)
        mmspec.vlm.load_drafter(written(tmp_path / "norm", eagle3(), **fields), tiny("llama"))
    folder = written(tmp_path / "shard", eagle3(), **FIELDS)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "more.safetensors"}})
    )
    with pytest.raises(ValueError, match="got none for more.safetensors"):
        mmspec.vlm.load_drafter(folder, tiny("llama"))
    doubled = eagle3() | {"model.fc.weight": torch.ones(2)}
    with pytest.raises(ValueError, match="expected each tensor once, got fc.weight"):
        mmspec.vlm.load_drafter(written(tmp_path / "twice", doubled, **FIELDS), tiny("llama"), "eagle3")


SECTIONS = {
    "SpecForge": ("LlamaForCausalLMEagle3", {"type": "mrope", "mrope_section": [1, 1, 2]}, False),
    "AngelSlim": ("Eagle3LlamaForCausalLM", {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]}, True),
    "AngelSlim's mrope": ("Eagle3LlamaForCausalLM", {"type": "mrope", "mrope_section": [1, 1, 2]}, True),
}  # fmt: skip


def test_axes_are_those_of_the_public_classes() -> None:
    """Sections side by side turn as in Qwen2.5-VL, and interleaved ones as in Qwen3-VL."""
    position = torch.randint(0, 50, (3, 1, 9), generator=torch.Generator().manual_seed(2))
    for kind, interleaved in (("qwen2_5_vl", False), ("qwen3_vl", True)):
        text = tiny(kind).model.language_model
        section = text.config.rope_parameters["mrope_section"]
        cos, sin = text.rotary_emb(torch.zeros(1, 1, 1), position)
        axis = axes_of(8, {"mrope_section": section, "mrope_interleaved": interleaved}, torch.device("cpu"))
        table = rotary(50, 8, 1e4, torch.device("cpu"), torch.float32)
        rows = table[position].gather(0, axis.expand(1, 1, 9, 2, 8))[0]
        assert torch.allclose(rows[..., 0, :], cos, atol=1e-5)
        assert torch.allclose(rows[..., 1, 4:], sin[..., 4:], atol=1e-5)


@pytest.mark.parametrize("name, rope, interleaved", SECTIONS.values(), ids=SECTIONS)
@pytest.mark.parametrize("images, batch", ((0, 1), (2, 1), (2, 4)))
def test_slots_of_a_prompt_stand_at_the_targets_positions(
    name, rope, interleaved, images, batch, tmp_path: Path
) -> None:
    kind = "qwen3_vl" if interleaved else "qwen2_5_vl"
    model, fields = tiny(kind), dict(FIELDS, architectures=[name])
    found = mmspec.vlm.load_drafter(written(tmp_path, eagle3(), **fields, rope_scaling=rope), model)
    section = {"rope_type": "default", "mrope_section": rope["mrope_section"], "mrope_interleaved": interleaved}
    assert found.config.rope_scaling == section
    inputs = prompt(kind, images=images, batch=batch)
    state = Opened(found)
    out = mmspec.generate(model, drafter=state, **inputs, **GREEDY)
    assert torch.equal(out, model.generate(**inputs, **GREEDY))
    target, read = state.state.target, state.rows
    positions = target.prompt_positions[-3:]
    layer_, start = found.layer, (inputs["attention_mask"] == 0).sum(1)
    table = layer_.rotary(400, torch.device("cpu"), torch.float32)
    axis = axes_of(8, section, torch.device("cpu"))
    for row in range(batch):
        own = positions.expand(3, batch, -1)[:, row, int(start[row]) : -1]
        wanted = table[own].gather(0, axis.expand(1, own.shape[1], 2, 8))[0]
        assert torch.equal(read[row, : own.shape[1]], wanted)
    if not images:  # equal axes turn like plain positions
        plain = mmspec.vlm.load_drafter(written(tmp_path / "plain", eagle3(), **fields), model)
        assert laws(model, plain, inputs) == laws(model, found, inputs)


class Opened:
    """A drafter that keeps the state of its request, and the rows that its prompt was turned with."""

    def __init__(self, drafter: Eagle3):
        self.drafter, self.levels, self.name = drafter, drafter.levels, drafter.name

    def open(self, target: object) -> object:
        self.state = self.drafter.new_state(target)
        self.drafter.check(target.parts)
        turned = self.state.turned

        def kept(slots: object) -> Tensor:
            self.rows = turned(slots)
            return self.rows

        self.state.turned = kept
        self.state.prefill()
        return self.state


def laws(model: torch.nn.Module, drafter: Eagle3, inputs: dict[str, Tensor]) -> list[list[float]]:
    """The scores of every root that a request drafts from."""
    opened, scores = Opened(drafter), []
    first = opened.open

    def open_(target: object) -> object:
        state = first(target)
        score = state.logits
        state.logits = lambda out, depth: scores.append(score(out, depth)) or scores[-1]
        return state

    opened.open = open_
    mmspec.generate(model, drafter=opened, **inputs, **GREEDY)
    return [row.flatten().tolist() for row in scores]


@pytest.mark.parametrize("embedding", (False, True))
def test_the_vocabulary_can_be_the_front_of_a_padded_one(embedding: bool, tmp_path: Path) -> None:
    model, state = tiny("llama"), eagle3(vocab=98)
    if embedding:
        state["embed_tokens.weight"] = torch.randn(98, HIDDEN)
    found = mmspec.vlm.load_drafter(written(tmp_path, state, **{**FIELDS, "vocab_size": 98}), model)
    assert found.config.vocab_size == VOCAB and found.head.size == R
    if embedding:
        rows = torch.cat([state["embed_tokens.weight"], model.model.embed_tokens.weight[98:]])
        assert torch.equal(found.embed_tokens.weight, rows)
    ids = torch.cat([prompt("llama")["input_ids"], torch.tensor([[99, 100, 7]])], 1)
    assert decodes(model, found, input_ids=ids)
    written(tmp_path / "far", eagle3(vocab=98), **{**FIELDS, "vocab_size": 102})
    with pytest.raises(ValueError, match="t2d: expected the tokens that d2t leads to"):
        mmspec.vlm.load_drafter(tmp_path / "far", model)


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
    heads = {x: F.linear(read, state[f"layers.0.self_attn.{x}_proj.weight"], state.get(f"layers.0.self_attn.{x}_proj.bias"))
             .view(len(fused), -1, 8).transpose(0, 1) for x in "qkv"}  # fmt: skip
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
    from mmspec.core.cache import SlotCache

    attend, carry = found.fuse(embeds[None], hidden[None])
    table = found.layer.rotary(7, torch.device("cpu"), torch.float32)[None]
    cache = SlotCache(1, 0)
    cache.reserve(torch.zeros(1, 2, 0, 8), torch.zeros(1, 2, 0, 8))
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    bias_ = torch.zeros(1, 1, 7, 7).masked_fill(~seen, -torch.inf)
    assert torch.allclose(found(attend, carry, table, cache, bias_)[0], written_out(state, fused), atol=1e-4)
    assert decodes(model, found)


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
    with pytest.raises(ValueError, match="tensors are those of eagle and msd.*pass kind='eagle' or kind='msd'"):
        mmspec.vlm.load_drafter(folder, model)


def peagle(layers: int = 2) -> dict[str, Tensor]:
    state = zeroth(eagle3()) | {
        "mask_hidden": torch.randn(1, 1, 3 * HIDDEN),
        "embed_tokens.weight": torch.randn(VOCAB, HIDDEN),
    }
    for index in range(1, layers):
        state |= weights(**layer(f"layers.{index}."))
    return state


@pytest.mark.parametrize("name, prefix", (("PEagleDraftModel", ""), ("LlamaEagle3DraftModel", "model.")))
def test_a_flat_peagle_config_of_several_layers(name: str, prefix: str, tmp_path: Path) -> None:
    config = dict(
        FIELDS, architectures=[name], num_hidden_layers=2, mask_token_id=3, num_depths=5, parallel_drafting=True
    )
    state = peagle()
    plain = renamed(state, prefix, *TABLES, "mask_hidden")
    found = mmspec.vlm.load_drafter(written(tmp_path / "flat", plain, **config), tiny("llama"))
    inner = {name: FIELDS[name] for name in FIELDS if name != "draft_vocab_size"} | {"num_hidden_layers": 2}
    theirs = dict(
        speculators_model_type="peagle",
        transformer_layer_config=inner,
        draft_vocab_size=R,
        mask_token_id=3,
        num_depths=5,
    )
    wanted = mmspec.vlm.load_drafter(written(tmp_path / "nested", state, **theirs), tiny("llama"))
    assert type(found) is PEagle and found.config.depths == 5 and same(found, wanted) and decodes(tiny("llama"), found)
    with pytest.raises(ValueError, match="num_hidden_layers: expected 2 as in the tensors, got 4"):
        written(tmp_path / "cut", plain, **config | {"num_hidden_layers": 4})
        mmspec.vlm.load_drafter(tmp_path / "cut", tiny("llama"))


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


FLAT = {**{name: value for name, value in zlab().items() if name in ("layer_types", "sliding_window")},
        **{name: value for name, value in FIELDS.items() if name != "draft_vocab_size"}, "num_hidden_layers": 2, "block_size": 4,
        "dflash_config": {"mask_token_id": 9, "target_layer_ids": [0, 1]}, "model_type": "qwen3"}  # fmt: skip


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


def test_the_saved_form_keeps_the_axes(own, tmp_path: Path) -> None:
    sections = {"rope_type": "default", "mrope_section": [1, 1, 2], "mrope_interleaved": True}
    drafter = Eagle3(replace(own.config, rope_scaling=sections))
    drafter.save_pretrained(tmp_path)
    assert mmspec.vlm.load_drafter(tmp_path).config == drafter.config
    with pytest.raises(ValueError, match="mrope_section: expected numbers with the sum 4"):
        replace(own.config, rope_scaling=sections | {"mrope_section": [24, 20, 20]})
