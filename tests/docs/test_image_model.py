"""The image model of the page on image models: greedy codes are those of a full pass for every code."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.imagegen import ImagePipeline
from tests.docs.examples import imported, said
from tests.vlm.tiny import liven

CODES, FIRST, BEGIN, SIDE = 9, 21, 20, 4
PROMPTS = [[3, 14, 15, 9], [7, 2]]


@cache
def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=FIRST + CODES + 2, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    liven(model)
    return model


def palette() -> Tensor:
    return torch.rand(CODES, 3, generator=torch.Generator().manual_seed(1))


def pipeline(module: ModuleType, kind: type | None = None, **settings: object) -> ImagePipeline:
    return ImagePipeline((kind or module.Painter)(llama(), palette(), first=FIRST, begin=BEGIN, side=SIDE, **settings))


def by_full_passes(scale: float) -> Tensor:
    """The codes int64 [B, total] of a loop without a cache."""
    rows = []
    for prompt in PROMPTS:
        codes: list[int] = []
        for _ in range(SIDE * SIDE):
            drawn = [FIRST + code for code in codes]
            with_text, without = (
                llama()(torch.tensor([[*words, BEGIN, *drawn]])).logits[0, -1, FIRST : FIRST + CODES]
                for words in (prompt, [])
            )
            codes.append(int((without + scale * (with_text - without)).argmax()))
        rows.append(codes)
    return torch.tensor(rows)


@pytest.mark.parametrize("decoding", (None, "sjd:window=4", "scd:window=6"))
@pytest.mark.parametrize("scale", (1.0, 3.0))
def test_greedy_codes_are_those_of_full_passes(
    monkeypatch: pytest.MonkeyPatch, decoding: str | None, scale: float
) -> None:
    pipe = pipeline(imported(monkeypatch, "image_model"))
    out = pipe(PROMPTS, decoding=decoding, temperature=0.0, guidance_scale=scale)
    assert torch.equal(out.tokens, by_full_passes(scale)) and len(out.tokens.unique()) > 2
    assert out.stats.exact and not torch.equal(by_full_passes(1.0), by_full_passes(3.0))


def test_a_wrong_adapter_draws_other_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(monkeypatch, "image_model")

    class Shifted(module.Painter):
        def embed(self, value: Tensor) -> Tensor:
            return self.embed_tokens(self.vocabulary.ids[value] - 1)

    class Unbegun(module.Painter):
        def prompts(self, rows, given, *, texts):
            made = super().prompts(rows, given, texts=texts)
            return type(made)(rows, made.uncond)

    for wrong in (Shifted, Unbegun):
        out = pipeline(module, wrong)(PROMPTS, temperature=0.0, guidance_scale=3.0)
        assert not torch.equal(out.tokens, by_full_passes(3.0)), wrong


def test_pictures_have_the_colours_of_their_codes_and_texts_are_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenizer(text: str) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    pipe = pipeline(imported(monkeypatch, "image_model"), processor=tokenizer)
    out = pipe([" ".join(map(str, prompt)) for prompt in PROMPTS], temperature=0.0)
    assert torch.equal(out.tokens, by_full_passes(1.0)) and out.images[0].size == (SIDE, SIDE)
    shown = torch.tensor(list(out.images[1].get_flattened_data())).view(SIDE * SIDE, 3)
    assert torch.allclose(shown / 255, palette()[out.tokens[1]], atol=1 / 255)


def test_it_runs_as_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    greedy, sampled = said(monkeypatch, capsys, "use_image_model")
    assert greedy == "identical: True (8, 8)" and sampled.startswith("exact: True 64 codes in ")
    assert int(sampled.split()[-2]) < 60
