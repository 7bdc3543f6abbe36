"""Users' code around the modules of image models."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mmspec.imagegen import SJD, CSpD, ImagePipeline
from mmspec.imagegen.llamagen.adapter import LlamaGenModel
from tests.imagegen.adapters.models import prompts
from tests.imagegen.adapters.pipelines import pipeline as adapter_pipeline
from tests.imagegen.continuous.tiny import pipeline as continuous_pipeline
from tests.imagegen.llamagen.tiny import CLASS, tokenizer_model, transformer


def everywhere(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
    return output + output.new_tensor(range(output.shape[-1])).sin()


def last_position(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
    output = output.clone()
    output[:, -1] += output.new_tensor(range(output.shape[-1])).sin()
    return output


def noise(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
    return output + 1e-6 * torch.randn_like(output)


def llamagen() -> ImagePipeline:
    return ImagePipeline(LlamaGenModel(transformer(CLASS), tokenizer_model()))


def codes(pipe: ImagePipeline, decoding: object, prompt: object = (1, 3)) -> Tensor:
    return pipe(list(prompt), decoding=decoding, temperature=0.0, seed=0, pixels=False, guidance_scale=2.0).tokens


@pytest.mark.parametrize("decoding", (SJD(4), "auto"), ids=("SJD", "auto"))
def test_code_that_treats_positions_alike_keeps_drafting(decoding: object) -> None:
    pipe = llamagen()
    plain = codes(pipe, None)
    handle = pipe.model.transformer.layers[1].register_forward_hook(everywhere)
    steered = codes(pipe, None)
    assert not torch.equal(steered, plain) and torch.equal(codes(pipe, decoding), steered)
    handle.remove()
    assert torch.equal(codes(pipe, decoding), plain)


@pytest.mark.parametrize(
    ("hook", "sentence"), ((last_position, "equal single steps, got other scores"), (noise, "draws random numbers"))
)
@pytest.mark.parametrize("decoding", (SJD(4), "auto"), ids=("SJD", "auto"))
def test_code_that_drafts_would_change_is_refused(decoding: object, hook: Callable, sentence: str) -> None:
    pipe = llamagen()
    pipe.model.transformer.layers[1].register_forward_hook(hook)
    codes(pipe, None)
    with pytest.raises(ValueError, match=f"{sentence}.*remove the forward hook {hook.__name__} on layers.1"):
        codes(pipe, decoding)


def test_code_on_the_pixel_decoder_is_no_obstacle() -> None:
    pipe = llamagen()
    plain = codes(pipe, None)
    pipe.model.vq.register_forward_hook(last_position)
    assert torch.equal(codes(pipe, SJD(4)), plain)


def test_masked_tokens_with_drafts_are_refused_and_decode_plainly() -> None:
    pipe, settings = continuous_pipeline(), dict(seed=0, pixels=False)
    plain = pipe([1], **settings).tokens
    pipe.model.transformer.register_forward_hook(lambda module, args, output: None)
    assert torch.equal(pipe([1], **settings).tokens, plain)
    with pytest.raises(ValueError, match="decoding: .*the forward hook <lambda> on the model itself"):
        pipe([1], decoding=CSpD(drafter=continuous_pipeline()), **settings)


def test_adapters_refuse_code_that_images_pass_by() -> None:
    pipe = copy.deepcopy(adapter_pipeline("janus"))
    begin = torch.tensor([pipe.model.begin])
    rows = [torch.cat([row, begin]) for row in prompts((4,))]
    inputs = {"input_ids": torch.stack(rows)}
    settings = dict(temperature=0.0, seed=0, pixels=False)
    plain = pipe(inputs, **settings).tokens
    decoder = pipe.model.decoder
    handle = decoder.layers[0].register_forward_hook(everywhere)
    steered = pipe(inputs, **settings).tokens
    assert not torch.equal(steered, plain) and torch.equal(pipe(inputs, decoding=SJD(4), **settings).tokens, steered)
    handle.remove()
    handle = decoder.layers[0].register_forward_hook(last_position)
    with pytest.raises(ValueError, match="the forward hook last_position on model.language_model.layers.0"):
        pipe(inputs, decoding=SJD(4), **settings)
    handle.remove()
    pipe.model.model.register_forward_hook(everywhere)
    with pytest.raises(ValueError, match="the forward hook everywhere on the model itself, which images do not run"):
        pipe(inputs, **settings)
