"""DSpark: its sequential heads written out, and its published files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.vlm.drafters.dspark import DSpark
from tests.vlm.drafters.dflash.test_attention import WIDTH, random_state, speculators, zlab
from tests.vlm.drafters.trained import blocks, make
from tests.vlm.tiny import prompt, tiny

RANK, VOCAB = 3, 20
KINDS = ("vanilla", "gated", "rnn")


def random_file(kind: str, drafted: int = VOCAB, old: bool = False, confidence: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(1)
    own = {
        "markov_head.markov_w1.weight": torch.randn(VOCAB, RANK),
        "markov_head.markov_w2.weight": torch.randn(drafted, RANK),
    }
    if kind == "gated":
        own["markov_head.gate_proj.weight"] = torch.randn(RANK, WIDTH + RANK)
        own["markov_head.gate_proj.bias"] = torch.randn(RANK)
    if kind == "rnn":
        own["markov_head.joint_proj.weight"] = torch.randn(3 * RANK, WIDTH + 2 * RANK)
        own["markov_head.joint_proj.bias"] = torch.randn(3 * RANK)
    if confidence:
        own["confidence_head.proj.weight"] = torch.randn(1, WIDTH + RANK)
        own["confidence_head.proj.bias"] = torch.randn(1)
    return random_state() | {("logit_head." if old else "") + name: value for name, value in own.items()}


def load(kind: str, old: bool = False, **top: object) -> DSpark:
    config = speculators(markov_rank=RANK, markov_head_type=kind, enable_confidence_head=True, **top)
    return mmspec.vlm.drafter_from_state_dict("dspark", random_file(kind, old=old), config)


def corrections(state: dict[str, Tensor], kind: str, rows: Tensor, before: list[int]) -> list[Tensor]:
    """What a walk adds to the scores of rows [D, WIDTH] behind these tokens, step by step."""
    part = {name.removeprefix("markov_head."): value for name, value in state.items() if "markov" in name}
    memory, made = torch.zeros(RANK), []
    for row, token in zip(rows, before, strict=True):
        code = part["markov_w1.weight"][token]
        if kind == "gated":
            gate = torch.sigmoid(part["gate_proj.weight"] @ torch.cat([row, code]) + part["gate_proj.bias"])
            code = gate * code
        if kind == "rnn":
            joint = part["joint_proj.weight"] @ torch.cat([memory, code, row]) + part["joint_proj.bias"]
            gate, candidate, out = joint.chunk(3)
            memory = gate.sigmoid() * memory + (1 - gate.sigmoid()) * candidate.tanh()
            code = out.tanh()
        made.append(part["markov_w2.weight"] @ code)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_scores_along_a_walk_are_written_out(kind: str) -> None:
    drafter, rows, before = load(kind), torch.randn(4, WIDTH), [3, 11, 0, 7]
    expected, out = corrections(random_file(kind), kind, rows, before), None
    for depth, (row, token) in enumerate(zip(rows, before, strict=True)):
        out = drafter.after(row[None, None], torch.tensor([[token]]), out)
        unary = torch.randn(1, 1, VOCAB)
        torch.testing.assert_close(drafter.logits(out, unary)[0, 0], unary[0, 0] + expected[depth])


def test_a_recurrent_correction_of_the_library_reads_the_root_first_where_it_does_not_draft() -> None:
    """Its training runs through all rows of a block; behind the root's row stands the root, as before the first level."""
    drafter, rows, text = load("rnn", sample_from_anchor=False), torch.randn(5, WIDTH), [3, 11, 0, 7]
    expected = corrections(random_file("rnn"), "rnn", rows, [text[0], *text])[1:]
    levels = drafter.drafting(rows[None])
    out = drafter.walk(levels, torch.tensor([text]))
    unary = torch.randn(1, 4, VOCAB)
    torch.testing.assert_close(drafter.logits(out, unary)[0], unary[0] + torch.stack(expected))
    assert drafter.config.root_first and not load("rnn").config.root_first
    without = corrections(random_file("rnn"), "rnn", rows[1:], text)
    assert (torch.stack(without) - torch.stack(expected)).abs().max() > 0.01
    with pytest.raises(ValueError, match="root_first: expected a recurrent correction"):
        replace(load("gated").config, root_first=True)


def test_without_a_correction_the_rows_alone_are_scored() -> None:
    state = {name: value for name, value in random_file("vanilla").items() if "markov" not in name}
    state["confidence_head.proj.weight"] = torch.randn(1, WIDTH)
    config = speculators(markov_rank=0, enable_confidence_head=True, confidence_head_with_markov=False)
    drafter = mmspec.vlm.drafter_from_state_dict("dspark", state, config)
    rows, head = torch.randn(4, WIDTH), torch.nn.Linear(WIDTH, VOCAB, bias=False)
    assert drafter.independent and drafter.markov_head is None
    out = drafter.after(rows[None, :1], torch.tensor([[3]]), None)
    torch.testing.assert_close(drafter.logits(out, head(rows[None, :1]))[0], head(rows[:1]))
    torch.testing.assert_close(drafter.walk(rows[None], torch.zeros(1, 4, dtype=torch.long)), rows[None])
    expected = rows[0] @ state["confidence_head.proj.weight"][0] + state["confidence_head.proj.bias"]
    torch.testing.assert_close(drafter.acceptance(rows[:1]), expected)
    with pytest.raises(ValueError, match="confidence_with_markov: expected False for markov_rank 0"):
        mmspec.vlm.drafter_from_state_dict("dspark", state, config | {"confidence_head_with_markov": True})
    with pytest.raises(ValueError, match="unknown .*markov_head.markov_w1.weight"):
        mmspec.vlm.drafter_from_state_dict("dspark", random_file("vanilla"), config)


def test_a_drafter_without_a_correction_drafts_and_answers_stay_the_targets() -> None:
    sizes = dict(markov_rank=0, confidence_with_markov=False, from_root=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drafter = blocks("dspark", **sizes).eval().requires_grad_(False)
    inputs = dict(prompt("llama", batch=4), max_new_tokens=16, do_sample=False)
    out = mmspec.generate(tiny("llama"), drafter=drafter, return_dict=True, **inputs)
    assert torch.equal(out.sequences, tiny("llama").generate(**inputs)) and out.stats.accept_length > 1
    assert drafter.shape_for(greedy=False).drawn == "deterministic"


def test_older_names_and_both_layouts_load_the_same() -> None:
    one, two = load("gated"), load("gated", old=True)
    config = zlab(markov_rank=RANK, dflash_config={"projector_type": "dspark", "markov_head_type": "gated"})
    three = mmspec.vlm.drafter_from_state_dict("dspark", random_file("gated"), config)
    for other in (two, three):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one.config.from_root and three.config.from_root and one.config.drafted == 5
    assert not load("gated", sample_from_anchor=False).config.from_root


def test_a_reduced_vocabulary_is_corrected_where_it_drafts() -> None:
    ids = torch.arange(12) + 3
    state = random_file("vanilla", drafted=12) | {
        "lm_head.weight": torch.randn(12, WIDTH),
        "d2t": ids - torch.arange(12),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True),
    }
    config = speculators(markov_rank=RANK, draft_vocab_size=12)
    drafter = mmspec.vlm.drafter_from_state_dict("dspark", state, config)
    row = torch.randn(1, 1, WIDTH)
    scores = drafter.logits(drafter.after(row, torch.tensor([[5]]), None), drafter.unary(row, None))
    scores = drafter.head.spread(scores)[0, 0]
    assert scores.isfinite().nonzero()[:, 0].tolist() == ids.tolist()
    expected = state["lm_head.weight"] @ row[0, 0] + corrections(state, "vanilla", row[0], [5])[0]
    torch.testing.assert_close(scores[ids], expected)


def test_predicted_acceptance_is_read_from_the_row_and_the_token_before() -> None:
    drafter, state = load("rnn"), random_file("rnn")
    row, token = torch.randn(1, 1, WIDTH), torch.tensor([[4]])
    seen = drafter.seen(drafter.after(row, token, None))
    read = torch.cat([row[0, 0], state["markov_head.markov_w1.weight"][4]])
    torch.testing.assert_close(seen[0, 0], read)
    growth = drafter.stop(0.5).begin()
    stands = torch.sigmoid(state["confidence_head.proj.weight"] @ read + state["confidence_head.proj.bias"])
    assert bool(growth.grow(1, torch.ones(1), seen[:, 0])) == bool(stands >= 0.5)
    torch.testing.assert_close(growth.stands, stands)


def test_a_chain_ends_where_a_rejection_is_predicted() -> None:
    lengths = []
    for threshold in (0.0, 0.2, 0.6, 1.0):
        drafter = make("dspark")
        run = mmspec.vlm.start(
            tiny("llama"),
            drafter=drafter.with_shape(Chain(drafter.stop(threshold))),
            max_new_tokens=30,
            do_sample=False,
            **prompt("llama"),
        )
        run.step()
        with torch.no_grad():
            lengths.append(run.state.propose(run.target, run.keys).tree.max_depth)
    assert lengths == sorted(lengths, reverse=True) and (lengths[0], lengths[-1]) == (5, 1)


def test_a_drafter_that_predicts_no_acceptance_has_no_stop() -> None:
    config = speculators(markov_rank=RANK, enable_confidence_head=False)
    drafter = mmspec.vlm.drafter_from_state_dict("dspark", random_file("vanilla", confidence=False), config)
    with pytest.raises(ValueError, match="expected a drafter that predicts acceptance"):
        drafter.stop()
