"""XPress: its refiner written out, its published files, and what it drafts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting.growth import chain_draft
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters.xpress import XPress
from tests.vlm.drafters.dflash.test_attention import BLOCK, WIDTH, random_state, speculators, with_biases, zlab
from tests.vlm.drafters.trained import blocks, make
from tests.vlm.drafters.watched import Planted
from tests.vlm.tiny import VOCAB, prompt, tiny

RANK, WORDS, K = 3, 20, 12
RELEASED = {
    "token_embed": "w1",
    "readout": "w2",
    "mix_l": "mix.L",
    "mlp_gate": "mlp.gate_proj",
    "mlp_up": "mlp.up_proj",
    "mlp_down": "mlp.down_proj",
}
SIZES = dict(xpress_rank=RANK, xpress_mlp_ratio=2, num_jacobi_passes=3)


def random_file(drafted: int = WORDS, prefix: str = "refiner_head.") -> dict[str, Tensor]:
    torch.manual_seed(1)
    shapes = {
        "token_embed.weight": (WORDS, RANK),
        "down_h.weight": (RANK, WIDTH),
        "down_g.weight": (RANK, WIDTH),
        "in_proj.weight": (RANK, 3 * RANK),
        "mix_l": (RANK, BLOCK, BLOCK),
        "mlp_gate.weight": (2 * RANK, RANK),
        "mlp_up.weight": (2 * RANK, RANK),
        "mlp_down.weight": (RANK, 2 * RANK),
        "readout.weight": (drafted, RANK),
    }
    return random_state() | {prefix + name: 0.5 * torch.randn(shape) for name, shape in shapes.items()}


def load(drafted: int = WORDS, **top: object) -> XPress:
    state = random_file(drafted)
    if drafted < WORDS:
        ids = torch.arange(drafted) + 3
        state |= {
            "lm_head.weight": torch.randn(drafted, WIDTH),
            "d2t": ids - torch.arange(drafted),
            "t2d": torch.zeros(WORDS, dtype=torch.bool).index_fill_(0, ids, True),
        }
    return mmspec.vlm.drafter_from_state_dict("xpress", state, speculators(**SIZES, draft_vocab_size=drafted, **top))


def bias_written_out(w: dict[str, Tensor], rows: Tensor, before: list[int]) -> Tensor:
    """What the refiner adds to the scores of a whole block's rows [B, H] behind these B tokens."""
    part = {name.removeprefix("refiner_head."): value for name, value in w.items() if "refiner" in name}
    mean, a = rows.mean(0), []
    for row, token in zip(rows, before, strict=True):
        read = [part["down_h.weight"] @ row, part["down_g.weight"] @ mean, part["token_embed.weight"][token]]
        a.append(part["in_proj.weight"] @ torch.cat(read))
    made = []
    for k in range(len(rows)):
        x = a[k] + sum(part["mix_l"][:, k, j] * a[j] for j in range(k + 1))
        x = x + part["mlp_down.weight"] @ (F.silu(part["mlp_gate.weight"] @ x) * (part["mlp_up.weight"] @ x))
        made.append(part["readout.weight"] @ x)
    return torch.stack(made)


@torch.no_grad()
@pytest.mark.parametrize("from_root", (False, True))
@pytest.mark.parametrize("drafted", (WORDS, K))
def test_logits_are_written_out_level_by_level_and_side_by_side(from_root: bool, drafted: int) -> None:
    drafter, state = load(drafted, sample_from_anchor=from_root), random_file(drafted)
    rows, head = torch.randn(BLOCK, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
    text = torch.randint(WORDS, (BLOCK + 1,)).tolist()  # the token before the root, the root, the drafted tokens
    weight = head.weight if drafted == WORDS else drafter.head.weight
    if from_root:
        expected = rows @ weight.T + bias_written_out(state, rows, text[1:])
    else:
        expected = (rows @ weight.T + bias_written_out(state, rows, text[:-1]))[1:]
    before = text[1:] if from_root else text[1:-1]
    levels = drafter.drafting(rows[None], torch.tensor(text[:1]))
    found = drafter.scores(drafter.walk(levels, torch.tensor([before]))[0], head)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    out = None
    for depth, token in enumerate(before):
        out = drafter.after(levels[:, depth : depth + 1], torch.tensor([[token]]), out)
        torch.testing.assert_close(drafter.scores(out[0], head)[0], expected[depth], atol=1e-4, rtol=1e-4)
    assert (expected - (rows @ weight.T)[-len(expected) :]).abs().max() > 0.1


def test_released_files_are_those_of_the_library_under_other_names() -> None:
    state = random_file(prefix="xpress_head.")
    for ours, theirs in RELEASED.items():
        for ending in ("", ".weight"):
            if (value := state.pop(f"xpress_head.{ours}{ending}", None)) is not None:
                state[f"xpress_head.{theirs}{ending}"] = value
    own = dict(xpress_rank=RANK, xpress_mlp_hidden=2 * RANK, xpress_num_passes=3)
    released = mmspec.vlm.drafter_from_state_dict("xpress", state, zlab(is_causal=False, **own))
    library = load()
    assert (released.config.refiner_rank, released.config.refiner_ratio, released.config.passes) == (RANK, 2, 3)
    for name, value in library.state_dict().items():
        assert torch.equal(value, released.state_dict()[name]), name


@pytest.mark.parametrize(
    "changed, message",
    (
        (dict(xpress_backbone="dflash2"), "xpress_backbone, xpress_selector: expected dflash"),
        (dict(xpress_selector=True), "xpress_selector: expected dflash and no selector"),
        (dict(num_jacobi_passes=0), "passes: expected at least 1"),
        (dict(xpress_rank=4), "expected shape"),
    ),
)
def test_an_unsupported_file_reports_one_error(changed: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        mmspec.vlm.drafter_from_state_dict("xpress", random_file(), speculators(**SIZES | changed))
    assert "\n" not in str(caught.value)


def test_biases_of_the_block_are_read() -> None:
    config = speculators(**SIZES)
    config["transformer_layer_config"] |= {"attention_bias": True, "mlp_bias": True}
    state = with_biases(random_file())
    drafter = mmspec.vlm.drafter_from_state_dict("xpress", state, config)
    assert torch.equal(drafter.layers[1].out.bias, state["layers.1.self_attn.o_proj.bias"])


def run_of(drafter: XPress, **options: object) -> object:
    run = mmspec.vlm.start(
        tiny("llama"), drafter=drafter, max_new_tokens=20, seed=3, **prompt("llama", batch=3), **options
    )
    for _ in range(3):
        run.step()
    return run


@torch.no_grad()
@pytest.mark.parametrize("sampled", (False, True))
def test_a_refined_chain_is_the_walk_after_enough_passes(sampled: bool) -> None:
    """The same numbers, level by level, give the same tokens and the same law on record."""
    options = dict(do_sample=True, temperature=1.0, top_k=0) if sampled else dict(do_sample=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drafter = blocks("xpress", refiner_rank=8, passes=4).eval().requires_grad_(False)
        drafter.refiner_head.readout.weight.mul_(30)  # against a block whose rows all have the same best token
    run = run_of(drafter.with_shape(Chain(FixedLength(4))), **options)
    refined = run.state.propose(run.target, run.keys)
    walked = chain_draft(run.state, run.target, run.state.shape, run.keys, 4)
    assert torch.equal(refined.value, walked.value) and refined.law.drawn == walked.law.drawn
    if sampled:
        torch.testing.assert_close(refined.law.scores, walked.law.scores, atol=1e-4, rtol=1e-4)
    else:
        assert not torch.equal(run.state.unary.argmax(-1), refined.value[:, 1:])  # the refiner matters


@pytest.mark.parametrize("shape", (None, DynamicTree(nodes=8, depth=4, width=3), StaticTree((0, 0, 0, 1, 1, 2))))
def test_greedy_answers_are_the_targets(shape: object) -> None:
    """Whatever is accepted: what it drafts itself, and the answer planted in its drafts."""
    drafter, model = make("xpress") if shape is None else make("xpress").with_shape(shape), tiny("llama")
    inputs = dict(prompt("llama", batch=4), do_sample=False)
    truth, start = model.generate(**inputs, max_new_tokens=30), inputs["input_ids"].shape[1]
    for one in (drafter, Planted(drafter, truth=truth[:, start:].tolist(), words=VOCAB)):
        out = mmspec.generate(model, drafter=one, return_dict=True, max_new_tokens=24, **inputs)
        assert torch.equal(out.sequences, truth[:, : start + 24])
    assert out.stats.accept_length > 1.5
