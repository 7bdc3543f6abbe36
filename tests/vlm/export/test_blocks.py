"""Block drafters in the files of engines: logits from the files alone, what the config says, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import mmspec.vlm
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_layers import UNLIMITED
from mmspec.vlm.drafters.drafter_names import drafter_class
from mmspec.vlm.export import Verifier, export_drafter
from tests.vlm.drafters.dflash.test_attention import ours
from tests.vlm.drafters.xpress.test_refiner import bias_written_out

V, K, H, I, HEADS, GROUPS, DIM, BLOCK, TAPS, WINDOW = 40, 13, 16, 24, 4, 2, 8, 5, 3, 4
CONTEXT, CLOSE = 11, dict(atol=1e-4, rtol=1e-4)
SLIDING = dict(reach=(WINDOW, UNLIMITED), reach_from_root=True, causal=(True, False))
MARKOV = dict(markov_rank=3)
FORMS: dict[str, tuple[str, dict]] = {
    "dflash": ("dflash", {}),
    "dflash sliding": ("dflash", SLIDING),
    "dflash sliding both ways": ("dflash", SLIDING | dict(causal=(False, False))),
    "dflash biased, from the root": ("dflash", dict(attention_bias=True, from_root=True)),
    "dflash reduced": ("dflash", dict(draft_vocab_size=K)),
    "dflash tied": ("dflash", dict(draft_vocab_size=K, tied_head=True)),
    "dflash2": ("dflash2", dict(conv_taps=3, conv_group=4, selector_rank=3, selector_top=6)),
    "dspark": ("dspark", MARKOV | dict(from_root=True)),
    "dspark gated, sliding": (
        "dspark",
        MARKOV | SLIDING | dict(markov_head_type="gated", confidence_with_markov=False),
    ),
    "dspark rnn, reduced": (
        "dspark",
        MARKOV
        | dict(markov_head_type="rnn", draft_vocab_size=K, reduced_markov=True, confidence_head=False, root_first=True),
    ),
    "xpress": ("xpress", dict(refiner_rank=3, refiner_ratio=2, passes=4)),
    "xpress reduced, from the root": ("xpress", dict(refiner_rank=3, draft_vocab_size=K, from_root=True)),
    "dspark without correction": ("dspark", dict(markov_rank=0, confidence_with_markov=False)),
}


class Target(Verifier):
    """A verifier with a random head and without a checkpoint."""

    def __init__(self) -> None:
        super().__init__("some/target", {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 512})
        self.head = torch.randn(V, H, generator=torch.Generator().manual_seed(1))


def drafter_of(form: str, **changes: object) -> BlockDrafter:
    """A drafter of random weights, no part of which stands for another."""
    kind, sizes = FORMS[form]
    made = drafter_class(kind)
    torch.manual_seed(0)
    config = dict(
        taps=(0, 2, 3),
        mask_token_id=V - 1,
        block_size=BLOCK,
        num_hidden_layers=2,
        num_key_value_heads=GROUPS,
        head_dim=DIM,
        rope_theta=100.0,
        **sizes,
    )
    drafter = made(made.config_class(H, I, HEADS, V, **config | changes)).eval().requires_grad_(False)
    for name, weight in drafter.named_parameters():
        weight.copy_(torch.randn_like(weight) * 0.3 + ("norm" in name))
    if drafter.vocabulary is not None:
        drafter.head.choose(range(1, V, 3)[:K])
        if drafter.head.tied:
            drafter.head.tie(Target().head)
    return drafter


def export(drafter: BlockDrafter, folder: Path, **options: object) -> tuple[dict, dict[str, Tensor]]:
    export_drafter(drafter, folder, verifier=Target(), **options)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def turned(x: Tensor, position: Tensor, theta: float) -> Tensor:
    half = x.shape[-1] // 2
    angle = position[:, None, None] / theta ** (torch.arange(half) / half)
    low, high = x.split(half, -1)
    return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)


def convolved(w: dict[str, Tensor], name: str, rows: Tensor, normed: Tensor, side: int) -> Tensor:
    """Rows [n, H] mixed with those before them, of one side of a sublayer; as they are without such tensors."""
    if f"{name}.base_kernel" not in w:
        return rows
    base = w[f"{name}.base_kernel"][side]
    delta = (normed @ w[f"{name}.kernel_projection.weight"].T).view(len(rows), 2, len(base), -1)[:, side]
    mixed = torch.zeros_like(rows)
    for i in range(len(rows)):
        for tap in range(min(len(base), i + 1)):
            kernel = base[tap] + delta[i, tap].repeat_interleave(H // delta.shape[-1])
            mixed[i] += kernel * rows[i - tap]
    return mixed


def rows_of_files(config: dict, w: dict[str, Tensor], states: Tensor, embeds: Tensor) -> Tensor:
    """What an engine computes of a block from the two files, [BLOCK, H]; written from the description of the format alone.

    states: the target's, [n, taps * H].   embeds: [BLOCK, H].
    """
    layer, root = config["transformer_layer_config"], len(states)
    dim, theta = layer["head_dim"], layer["rope_parameters"]["rope_theta"]
    position = torch.arange(root + BLOCK)
    context, y = rms(states @ w["fc.weight"].T, w["hidden_norm.weight"]), embeds
    for index, kind in enumerate(layer["layer_types"]):
        own = f"layers.{index}."

        def project(name: str, x: Tensor, own: str = own) -> Tensor:
            bias = w[f"{own}{name}_proj.bias"] if layer["attention_bias"] and "attn" in name else 0
            return x @ w[f"{own}{name}_proj.weight"].T + bias

        normed = rms(y, w[f"{own}input_layernorm.weight"])
        a = convolved(w, f"{own}attention_conv", normed, normed, 0)
        keys = torch.cat([context, a])
        q = turned(
            rms(project("self_attn.q", a).unflatten(-1, (-1, dim)), w[f"{own}self_attn.q_norm.weight"]),
            position[root:],
            theta,
        )
        k = turned(
            rms(project("self_attn.k", keys).unflatten(-1, (-1, dim)), w[f"{own}self_attn.k_norm.weight"]),
            position,
            theta,
        )
        v = project("self_attn.v", keys).unflatten(-1, (-1, dim))
        k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
        hides = torch.zeros(BLOCK, root + BLOCK, dtype=torch.bool)
        if kind == "sliding_attention":
            hides = hides | (position < root - layer["sliding_window"])
            if not config["sliding_window_non_causal"]:
                hides = hides | (position > position[root:, None])
        scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        attended = torch.einsum("hqk,khd->qhd", scores.masked_fill(hides, -torch.inf).softmax(-1), v).flatten(1)
        y = y + convolved(w, f"{own}attention_conv", project("self_attn.o", attended), normed, 1)
        normed = rms(y, w[f"{own}post_attention_layernorm.weight"])
        b = convolved(w, f"{own}mlp_conv", normed, normed, 0)
        inner = project("mlp.down", F.silu(project("mlp.gate", b)) * project("mlp.up", b))
        y = y + convolved(w, f"{own}mlp_conv", inner, normed, 1)
    return rms(y, w["norm.weight"])


def logits_of_files(
    config: dict, w: dict[str, Tensor], states: Tensor, embeds: Tensor, before: list[int], head: Tensor, earlier: int
) -> Tensor:
    """The scores of a walk along the tokens `before`, [D, V], minus infinity for what is never drafted.

    earlier: the token before the root.
    """
    rows, first = rows_of_files(config, w, states, embeds), 1 - config["sample_from_anchor"]
    ids = torch.arange(config["draft_vocab_size"]) + w.get("d2t", 0)
    scores, memory = rows @ (w.get("lm_head.weight", head)).T, torch.zeros(config.get("markov_rank", 0))
    if "xpress_rank" in config:
        scores = scores + bias_written_out(w, rows, [earlier, *before][1 - first :])
    root, scores, rows = rows[0], scores[first:], rows[first:]

    def recurrent(row: Tensor, token: int) -> tuple[Tensor, Tensor]:
        code = w["markov_head.markov_w1.weight"][token]
        joint = w["markov_head.joint_proj.weight"] @ torch.cat([memory, code, row])
        gate, candidate, out = (joint + w["markov_head.joint_proj.bias"]).chunk(3)
        return out.tanh(), gate.sigmoid() * memory + (1 - gate.sigmoid()) * candidate.tanh()

    is_recurrent = config.get("markov_head_type") == "rnn"
    if is_recurrent and first:  # the library runs through all rows of a block
        _, memory = recurrent(root, before[0])
    for level, (row, token) in enumerate(zip(rows, before, strict=True)):
        if config.get("markov_rank"):
            code = w["markov_head.markov_w1.weight"][token]
            if config["markov_head_type"] == "gated":
                gate = w["markov_head.gate_proj.weight"] @ torch.cat([row, code]) + w["markov_head.gate_proj.bias"]
                code = gate.sigmoid() * code
            if is_recurrent:
                code, memory = recurrent(row, token)
            scores[level] += w["markov_head.markov_w2.weight"] @ code
        if "selector_rank" in config:
            own = "candidate_selector."
            query = w[f"{own}predecessor_codebook"][token] * (w[f"{own}hidden_projection.weight"] @ row)
            best = scores[level].topk(config["selector_top_k"]).indices
            edges = torch.full((V,), -torch.inf).index_copy(0, best, (w[f"{own}successor_codebook"] @ query)[best])
            scores[level] += edges
    return torch.full((len(scores), V), -torch.inf).index_copy(1, ids, scores)


@pytest.mark.parametrize("form", FORMS)
def test_the_files_alone_give_the_drafters_logits(form: str, tmp_path: Path) -> None:
    drafter = drafter_of(form)
    config, weights = export(drafter, tmp_path, dtype=torch.float32)
    states, embeds, head = torch.randn(1, CONTEXT, TAPS * H), torch.randn(1, BLOCK, H), nn.Linear(H, V, bias=False)
    head.weight.data.copy_(Target().head)
    before, earlier = torch.randint(V, (1, drafter.config.drafted)), torch.tensor([5])
    with torch.no_grad():
        rows = drafter.drafting(ours(drafter, [states], embeds), earlier)
        out = drafter.walk(rows, before)
        mine = drafter.scores(out[0], head)
        mine = mine if drafter.head is None else drafter.head.spread(mine)
    expected = logits_of_files(config, weights, states[0], embeds[0], before[0].tolist(), Target().head, 5)
    torch.testing.assert_close(mine, expected, **CLOSE)
    assert expected[expected.isfinite()].abs().max() > 1
    if config.get("enable_confidence_head"):
        known = [rows[0]]
        if config["confidence_head_with_markov"]:
            known.append(weights["markov_head.markov_w1.weight"][before[0]])
        said = torch.cat(known, -1) @ weights["confidence_head.proj.weight"].T + weights["confidence_head.proj.bias"]
        torch.testing.assert_close(drafter.acceptance(out[0]), said[:, 0], **CLOSE)


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_drafter_loads_again(form: str, tmp_path: Path) -> None:
    drafter = drafter_of(form)
    export(drafter, tmp_path, dtype=torch.float32)
    again = mmspec.vlm.load_drafter(tmp_path)
    unlike = dict(tied_head=False, reduced_markov=False)  # written out in full
    same = dict(reach_from_root=True)  # says nothing where no layer slides
    assert again.config == replace(
        drafter.config, **same, **{k: v for k, v in unlike.items() if hasattr(drafter.config, k)}
    )
    for name, value in drafter.state_dict().items():
        if name != "markov_head.markov_w1.weight" or not getattr(drafter.config, "reduced_markov", False):
            assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("form, tokens", (("dflash", 4), ("dspark", 5), ("dflash2", 4), ("xpress", 4)))
def test_the_config_that_engines_read(form: str, tokens: int, tmp_path: Path) -> None:
    config, weights = export(drafter_of(form), tmp_path)
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    own = {
        "dflash": {"architectures": ["DFlashDraftModel"]},
        "dflash2": {
            "architectures": ["DFlash2DraftModel"],
            "conv_kernel_size": 3,
            "conv_group_size": 4,
            "selector_rank": 3,
            "selector_top_k": 6,
        },
        "xpress": {
            "architectures": ["XPressDraftModel"],
            "xpress_rank": 3,
            "xpress_mlp_ratio": 2,
            "num_jacobi_passes": 4,
        },
        "dspark": {
            "architectures": ["DSparkDraftModel"],
            "markov_rank": 3,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
    }[form]
    assert config == own | {
        "speculators_model_type": form,
        "speculators_version": "0.9.0",
        "draft_vocab_size": V,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "block_size": BLOCK,
        "mask_token_id": V - 1,
        "aux_hidden_state_layer_ids": [1, 3, 4],
        "sample_from_anchor": form == "dspark",
        "sliding_window_non_causal": False,
        "target_hidden_size": None,
        "speculators_config": {
            "algorithm": form,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "some/target", "architectures": ["Qwen3ForCausalLM"]},
        },
        "transformer_layer_config": {
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": H,
            "intermediate_size": I,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "num_key_value_heads": GROUPS,
            "head_dim": DIM,
            "vocab_size": V,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 100.0,
            "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
            "attention_bias": False,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention"] * 2,
            "sliding_window": None,
            "use_sliding_window": False,
        },
    }
    assert not {"lm_head.weight", "embed_tokens.weight", "d2t", "t2d"} & weights.keys()
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


REFUSED = (
    ("dflash", dict(latents=2), "latents: expected 0, got 2"),
    ("dflash", dict(embedding_scale=2.0), "embedding_scale"),
    ("dspark", dict(output_multiplier=0.5), "output_multiplier"),
    ("dflash2", dict(softcap=30.0), "softcap"),
    ("dflash", dict(mlp_bias=True), "mlp_bias"),
    ("dflash", dict(target_hidden_size=24), "target_hidden_size: expected 16"),
    ("dspark", dict(draft_vocab_size=V), "draft_vocab_size"),
    ("dflash", dict(reach=(4, 5), reach_from_root=True), "expected the same of all sliding layers"),
    (
        "dflash",
        dict(reach=(4, 4), reach_from_root=True, causal=(True, False)),
        "expected the same of all sliding layers",
    ),
    ("dflash", dict(reach=(4, UNLIMITED)), "reach_from_root: expected True"),
    ("dflash", dict(causal=(True, False)), "causal: expected full layers that show all of a block"),
    ("dflash2", dict(from_root=True), "from_root: expected False"),
    ("dspark", dict(from_root=False, markov_head_type="rnn"), "root_first: expected True"),
)


@pytest.mark.parametrize("form, changes, message", REFUSED)
def test_a_drafter_that_the_library_does_not_compute_is_refused(
    form: str, changes: dict, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        export(drafter_of(form, **changes), tmp_path)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
