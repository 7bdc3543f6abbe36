"""Run by torchrun: a tiny model whose layers two processes share, against its own `generate`. Arguments: its folder."""

from __future__ import annotations

import sys

import torch
import transformers as hf
from torch import distributed

import mmspec
from mmspec.core.length.goodput import Goodput
from tests.vlm.drafts import Scripted, continuation
from tests.vlm.layer_kinds import ragged


def main(folder: str) -> None:
    model = hf.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto").eval()
    model.generation_config = hf.GenerationConfig(pad_token_id=0, bos_token_id=1)
    shared = [name for name, parameter in model.named_parameters() if type(parameter).__name__ == "DTensor"]
    assert shared, "no layer is shared"
    rank = distributed.get_rank()
    torch.manual_seed(rank)  # what one process draws by itself is not what the other does
    for lengths in ((12,), (12, 5, 9, 3)):
        inputs, settings = ragged(lengths, seed=4), dict(max_new_tokens=12, do_sample=False)
        truth = model.generate(**inputs, **settings)
        for way in (None, "chain", "dynamic"):
            drafter = None if way is None else Scripted(continuation(truth, lengths[0]), way, vocab=61)
            assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **settings), truth), way
        sampled = dict(max_new_tokens=12, do_sample=True, temperature=0.9)
        for drafter in (None, mmspec.drafters.PromptLookup(), Goodput(mmspec.drafters.PromptLookup())):
            mine = mmspec.generate(model, drafter=drafter, **inputs, **sampled)
            firsts = mine.clone()
            distributed.broadcast(firsts, 0)
            assert torch.equal(mine, firsts), "the processes drew apart"
    print(f"rank {rank} of {distributed.get_world_size()}: the same")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
