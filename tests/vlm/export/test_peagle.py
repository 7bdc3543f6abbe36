"""P-EAGLE in the files of engines: it loads again with the same weights and the same sizes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

import mmspec.vlm
from mmspec.vlm.drafters.peagle import PEagle, PEagleConfig
from mmspec.vlm.export import Verifier, export_drafter

V, H, I, HEADS, GROUPS, DIM, LAYERS = 40, 32, 48, 4, 2, 16, 3
VERIFIER = Verifier("some/target", {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 512})


def peagle(**others: object) -> PEagle:
    torch.manual_seed(0)
    config = dict(levels=(2, 4, 5), num_key_value_heads=GROUPS, head_dim=DIM, num_hidden_layers=LAYERS, depths=5)
    drafter = PEagle(PEagleConfig(H, I, HEADS, V, **config | others)).eval().requires_grad_(False)
    for module in drafter.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.weight.normal_(1, 0.2)  # so that none stands for another
    return drafter


def test_an_exported_drafter_loads_again(tmp_path: Path) -> None:
    drafter = peagle(mask_token_id=7, draft_vocab_size=13, norm_before_residual=True)
    drafter.head.choose(range(1, V, 3))
    export_drafter(drafter, tmp_path, verifier=VERIFIER, dtype=torch.float32)
    again = mmspec.vlm.load_drafter(tmp_path)
    assert again.config == drafter.config
    assert again.state_dict().keys() == drafter.state_dict().keys()
    for name, value in drafter.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_the_config_says_the_layers_and_the_mask(tmp_path: Path) -> None:
    export_drafter(peagle(mask_token_id=7), tmp_path, verifier=VERIFIER)
    config, weights = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    layer = config["transformer_layer_config"]
    assert (config["speculators_model_type"], config["mask_token_id"], config["draft_vocab_size"]) == ("peagle", 7, V)
    assert (layer["num_hidden_layers"], layer["max_position_embeddings"]) == (LAYERS, 512)
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert weights["layers.0.self_attn.q_proj.weight"].shape == (HEADS * DIM, 2 * H)
    assert weights["layers.1.self_attn.q_proj.weight"].shape == (HEADS * DIM, H)
    assert weights["mask_hidden"].shape == (1, 1, 3 * H) and weights["embed_tokens.weight"].shape == (V, H)
    assert "d2t" not in weights and {value.dtype for value in weights.values()} == {torch.bfloat16}
