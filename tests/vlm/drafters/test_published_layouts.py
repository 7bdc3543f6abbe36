"""A tiny file in the layout of every published drafter loads for a tiny target of its class and keeps the target's words."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file
from torch import Tensor, nn

import mmspec
from mmspec.vlm.drafters.drafter_names import drafter_class
from mmspec.vlm.drafters.published import LAYOUTS, PUBLISHED, PublishedDrafter
from tests.vlm.classes.build import config_of, model_of, skip_broken
from tests.vlm.classes.pictures import picture_kinds, picture_prompt
from tests.vlm.classes.prompts import text_prompt
from tests.vlm.classes.shrink import VOCAB
from tests.vlm.drafters import published_files
from tests.vlm.drafters.published_files import (
    SMALL_DRAFT_VOCAB,
    Shapes,
    eagle2,
    eagle3,
    random_file,
    speculators,
    vispec,
)
from tests.vlm.drafters.watched import Planted

Layout = tuple[dict, dict[str, Tensor]]  # the config and the tensors of a file
WIDTH, DIM, INNER, MASK = 32, 8, 48, 61

# the class of a target by the beginning of its name; the first that fits counts
CLASSES = {
    "Kimi-K2.5": "Kimi_K25ForConditionalGeneration",
    "HunyuanOCR": "HunYuanVLForConditionalGeneration",
    "Qwen2.5-VL": "Qwen2_5_VLForConditionalGeneration",
    "Qwen2-VL": "Qwen2VLForConditionalGeneration",
    "Qwen3-VL-30B": "Qwen3VLMoeForConditionalGeneration",
    "Qwen3-VL": "Qwen3VLForConditionalGeneration",
    "Qwen3-Coder-Next": "Qwen3NextForCausalLM",
    "Qwen3.5-35B": "Qwen3_5MoeForConditionalGeneration",
    "Qwen3.5-122B": "Qwen3_5MoeForConditionalGeneration",
    "Qwen3.6-35B": "Qwen3_5MoeForConditionalGeneration",
    "Qwen3.": "Qwen3_5ForConditionalGeneration",
    "Qwen3-Coder-30B": "Qwen3MoeForCausalLM",
    "Qwen3-30B": "Qwen3MoeForCausalLM",
    "Qwen3-235B": "Qwen3MoeForCausalLM",
    "Qwen3-": "Qwen3ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "gemma-4-12B": "Gemma4UnifiedForConditionalGeneration",
    "gemma-4": "Gemma4ForConditionalGeneration",
    "Llama-4": "Llama4ForConditionalGeneration",
    "llava-v1.6": "LlavaNextForConditionalGeneration",
    "llava-1.5": "LlavaForConditionalGeneration",
    "Llama-": "LlamaForCausalLM",
    "DeepSeek-R1-Distill-Llama": "LlamaForCausalLM",
    "vicuna": "LlamaForCausalLM",
}
DEEP = {"LlamaForCausalLM": 8, "Qwen3ForCausalLM": 8}  # of which drafters read levels in the middle


def target_class(row: PublishedDrafter) -> str:
    name = row.target.partition("/")[2]
    return next(found for beginning, found in CLASSES.items() if name.startswith(beginning))


@cache
def target(name: str) -> nn.Module:
    config = config_of(name)
    text = config.get_text_config(decoder=True)
    if name in DEEP:
        text.num_hidden_layers = DEEP[name]
        if getattr(text, "layer_types", None):
            text.layer_types = ["full_attention"] * DEEP[name]
    return model_of(name, config)


def layers_of(row: PublishedDrafter) -> int:
    return target(target_class(row)).config.get_text_config(decoder=True).num_hidden_layers


def three(layers: int) -> list[int]:
    """Three decoder layers whose outputs are read, in the middle where there are enough."""
    return [1, layers // 2 - 1, layers - 4] if layers >= 7 else [0, 0, layers - 1]


def llama(**own: object) -> dict:
    """The fields that trainers copy from a Llama or Qwen3 config."""
    return (
        dict(
            attention_bias=False,
            attention_dropout=0.0,
            bos_token_id=1,
            eos_token_id=2,
            head_dim=DIM,
            hidden_act="silu",
            hidden_size=WIDTH,
            initializer_range=0.02,
            intermediate_size=INNER,
            max_position_embeddings=2048,
            model_type="llama",
            num_attention_heads=4,
            num_hidden_layers=1,
            num_key_value_heads=2,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=1000000,
            tie_word_embeddings=False,
            use_cache=True,
            vocab_size=VOCAB,
        )
        | own
    )


def small(name: str, **own: object) -> dict:
    """The config of a public file at tiny sizes."""
    config = {**published_files.PUBLISHED[name].small_config, **own}
    config.pop("eagle_aux_hidden_state_layer_ids", None)  # the trainer of that file writes none
    return config


def safeailab_eagle(row: PublishedDrafter) -> Layout:
    name = "EAGLE-Vicuna-7B-v1.3" if "Vicuna" in row.repo else "EAGLE-llama2-chat-7B"
    groups = {"num_key_value_heads": 2, "max_sequence_length": 2048} if "33B" in row.repo or "70B" in row.repo else {}
    config = small(name, **groups)
    return config, random_file(eagle2(config))


def safeailab_eagle3(row: PublishedDrafter) -> Layout:
    """Where the drafter has the whole vocabulary, the file may hold buffers that the public code deletes.

    The drafter of Llama-3.3-70B is narrower than its target, and has an embedding of its own.
    """
    config = small("EAGLE3-LLaMA3.1-Instruct-8B")
    if "LLaMA3.3" in row.repo:
        config |= dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, target_hidden_size=WIDTH)
        return config, random_file({**eagle3(config), "fc.weight": (16, 3 * WIDTH), "embed_tokens.weight": (VOCAB, 16)})
    state = random_file(eagle3(config))
    if "Vicuna" in row.repo:
        config["draft_vocab_size"] = VOCAB
        state |= random_file({"lm_head.weight": (VOCAB, WIDTH)})
        state |= {"d2t": torch.zeros(VOCAB, dtype=torch.long), "t2d": torch.zeros(VOCAB, dtype=torch.bool)}
    return config, state


def angelslim(row: PublishedDrafter) -> Layout:
    """The config for Qwen3-32B was published with another width of a head than its tensors have."""
    config = llama(
        architectures=["Eagle3LlamaForCausalLM"],
        target_model_type="qwen3",
        draft_vocab_size=SMALL_DRAFT_VOCAB,
        dtype="bfloat16",
        tie_word_embeddings=True,
        transformers_version="4.57.1",
    )
    if "VL" in row.repo:
        axes = {"type": "default", "rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]}
        ids = dict(image_token_id=94, video_token_id=95, vision_start_token_id=96, vision_end_token_id=97)
        config |= dict(rope_scaling=axes, target_model_type="qwen3_vl", modal_type="VLM", **ids)
    if "OCR" in row.repo:
        config |= dict(target_model_type="hunyuan_vl", modal_type="VLM", eod_token_id=2, image_token_id=94)
        del config["rope_scaling"]
    if "32B" in row.repo:
        config["head_dim"] = DIM // 2
    return config, random_file({**eagle3(config), "embed_tokens.weight": (VOCAB, WIDTH)})


def specforge(row: PublishedDrafter) -> Layout:
    config = llama(
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=SMALL_DRAFT_VOCAB,
        target_model_type="qwen3_vl",
        pretraining_tp=1,
        max_window_layers=28,
        sliding_window=32768,
        use_sliding_window=False,
        torch_dtype="bfloat16",
        rope_scaling={"type": "mrope", "rope_type": "mrope", "mrope_section": [2, 1, 1]},
    )
    return config, random_file(eagle3(config))


def modelopt(row: PublishedDrafter) -> Layout:
    """`d2t` in the order of frequency without `t2d`; the drafter of gpt-oss shares the target's head."""
    config = llama(
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=SMALL_DRAFT_VOCAB,
        mlp_bias=False,
        pretraining_tp=1,
        pad_token_id=None,
        torch_dtype="bfloat16",
        transformers_version="4.55.0",
        rope_scaling={"rope_type": "default", "rope_theta": 10000},
        eagle_config=dict(
            eagle_aux_hidden_state_layer_ids=three(layers_of(row)),
            use_aux_hidden_state=True,
            use_mtp_layernorm=False,
            use_input_layernorm_in_first_layer=True,
            use_last_layernorm=True,
            next_layer_regular=True,
            parallel_draft_step=1,
            parallel_draft_heads_num_layers=1,
        ),
    )
    state = random_file(eagle3(config, "layers.0."))
    del state["t2d"]
    ids = torch.randperm(VOCAB)[:SMALL_DRAFT_VOCAB]
    state["d2t"] = ids - torch.arange(SMALL_DRAFT_VOCAB)
    if "gpt-oss" in row.repo:
        config["draft_vocab_size"] = None
        del state["d2t"], state["lm_head.weight"]
    return config, state


def deepspec_eagle3(row: PublishedDrafter) -> Layout:
    """Five levels, the whole vocabulary, and the layer of Qwen3."""
    config = llama(
        architectures=["Qwen3Eagle3Model"],
        model_type="qwen3",
        target_layer_ids=[1, 2, 3, 4, 6],
        num_target_layers=8,
        draft_num_hidden_layers=1,
        ttt_length=7,
        step_loss_decay=0.8,
        layer_types=["full_attention"],
        target_model_name_or_path=row.target,
        max_window_layers=36,
        sliding_window=None,
        use_sliding_window=False,
    )
    shapes = eagle3({**config, "draft_vocab_size": VOCAB}, "layers.0.")
    shapes = {name: shape for name, shape in shapes.items() if name not in ("d2t", "t2d")}
    shapes |= {"fc.weight": (WIDTH, 5 * WIDTH), "embed_tokens.weight": (VOCAB, WIDTH)}
    return config, random_file(shapes | {f"layers.0.self_attn.{x}_norm.weight": (DIM,) for x in "qk"})


def block(taps: int, layers: int = 2) -> Shapes:
    """The tensors of the drafters that draft a block side by side."""
    shapes = {"fc.weight": (WIDTH, taps * WIDTH), "hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    own = {
        "self_attn.q_proj": (4 * DIM, WIDTH),
        "self_attn.k_proj": (2 * DIM, WIDTH),
        "self_attn.v_proj": (2 * DIM, WIDTH),
        "self_attn.o_proj": (WIDTH, 4 * DIM),
        "self_attn.q_norm": (DIM,),
        "self_attn.k_norm": (DIM,),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
    }
    return shapes | {f"layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in own.items()}


def deepspec_dspark(row: PublishedDrafter) -> Layout:
    config = llama(
        architectures=["Qwen3DSparkModel"],
        model_type="qwen3",
        target_layer_ids=[1, 2, 3, 4, 6],
        num_target_layers=8,
        num_hidden_layers=2,
        layer_types=["full_attention"] * 2,
        block_size=7,
        mask_token_id=MASK,
        num_anchors=512,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        markov_rank=4,
        markov_head_type="vanilla",
        max_window_layers=36,
        sliding_window=None,
        use_sliding_window=False,
    )
    heads = {
        "markov_head.markov_w1.weight": (VOCAB, 4),
        "markov_head.markov_w2.weight": (VOCAB, 4),
        "confidence_head.proj.weight": (1, WIDTH + 4),
        "confidence_head.proj.bias": (1,),
        "embed_tokens.weight": (VOCAB, WIDTH),
        "lm_head.weight": (VOCAB, WIDTH),
    }
    return config, random_file({**block(5), **heads})


def zlab(row: PublishedDrafter) -> Layout:
    slides = "Qwen3.6-27B" in row.repo or "gemma" in row.repo
    taps = [0, layers_of(row) - 1]
    config = llama(
        architectures=["DFlashDraftModel"],
        auto_map={"AutoModel": "dflash.DFlashDraftModel"},
        model_type="qwen3",
        block_size=16,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": taps},
        dtype="bfloat16",
        num_hidden_layers=2,
        num_target_layers=layers_of(row),
        max_window_layers=2,
        use_sliding_window=slides,
        sliding_window=8 if slides else None,
        layer_types=["sliding_attention" if slides else "full_attention", "full_attention"],
    )
    if "gpt-oss" in row.repo:
        yarn = dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False)
        config |= dict(block_size=8, rope_scaling=yarn | {"original_max_position_embeddings": 4096})
    return config, random_file(block(2))


def redhat(row: PublishedDrafter, kind: str, **top: object) -> dict:
    """The fields that `speculators` writes beside a drafter's own."""
    proposal = dict(accept_tolerance=0.0, proposal_type="greedy", speculative_tokens=5, verifier_accept_k=1)
    verifier = dict(architectures=[target_class(row)], name_or_path=row.target)
    return (
        dict(
            speculators_model_type=kind,
            speculators_version="0.2.0.dev11",
            has_no_defaults_at_init=False,
            draft_vocab_size=SMALL_DRAFT_VOCAB,
            target_hidden_size=None,
            torch_dtype="bfloat16",
            speculators_config=dict(
                algorithm=kind,
                default_proposal_method="greedy",
                proposal_methods=[proposal],
                verifier=verifier,
            ),
        )
        | top
    )


def speculators_eagle3(row: PublishedDrafter) -> Layout:
    """As the versions before 0.5 save it, or after; the converted drafter of Maverick names its levels."""
    config = redhat(
        row,
        "eagle3",
        architectures=["Eagle3Speculator"],
        auto_map={"": "eagle3.Eagle3SpeculatorConfig"},
        norm_before_residual=True,
        transformer_layer_config=llama(mlp_bias=False, pretraining_tp=1),
    )
    if "Maverick" in row.repo:
        config |= dict(norm_before_residual=False, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    shapes = speculators(config)
    if "gemma" in row.repo or "gpt-oss" in row.repo:
        layer = config["transformer_layer_config"]
        layer["rope_parameters"] = {"rope_theta": layer.pop("rope_theta"), "rope_type": "default"}
        del layer["rope_scaling"], config["auto_map"]
        config |= dict(architectures=["Eagle3DraftModel"], embed_requires_grad=False, norm_before_fc=False)
        config["eagle_aux_hidden_state_layer_ids"] = [1, 1, 2]
    if "gpt-oss" in row.repo:
        config["norm_before_fc"] = True
        shapes["input_norm.weight"] = (3 * WIDTH,)
    return config, random_file(shapes)


def speculators_dflash(row: PublishedDrafter) -> Layout:
    """The last level is the target's final state, which only training reads."""
    layer = llama(model_type="qwen3", num_hidden_layers=2, layer_types=["full_attention"] * 2, sliding_window=None)
    config = redhat(
        row,
        "dflash",
        architectures=["DFlashDraftModel"],
        transformer_layer_config=layer,
        block_size=8,
        aux_hidden_state_layer_ids=[1, layers_of(row)],
        mask_token_id=MASK,
    )
    reduced = {"lm_head.weight": (SMALL_DRAFT_VOCAB, WIDTH), "d2t": (SMALL_DRAFT_VOCAB,), "t2d": (VOCAB,)}
    return config, random_file({**block(1), **reduced, "embed_tokens.weight": (VOCAB, WIDTH)})


def gemma4_assistant(row: PublishedDrafter) -> Layout:
    """The head of the small models scores clusters."""
    text = target(target_class(row)).config.get_text_config(decoder=True).to_dict()
    inner, heads = 24, text["num_attention_heads"]
    layers = target(target_class(row)).get_decoder().layers
    text |= dict(
        hidden_size=16,
        intermediate_size=inner,
        num_kv_shared_layers=len(layers),
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        enable_moe_block=False,
        use_double_wide_mlp=False,
    )
    shapes = {
        "model.embed_tokens.weight": (VOCAB, 16),
        "model.norm.weight": (16,),
        "pre_projection.weight": (16, 2 * WIDTH),
        "post_projection.weight": (WIDTH, 16),
    }
    for index, layer in enumerate(layers):
        dim = layer.self_attn.head_dim
        own = {
            "self_attn.q_proj.weight": (heads * dim, 16),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.o_proj.weight": (16, heads * dim),
            "mlp.gate_proj.weight": (inner, 16),
            "mlp.up_proj.weight": (inner, 16),
            "mlp.down_proj.weight": (16, inner),
            "layer_scalar": (1,),
        }
        sides = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        own |= {f"{side}_layernorm.weight": (16,) for side in sides}
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in own.items()}
    is_ordered, name = "-E" in row.repo, "Gemma4UnifiedAssistant" if "12B" in row.repo else "Gemma4Assistant"
    config = dict(
        architectures=[f"{name}ForCausalLM"],
        model_type=getattr(hf, f"{name}Config").model_type,
        text_config=text,
        backbone_hidden_size=WIDTH,
        use_ordered_embeddings=is_ordered,
        centroid_intermediate_top_k=2,
        num_centroids=VOCAB if is_ordered else 2048,
        tie_word_embeddings=True,
    )
    state = random_file(shapes | ({"masked_embedding.centroids.weight": (VOCAB, 16)} if is_ordered else {}))
    if is_ordered:
        state["masked_embedding.token_ordering"] = torch.randperm(VOCAB)
    return config, state


def vispec_layout(row: PublishedDrafter) -> Layout:
    name = row.repo.partition("/")[2]
    if "llava-1.5" in name:
        own = dict(architectures=["LlavaForConditionalGeneration"], model_type="llava")
        config = small("ViSpec-llava-v1.6-vicuna-7b-hf", **own)
    else:
        config = small(name)
    return config, random_file(vispec(config))


def msd(row: PublishedDrafter) -> Layout:
    """The drafters for LLaVA-1.5 lack the last words of the target, the picture's among them."""
    name = row.repo.partition("/")[2]
    config = small(name)
    if "LLaVA" in name:
        config["vocab_size"] = VOCAB - 5
    return config, random_file(published_files.PUBLISHED[name].shapes(config))


BUILDERS: dict[tuple[str, str], Callable[[PublishedDrafter], Layout]] = {
    ("AngelSlim", "eagle3"): angelslim,
    ("DeepSpec", "dspark"): deepspec_dspark,
    ("DeepSpec", "eagle3"): deepspec_eagle3,
    ("MSD", "msd"): msd,
    ("ModelOpt", "eagle3"): modelopt,
    ("SafeAILab", "eagle"): safeailab_eagle,
    ("SafeAILab", "eagle3"): safeailab_eagle3,
    ("SpecForge", "eagle3"): specforge,
    ("ViSpec", "vispec"): vispec_layout,
    ("speculators", "dflash"): speculators_dflash,
    ("speculators", "eagle3"): speculators_eagle3,
    ("transformers", "gemma4_assistant"): gemma4_assistant,
    ("z-lab", "dflash"): zlab,
}
UNNAMED = ("MSD",)  # layouts in which neither the config nor the tensors of every file tell the kind


def written(folder: Path, layout: Layout) -> Path:
    config, state = layout
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors")
    return folder


def made(row: PublishedDrafter) -> Layout:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BUILDERS[row.layout, row.kind](row)


# the words of a repository's name that change the file beside its layout
VARIANTS = (
    "VL",
    "OCR",
    "Vicuna",
    "32B_",
    "33B",
    "70B",
    "gpt-oss",
    "Qwen3.6-27B",
    "gemma",
    "-E",
    "12B",
    "Maverick",
    "LLaVA",
)


def once(rows: tuple[PublishedDrafter, ...]) -> list:
    """The rows as parameters; the default lane runs the first of those whose tiny files and targets are the same."""
    seen, found = set(), []
    for row in rows:
        key = row.layout, row.kind, target_class(row), *(word for word in VARIANTS if word in row.repo)
        found.append(pytest.param(row, id=row.repo, marks=[pytest.mark.whole] if key in seen else []))
        seen.add(key)
    return found


def test_every_row_has_a_layout_that_is_built_here() -> None:
    assert {row.repo.partition("/")[0] for row in PUBLISHED} == set(LAYOUTS)
    assert {(row.layout, row.kind) for row in PUBLISHED} == set(BUILDERS)
    assert all(hasattr(hf, target_class(row)) for row in PUBLISHED)


@pytest.mark.parametrize("row", once(PUBLISHED))
def test_a_published_layout_keeps_the_targets_words(row: PublishedDrafter, tmp_path: Path) -> None:
    name = target_class(row)
    model = target(name)
    skip_broken(model)
    folder = written(tmp_path, made(row))
    drafter = mmspec.vlm.load_drafter(folder, target=model, kind=row.kind)
    assert type(drafter) is drafter_class(row.kind)
    if row.layout not in UNNAMED:
        assert type(mmspec.vlm.load_drafter(folder, target=model)) is type(drafter)
    inputs = picture_prompt(name, model, "mixed") if picture_kinds(name, model) else text_prompt("ragged")
    truth = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    start = inputs["input_ids"].shape[1]
    planted = Planted(drafter, truth=truth[:, start:].tolist(), words=60)
    for used in (drafter, planted):
        out = mmspec.generate(model, drafter=used, max_new_tokens=8, do_sample=False, **inputs)
        assert torch.equal(out, truth[:, : start + 8])
