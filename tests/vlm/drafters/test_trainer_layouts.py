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
from mmspec.vlm.drafters.checkpoints import published_kind
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.drafters.peagle import PEagle
from mmspec.vlm.export.folder import export_drafter
from mmspec.vlm.export.verifier import Verifier
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny

I, R = 48, 60
GREEDY = dict(max_new_tokens=12, do_sample=False)
FIELDS = dict(
    model_type="llama",
    hidden_size=HIDDEN,
    intermediate_size=I,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=VOCAB,
    draft_vocab_size=R,
    num_hidden_layers=1,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    rope_theta=1e4,
)
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
    names = {
        "layer.out": "self_attn.o_proj",
        "layer.norm": "post_attention_layernorm",
        "layer.down": "mlp.down_proj",
        "embed_norm": "input_layernorm",
        "state_norm": "hidden_norm",
    }
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
_EAGLE = dict(
    eagle_aux_hidden_state_layer_ids=[], use_aux_hidden_state=True, use_last_layernorm=True, parallel_draft_step=1
)
MODELOPT = {"eagle_config": {**_EAGLE, "use_mtp_layernorm": False, "next_layer_regular": True}, "pad_token_id": None}
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
        dict(
            architectures=["LlamaEagle3DraftModel"],
            model_type="qwen3",
            num_hidden_layers=36,
            fc_norm=False,
            norm_output=False,
            parallel_drafting=False,
            target_hidden_size=HIDDEN,
            sliding_window=128,
            layer_types=["sliding_attention", "full_attention"] * 18,
            rope_parameters={"rope_type": "default", "mrope_section": [24, 20, 20], "rope_theta": 1e4},
        ),
    ),
    "a wrapper": (lambda state: renamed(state, "module.draft_model."), {}),
    "vLLM": (
        lambda state: state | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)},
        dict(model_type="eagle", model={**FIELDS, "architectures": ["LlamaForCausalLM"]}),
    ),
}


def test_the_tensors_show_the_biases_of_a_flat_config(own, tmp_path: Path) -> None:
    copied = dict(FIELDS, attention_bias=True, mlp_bias=True)
    assert same(mmspec.vlm.load_drafter(written(tmp_path, eagle3(), **copied), tiny("llama")), own)
    more = {f"midlayer.self_attn.{x}_proj.bias": torch.randn(n) for x, (n, _) in ATTENTION.items()}
    found = mmspec.vlm.load_drafter(written(tmp_path / "b", eagle3() | more, **FIELDS), tiny("llama"))
    assert found.config == replace(own.config, attention_bias=True) and decodes(tiny("llama"), found)
    assert torch.equal(found.layer.out.bias, more["midlayer.self_attn.o_proj.bias"])


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
    with pytest.raises(ValueError, match=f"kind: expected '{near}' or another of .*, got '{kind}'"):
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
        (
            {"target_layer_ids": [1, 2, 4]},
            "target_layer_ids: expected 5 layers of the target, as many as fc.weight joins",
        ),
        ({}, "expected target_layer_ids or eagle_aux_hidden_state_layer_ids, the 5 layers"),
        (
            {"target_layer_ids": [1, 2, 4, 5, 6], "eagle_config": {"target_layer_ids": [1, 2, 3, 5, 6]}},
            "expected the same layers",
        ),
        ({"target_layer_ids": [1, 2, 4, 5, 7]}, "expected layers in front of the target's last, got 7"),
        ({"target_layer_ids": "[1, 2]"}, "target_layer_ids: expected a list of whole numbers, got"),
        ({"hidden_size": "32"}, "hidden_size: expected a whole number, got '32'"),
        ({"eagle_config": [1]}, "eagle_config: expected a group of fields"),
        ({"architectures": "Qwen3Eagle3Model"}, "architectures: expected a list of texts"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps: expected a number"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu' or 'swish', got 'gelu'"),
        (
            {"speculators_config": {"proposal_methods": "greedy"}},
            "proposal_methods: expected a list of groups of fields",
        ),
        ({"residual_multiplier": 0.2}, "residual_multiplier: expected 1, got 0.2"),
        ({"logits_scaling": 8.0}, "logits_scaling: expected 1, got 8.0"),
        ({"model_type": "gemma3_text"}, "model_type: expected a drafter with a Llama or Qwen layer"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm: expected False, got True"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step: expected 0 or 1, got 4"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state: expected true"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling: expected plain rotary positions.*'longrope'"),
    ),
)
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
    scalar = eagle3() | {"midlayer.self_attn.q_proj.weight": torch.ones(())}
    with pytest.raises(ValueError, match="q_proj.weight: expected a tensor with rows, got a single number"):
        mmspec.vlm.load_drafter(written(tmp_path / "scalar", scalar, **FIELDS), tiny("llama"))
    doubled = eagle3() | {"model.fc.weight": torch.ones(2)}
    with pytest.raises(ValueError, match="expected each tensor once, got fc.weight"):
        mmspec.vlm.load_drafter(written(tmp_path / "twice", doubled, **FIELDS), tiny("llama"), "eagle3")


SECTIONS = {
    "SpecForge": ("LlamaForCausalLMEagle3", {"type": "mrope", "mrope_section": [1, 1, 2]}, False),
    "AngelSlim": (
        "Eagle3LlamaForCausalLM",
        {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
        True,
    ),
    "AngelSlim's mrope": ("Eagle3LlamaForCausalLM", {"type": "mrope", "mrope_section": [1, 1, 2]}, True),
}


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
    early = mmspec.vlm.load_drafter(
        written(tmp_path / "early", state, **{**FIELDS, "vocab_size": 98}, target_layer_ids=[0, 0, 1])
    )
    with pytest.raises(ValueError, match="expected vocab_size 101 as in the target, got 98; load it with this target"):
        mmspec.generate(model, drafter=early, input_ids=ids, max_new_tokens=2)
    written(tmp_path / "far", eagle3(vocab=98), **{**FIELDS, "vocab_size": 102})
    with pytest.raises(ValueError, match="t2d: expected the tokens that d2t leads to"):
        mmspec.vlm.load_drafter(tmp_path / "far", model)


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


def test_the_saved_form_keeps_the_axes(own, tmp_path: Path) -> None:
    sections = {"rope_type": "default", "mrope_section": [1, 1, 2], "mrope_interleaved": True}
    drafter = Eagle3(replace(own.config, rope_scaling=sections))
    drafter.save_pretrained(tmp_path)
    assert mmspec.vlm.load_drafter(tmp_path).config == drafter.config
    for engine in ("vllm", "sglang"):
        with pytest.raises(ValueError, match="rope_scaling: expected positions on a single axis"):
            export_drafter(drafter, tmp_path / engine, engine=engine, verifier=Verifier("t", {}, tiny("llama")))
    with pytest.raises(ValueError, match="mrope_section: expected numbers with the sum 4"):
        replace(own.config, rope_scaling=sections | {"mrope_section": [24, 20, 20]})
