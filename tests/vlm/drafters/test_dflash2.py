"""DFlash2: convolutions and path scores written out, and its published files."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.base.block_layers import attention_biases
from mmspec.vlm.drafters.dflash2 import AFTER, BEFORE, BlockConvolution, DFlash2
from tests.vlm.drafters.dflash.test_attention import BLOCK, WIDTH, ours, random_state, speculators, with_biases, zlab

RANK, TOP, GROUP = 3, 4, 4
OWN = dict(conv_kernel_size=2, conv_group_size=GROUP, selector_rank=RANK, selector_top_k=TOP)


def random_file() -> dict[str, Tensor]:
    state = random_state()
    for n in range(2):
        for side in ("attention", "mlp"):
            kernel = torch.randn(2, 2, WIDTH) * 0.3
            kernel[:, 0] += 1
            state[f"layers.{n}.{side}_conv.base_kernel"] = kernel
            state[f"layers.{n}.{side}_conv.kernel_projection.weight"] = 0.2 * torch.randn(4 * WIDTH // GROUP, WIDTH)
    codebooks = {f"candidate_selector.{name}_codebook": torch.randn(20, RANK) for name in ("predecessor", "successor")}
    return state | codebooks | {"candidate_selector.hidden_projection.weight": torch.randn(RANK, WIDTH)}


def load(**own: object) -> DFlash2:
    config = zlab(is_causal=False, dflash_config={**OWN, **own})
    return mmspec.vlm.drafter_from_state_dict("dflash2", random_file(), config)


@pytest.mark.parametrize("side", (BEFORE, AFTER))
def test_a_convolution_is_its_sum_written_out(side: int) -> None:
    torch.manual_seed(0)
    conv = BlockConvolution(8, 3, 4, 5)
    conv.base_kernel.data.normal_()
    conv.kernel_projection.weight.data.normal_()
    rows, read = torch.randn(2, 10, 8), torch.randn(2, 10, 8)  # two blocks after one another
    made = conv(rows, conv.kernels(read), side)
    delta = (read @ conv.kernel_projection.weight.T).view(2, 10, 2, 3, 2)
    for b in range(2):
        for i in range(10):
            for c in range(8):
                terms = [
                    (conv.base_kernel[side, t, c] + delta[b, i, side, t, c // 4]) * rows[b, i - t, c]
                    for t in range(3)
                    if i % 5 - t >= 0
                ]
                assert float(made[b, i, c]) == pytest.approx(float(sum(terms)), abs=1e-5)


def test_new_convolutions_change_nothing() -> None:
    rows = torch.randn(1, 5, 8)
    conv = BlockConvolution(8, 2, 4, 5)
    assert torch.equal(conv(rows, conv.kernels(rows), BEFORE), rows)


def test_convolutions_stand_around_attention_and_mlp() -> None:
    """With kernels that only scale, a layer is a plain one between two scales a side."""
    drafter = load()
    for layer in drafter.layers:
        for conv, before, after in ((layer.attention_conv, 2.0, 0.5), (layer.mlp_conv, 0.25, 3.0)):
            conv.kernel_projection.weight.data.zero_()
            conv.base_kernel.data.zero_()
            conv.base_kernel.data[BEFORE, 0], conv.base_kernel.data[AFTER, 0] = before, after
    taps, embeds = torch.randn(1, 7, 2 * WIDTH), torch.randn(1, BLOCK, WIDTH)
    made = ours(drafter, [taps], embeds)
    plain = mmspec.vlm.drafter_from_state_dict("dflash", random_state(), zlab(is_causal=False))
    for mine, theirs in zip(drafter.layers, plain.layers, strict=True):
        theirs.load_state_dict({name: value for name, value in mine.state_dict().items() if "conv" not in name})
    cache, rotary = SlotCache(2, 0), plain.layer.rotary(64, taps.device, taps.dtype)
    for index, layer in enumerate(plain.layers):
        cache.write(index, *layer.context(drafter.context(taps), rotary[None, :7]))
    cache.advance(7)
    rows = embeds
    norm = torch.nn.functional.rms_norm
    for index, (layer, bias) in enumerate(
        zip(plain.layers, attention_biases(plain.config, cache, BLOCK, rows.dtype), strict=True)
    ):
        read = 2.0 * norm(rows, (WIDTH,), layer.input_norm.weight, 1e-6)
        rows = rows + 0.5 * layer.attended(read, rotary[None, 7 : 7 + BLOCK], cache, index, bias)
        rows = rows + 3.0 * layer.mixed(0.25 * norm(rows, (WIDTH,), layer.norm.weight, 1e-6))
    torch.testing.assert_close(made, norm(rows, (WIDTH,), drafter.norm.weight, 1e-6), atol=2e-5, rtol=1e-4)


def test_biases_reach_the_convolved_layers() -> None:
    """With convolutions that change nothing the rows are those of DFlash from the same file."""
    said = dict(is_causal=False, attention_bias=True, mlp_bias=True)
    plain = with_biases(random_state())
    own = {name: value for name, value in random_file().items() if name not in plain}
    for name, value in own.items():
        if "_conv." in name:
            value.zero_()
            if name.endswith("base_kernel"):
                value[:, 0] = 1
    drafter = mmspec.vlm.drafter_from_state_dict("dflash2", plain | own, zlab(**said, dflash_config=OWN))
    taps, embeds = torch.randn(1, 7, 2 * WIDTH), torch.randn(1, BLOCK, WIDTH)
    expected = ours(mmspec.vlm.drafter_from_state_dict("dflash", plain, zlab(**said)), [taps], embeds)
    torch.testing.assert_close(ours(drafter, [taps], embeds), expected, atol=2e-5, rtol=1e-4)


def test_scores_are_unary_and_edge_of_the_best_tokens() -> None:
    drafter = load()
    row, token, unary = torch.randn(2, 1, WIDTH), torch.tensor([[3, 7, 9], [0, 1, 2]]), torch.randn(2, 1, 20)
    scores = drafter.logits(drafter.after(row, token, None), unary)
    selector = drafter.candidate_selector
    for b in range(2):
        best = unary[b, 0].topk(TOP).indices.tolist()
        for n, before in enumerate(token[b].tolist()):
            query = selector.predecessor_codebook[before] * (selector.hidden_projection.weight @ row[b, 0])
            for word in range(20):
                expected = unary[b, 0, word] + query @ selector.successor_codebook[word] if word in best else -torch.inf
                assert float(scores[b, n, word]) == pytest.approx(float(expected), abs=1e-5)


def test_config_options_scale_embeddings_and_cap_logits() -> None:
    drafter = load(input_embedding_scale=2.0, output_multiplier=0.5, final_logit_softcapping=3.0)
    head = torch.nn.Linear(WIDTH, 20, bias=False)
    rows = torch.randn(1, 3, WIDTH)
    expected = 3 * torch.tanh(0.5 * head(rows) / 3)
    torch.testing.assert_close(drafter.unary(rows, head), expected)
    taps, embeds = torch.randn(1, 7, 2 * WIDTH), torch.randn(1, BLOCK, WIDTH)
    torch.testing.assert_close(ours(drafter, [taps], embeds), ours(load(), [taps], 2 * embeds))


def test_speculators_rows_attend_to_the_whole_block_by_default() -> None:
    state = random_file()
    for said, causal in (({}, False), ({"sliding_window_non_causal": False}, True)):
        config = speculators(**OWN, **said)
        drafter = mmspec.vlm.drafter_from_state_dict("dflash2", state, config)
        assert drafter.config.causal == (causal, False)


@pytest.mark.parametrize(
    "own, message",
    (
        (dict(conv_group_size=5), "conv_group: expected a divisor of hidden_size 16, got 5"),
        (dict(selector_top_k=21), "selector_top: expected at most vocab_size 20, got 21"),
        (dict(selector_rank=None), "expected the field selector_rank, got none"),
        (dict(selector_rank=4), "predecessor_codebook.*expected shape"),
    ),
)
def test_an_invalid_config_reports_one_error(own: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load(**own)
    assert "\n" not in str(caught.value)
