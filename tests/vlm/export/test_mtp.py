"""MTP layers as folders of the `speculators` library: what is written is what its own layer computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import mmspec
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from mmspec.vlm.export import Verifier, export_drafter
from tests.vlm.drafters.mtp.test_drafter import VOCAB
from tests.vlm.drafters.mtp.test_drafter import drafter as native
from tests.vlm.drafters.mtp.test_drafter import target as native_target
from tests.vlm.drafters.mtp.test_speculators import TARGETS, WIDTH, library_outputs, target, tensors


def drafter_of(name: str, **config: object) -> Mtp:
    model = target(name)
    made = Mtp(MtpConfig(WIDTH, VOCAB, **config), take_apart(model)).eval().requires_grad_(False)
    rng = torch.Generator().manual_seed(3)
    for key, weight in made.named_parameters():
        weight.copy_(0.2 * torch.randn(weight.shape, generator=rng) + ("norm" in key))
    return made


def export(name: str, folder: Path, **config: object) -> tuple[dict, dict[str, Tensor]]:
    verifier = Verifier.of_model(target(name), "some/target")
    export_drafter(drafter_of(name, **config), folder, engine="speculators", verifier=verifier, dtype=torch.float32)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


@torch.no_grad()
@pytest.mark.parametrize("name", TARGETS)
def test_the_librarys_layer_computes_the_drafters_logits(name: str, tmp_path: Path) -> None:
    config, weights = export(name, tmp_path)
    drafter, model = drafter_of(name), target(name)
    assert weights.keys() == tensors(name).keys()  # of the library's own layer class
    ids = torch.randint(1, VOCAB, (1, 7), generator=torch.Generator().manual_seed(5))
    embeds, hidden = model.get_input_embeddings()(ids), torch.randn(1, 7, WIDTH)
    out = drafter(drafter.fuse(embeds, hidden), torch.arange(1, 8)[None], SlotCache(1, 0), None)
    head = model.get_output_embeddings()
    expected = head(library_outputs(name, weights, embeds, hidden))
    torch.testing.assert_close(drafter.logits(out, 1, head), expected, atol=1e-4, rtol=1e-4)
    again = mmspec.vlm.load_drafter(tmp_path, target=model)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in drafter.state_dict().items())


def test_the_config_holds_the_targets_text_config_whole(tmp_path: Path) -> None:
    config, _ = export("qwen3_5_text", tmp_path)
    layer = config.pop("transformer_layer_config")
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    assert config == {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "speculators_version": "0.9.0",
        "tie_word_embeddings": False,
        "dtype": "float32",
        "num_nextn_predict_layers": 1,
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "some/target", "architectures": ["Qwen3_5ForCausalLM"]},
        },
    }
    read = type(target("qwen3_5_text").config).from_dict(layer)
    assert read.model_type == "qwen3_5_text" and read.to_dict() == {
        **target("qwen3_5_text").config.to_dict(),
        **_own(read),
    }


def _own(config: object) -> dict:
    """What reading a config adds to it."""
    return {name: value for name, value in config.to_dict().items() if name in ("architectures", "_name_or_path")}


def test_layers_that_the_library_has_not_are_refused(tmp_path: Path) -> None:
    for config in (dict(states_first=True), dict(normed=False)):
        with pytest.raises(ValueError, match="states_first, normed: expected"):
            export("qwen3", tmp_path, **config)
    glm = Verifier.of_model(native_target("glm4_moe"), "some/target")
    for drafter, verifier, engine, message in (
        (native("glm4_moe"), glm, "speculators", "expected a text model of type qwen3, .*got 'glm4_moe'"),
        (
            drafter_of("qwen3"),
            Verifier("t", {"model_type": "qwen3", "hidden_size": 8}),
            "speculators",
            "hidden_size 32",
        ),
        (drafter_of("qwen3"), glm, "vllm", "which vllm supports, got .*speculators would"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            export_drafter(drafter, tmp_path, engine=engine, verifier=verifier)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
