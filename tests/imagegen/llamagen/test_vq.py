"""The image tokenizer."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.llamagen.vq import VQConfig, VQModel
from tests.parity import case

TINY = VQConfig(
    codebook_size=16, encoder_ch_mult=(1, 1, 1), decoder_ch_mult=(1, 1, 1), z_channels=32, ch=32, num_res_blocks=1
)
PARITY = VQConfig(codebook_size=64, z_channels=32, ch=32)


@pytest.fixture(scope="module")
def tiny() -> VQModel:
    torch.manual_seed(0)
    return VQModel(TINY).eval()


@torch.no_grad()
def test_codes_and_images_equal_the_public_code() -> None:
    data = case("llamagen/vq16_tiny")
    model = VQModel(PARITY).eval()
    model.load_state_dict({k.removeprefix("weights."): v.float() for k, v in data.items() if k.startswith("weights.")})
    image = data["in.image"]
    close = dict(atol=1e-4, rtol=0)
    torch.testing.assert_close(model.encoder(image), data["out.encoder"], **close)
    torch.testing.assert_close(model.encode_features(image), data["out.quant_conv"], **close)
    quantized, indices = model.encode(image)
    assert torch.equal(indices, data["out.indices"])
    torch.testing.assert_close(quantized, data["out.quantized"], atol=1e-6, rtol=0)
    torch.testing.assert_close(model.decode(quantized), data["out.reconstruction"], **close)
    codes = data["in.codes"]
    torch.testing.assert_close(model.quantize.rows(codes, 4, 4), data["out.codebook_entry_channel_first"])
    torch.testing.assert_close(model.codebook()[codes.view(2, 4, 4)], data["out.codebook_entry_channel_last"])
    for given in (model.decode_code(codes), model.decode_code(codes.view(2, 4, 4))):
        torch.testing.assert_close(given, data["out.decoded_from_codes"], **close)


@torch.no_grad()
def test_a_grid_need_not_be_square(tiny: VQModel) -> None:
    images = torch.rand(2, 3, 8, 16) * 2 - 1
    quantized, indices = tiny.encode(images)
    assert quantized.shape == (2, 8, 2, 4) and indices.shape == (2, 8)
    decoded = tiny.decode_code(indices, 2, 4)
    assert decoded.shape == images.shape
    torch.testing.assert_close(decoded, tiny.decode(quantized))


def test_the_gradient_passes_straight_through(tiny: VQModel) -> None:
    z = torch.randn(2, 8, 2, 2, requires_grad=True)
    out, indices, losses = tiny.quantize(z)
    torch.testing.assert_close(out, tiny.quantize.rows(indices, 2, 2))
    (unit,) = torch.autograd.grad((out * 3).sum(), z)
    (direct,) = torch.autograd.grad((torch.nn.functional.normalize(z, dim=1) * 3).sum(), z)
    torch.testing.assert_close(unit, direct)
    (row,) = torch.autograd.grad(tiny.quantize(z)[2].codebook, tiny.quantize.embedding.weight)
    assert row.abs().sum() > 0
    torch.testing.assert_close(losses.commitment, TINY.commit_loss_beta * losses.codebook)


def test_a_raw_codebook_is_compared_by_distance() -> None:
    model = VQModel(VQConfig(codebook_size=16, z_channels=32, ch=32, codebook_l2_norm=False))
    torch.nn.init.normal_(model.quantize.embedding.weight)
    z = torch.randn(1, 8, 3, 3)
    points = z.flatten(2).transpose(1, 2)[0]
    assert torch.equal(model.quantize(z)[1][0], torch.cdist(points, model.codebook()).argmin(-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VQConfig(ch=48), "multiple of 32"),
        (lambda: VQConfig(decoder_ch_mult=(1, 2)), "as many levels"),
        (lambda: VQConfig(codebook_size=0), "codebook_size: expected"),
        (lambda: VQConfig.of({"codebook_sizes": 3}), "codebook_sizes"),
        (lambda: VQConfig.of({"codebook_l2_norm": "no"}), "codebook_l2_norm: expected bool, got 'no'"),
        (lambda: VQConfig.of({"encoder_ch_mult": [1, "2"]}), r"encoder_ch_mult: expected .*, got \[1, '2'\]"),
        (lambda: VQConfig.preset("VQ-4"), "VQ-16"),
    ],
)
def test_wrong_configs_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_sizes_are_refused(tiny: VQModel) -> None:
    with pytest.raises(ValueError, match="divisible by 4"):
        tiny.encode(torch.zeros(1, 3, 10, 8))
    with pytest.raises(ValueError, match="give height"):
        tiny.decode_code(torch.zeros(1, 8, dtype=torch.long))
