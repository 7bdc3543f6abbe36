"""Which models are taken: classes of transformers by what they are, decoders and heads by what they do."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from mmspec.imagegen import SJD, pipeline_for
from mmspec.imagegen.adapters.decoder_model import ImageVocabulary
from mmspec.imagegen.adapters.registry import AdapterPipeline
from tests.imagegen.adapters.models import CODES, DECODER, SIDE, batch, prompts, tiny

PROMPTS = (3, 7)
REACH = max(PROMPTS) + 2 + SIDE * SIDE  # positions of the longest row


def janus(text: hf.PreTrainedConfig) -> nn.Module:
    """The tiny Janus over another text model, with as many of its weights as fit."""
    config, own = deepcopy(tiny("janus").config), tiny("janus")
    config.text_config = text
    model = hf.JanusForConditionalGeneration(config).eval()
    model.load_state_dict(own.state_dict(), strict=False)
    model.generation_config = own.generation_config
    return model


def switching(kind: str, at: int) -> nn.Module:
    """A Janus whose rotary frequencies change when a sequence grows beyond `at` positions."""
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4}
    if kind == "dynamic":
        return janus(hf.LlamaConfig(**DECODER | {"max_position_embeddings": at, "rope_parameters": rope}))
    rope |= {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4, "original_max_position_embeddings": at}
    return janus(hf.LlamaConfig(**DECODER, rope_parameters=rope))


def values(pipe: AdapterPipeline, decoding: SJD | None) -> Tensor:
    run = pipe.start(batch(prompts(PROMPTS)), decoding=decoding, temperature=0.0, guidance_scale=3.0)
    run.run()
    return run.target.values


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_requests_that_cross_a_change_of_frequencies_are_refused(kind: str) -> None:
    pipe = pipeline_for(switching(kind, REACH))
    assert torch.equal(values(pipe, SJD(12)), values(pipe, None))
    pipe = pipeline_for(switching(kind, REACH - 1))
    for decoding in (None, SJD(12)):
        with pytest.raises(ValueError, match=f"within {REACH - 1} tokens, where the rotary frequencies.*got {REACH}"):
            values(pipe, decoding)


def test_a_window_narrower_than_prompt_and_picture_is_refused() -> None:
    model = deepcopy(tiny("janus"))
    for window, fits in ((REACH - 1, False), (REACH, True)):
        model.model.language_model.config.sliding_window = window
        pipe = pipeline_for(model)
        if fits:
            assert torch.equal(values(pipe, SJD(4)), values(pipeline_for(tiny("janus")), None))
        else:
            with pytest.raises(ValueError, match=f"fit the sliding_window of {window} tokens of Janus, got {REACH}"):
                values(pipe, None)


def test_a_class_of_the_same_name_from_elsewhere_is_refused() -> None:
    other = type("JanusForConditionalGeneration", (nn.Module,), {"__module__": "transformers_modules.janus"})
    with pytest.raises(ValueError, match="of transformers, got JanusForConditionalGeneration of transformers_mod"):
        pipeline_for(other())


def test_a_derived_class_is_supported() -> None:
    model = deepcopy(tiny("janus"))
    model.__class__ = type("Mine", (hf.JanusForConditionalGeneration,), {})
    assert torch.equal(values(pipeline_for(model), SJD(4)), values(pipeline_for(tiny("janus")), None))


@pytest.mark.parametrize(
    "text", [hf.MistralConfig(**DECODER, sliding_window=4), hf.Qwen2Config(**DECODER)], ids=["m", "q"]
)
def test_janus_over_another_text_model_is_refused(text: hf.PreTrainedConfig) -> None:
    with pytest.raises(ValueError, match="text_config: expected a Llama, as in every Janus, got"):
        pipeline_for(janus(text))


class Adapted(nn.Linear):
    """A head that does more than its weight says, as one with an adapter does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum(-1, keepdim=True) * torch.arange(self.out_features)


@pytest.mark.parametrize("head", [nn.Linear(8, 64, bias=False), nn.Linear(8, 64), Adapted(8, 64, bias=False)], ids=str)
@pytest.mark.parametrize(
    "codes", [range(10, 10 + CODES), [10 + 5 * code % CODES for code in range(CODES)]], ids=["r", "m"]
)
@torch.no_grad()
def test_logits_of_codes_are_those_of_the_whole_head(head: nn.Linear, codes: list[int]) -> None:
    vocabulary, hidden = ImageVocabulary(codes, (4, 5), torch.device("cpu")), torch.randn(2, 3, 8)
    found = vocabulary.logits(head, hidden)
    torch.testing.assert_close(found[..., :CODES], head(hidden)[..., vocabulary.ids[:CODES]])
    assert found.shape[-1] == CODES + 2
