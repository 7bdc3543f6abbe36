"""Muse Glimmer with its assistant, both as transformers has them: drafts are those of transformers' own generator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

import mmspec
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.classes.shrink import WORDS

TAPS, BLOCK, WINDOW, NEW = [0], 6, 9, 24


@pytest.fixture(scope="module")
def target() -> nn.Module:
    return model_of("MuseGlimmerForConditionalGeneration", config_of("MuseGlimmerForConditionalGeneration"))


@pytest.fixture(scope="module")
def assistant(target: nn.Module) -> hf.PreTrainedModel:
    text = target.config.get_text_config(decoder=True)
    config = hf.MuseGlimmerAssistantConfig(
        hidden_size=text.hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        block_size=BLOCK,
        mask_token_id=3,
        target_layer_ids=TAPS,
        eos_token_id=None,
    )
    torch.manual_seed(5)
    model = hf.MuseGlimmerAssistantModel(config).eval().requires_grad_(False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(1, 0.2) if weight.dim() < 2 else weight.normal_(0, 1.5 / weight.shape[1] ** 0.5)
    return model


@pytest.fixture(scope="module")
def drafter(target: nn.Module, assistant: hf.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("assistant")
    assistant.save_pretrained(folder)
    return mmspec.vlm.load_drafter(folder, target=target)


def prompt(length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(*WORDS, (1, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("length", [4, 21])
def test_the_first_block_is_that_of_transformers(target, assistant, drafter, length: int) -> None:
    seen: list[torch.Tensor] = []
    hook = assistant.register_forward_hook(lambda module, given, out: seen.append(out.last_hidden_state))
    try:
        target.generate(
            **prompt(length), assistant_model=assistant, speculation_type="dflash", max_new_tokens=NEW, do_sample=False
        )
    finally:
        hook.remove()
    run = mmspec.vlm.start(target, drafter=drafter, **prompt(length), max_new_tokens=NEW, do_sample=False)
    run.step()
    run.state.propose(run.target, run.keys)
    torch.testing.assert_close(run.state.rows, seen[0][:, 1:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [4, 21])
def test_drafted_tokens_are_those_of_generate(target, drafter, length: int) -> None:
    given = prompt(length)
    plain = target.generate(**given, max_new_tokens=NEW, do_sample=False)
    out = mmspec.generate(target, drafter=drafter, **given, max_new_tokens=NEW, do_sample=False, return_dict=True)
    assert torch.equal(out.sequences, plain) and out.stats.drafter_passes > 0
