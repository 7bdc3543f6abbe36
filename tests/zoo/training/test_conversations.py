"""Training rows of the captioner: branches, and how pictures are mixed in."""

from __future__ import annotations

import pytest
import torch

from mmspec.zoo.architectures.llava import TextSize, new_model, new_processor
from mmspec.zoo.training.vlm.build_vlm import Mixture, answer_logits
from mmspec.zoo.training.vlm.conversations import ConversationEncoder, many_row, picture_row, text_row

TINY = TextSize(layers=1, width=64, inner=96)


@pytest.fixture(scope="module")
def processor():
    return new_processor()


@pytest.mark.parametrize("make", [picture_row, text_row, many_row])
def test_every_branch_matches_a_plain_conversation(processor, make):
    torch.manual_seed(0)
    tokenizer = processor.tokenizer
    model = new_model(tokenizer, TINY).eval()
    row = make(11)
    rows = ConversationEncoder(tokenizer)([row])
    logits, targets = answer_logits(model, rows)
    lead = "<s>USER: " + ("<image>" * 144 + "\n") * len(row.scenes) if row.scenes else "<s>USER: "
    for turns in row.branches:
        text = lead + "USER: ".join(f"{prompt} ASSISTANT: {answer}</s>" for prompt, answer in turns)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        count = sum(len(tokenizer(f" {answer}</s>", add_special_tokens=False)["input_ids"]) for _, answer in turns)
        pixels = {} if rows.pixels is None else {"pixel_values": rows.pixels}
        with torch.no_grad():
            plain = model(input_ids=ids, **pixels).logits[0]
        spots = _answer_spots(tokenizer, ids[0])
        assert len(spots) == count and ids[0, spots].tolist() == targets[:count].tolist()
        assert torch.allclose(plain[[spot - 1 for spot in spots]], logits[:count], atol=1e-4)
        logits, targets = logits[count:], targets[count:]
    assert len(targets) == 0


def _answer_spots(tokenizer, ids):
    names, spots, inside = tokenizer.convert_ids_to_tokens(ids.tolist()), [], False
    for index, name in enumerate(names):
        if inside:
            spots.append(index)
        if name == ":" and names[index - 1] == "ĠASSISTANT":
            inside = True
        elif name == "</s>":
            inside = False
    return spots


def test_mixture_brings_many_pictures_late():
    mixture = Mixture(batch=4, many_batch=2, many_every=2)
    assert {len(row.scenes) for row in mixture.rows(0, 100)} <= {0, 1}
    assert {len(row.scenes) for row in mixture.rows(98, 100)} <= {2, 3}
    assert mixture.rows(5, 100) == mixture.rows(5, 100)
