"""A process of an environment that has the `speculators` library and lacks this package.

It makes random drafters with the library's classes, loads folders of drafters with them, and writes the logits of its passes.

Usage: python speculators_worker.py JOB.json

The job holds: `verifier`, a folder; `inputs`, a safetensors file with ids and hidden states; `make`, drafters to make, each
with name, kind, folder, fields of the drafter and of its layer; `read`, folders to load, each with name, kind and folder, and
with another folder under `again` where the weights are to be drawn anew and saved; `out`, the safetensors file to write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import speculators.models  # noqa: F401  registers the kinds
import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel
from transformers import LlamaConfig, Qwen3Config

STEPS, DEPTHS, FLOOR = 3, 5, -1e9  # FLOOR: the score of what is never drafted
BLOCKS = ("dflash", "dflash2", "dspark", "xpress")
LAYERS = {"llama": LlamaConfig, "qwen3": Qwen3Config}


def randomise(model: torch.nn.Module, seed: int, frozen: tuple[str, ...]) -> None:
    """Weights so large that every part shows in the logits; those that are frozen stay the verifier's."""
    rng = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.startswith(frozen):
            continue
        drawn = torch.randn(weight.shape, generator=rng)
        if name.endswith("norm.weight") or "fc_norm" in name:
            weight.data.copy_(1 + 0.3 * drawn)
        elif weight.dim() == 1:
            weight.data.copy_(0.3 * drawn)
        else:
            weight.data.copy_(drawn if "embed" in name or "mask" in name else 1.5 * drawn / weight.shape[-1] ** 0.5)


def make(one: dict, verifier: str, inputs: dict) -> torch.nn.Module:
    """A random drafter of the library, saved into its folder."""
    layer = dict(one["layer"])
    config = LAYERS[layer.pop("model_type")](**layer)
    kept = inputs["kept"]  # ids of a reduced vocabulary
    mapped = {
        "t2d": torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, kept, True),
        "d2t": kept - torch.arange(len(kept)),
        "draft_vocab_size": len(kept),
    }
    if one["kind"] == "dflash2":  # which drafts all tokens
        mapped = {"draft_vocab_size": config.vocab_size}
    model = SpeculatorModel.registry[one["kind"]].from_training_args(
        verifier_config=config,
        **mapped,
        verifier_name_or_path=verifier,
        draft_attn_impl="eager",
        ttt_steps=STEPS,
        num_depths=DEPTHS,
        **one["fields"],
    )
    own_rows = one["fields"].get("embed_requires_grad") or one["kind"] == "peagle"
    frozen = ("verifier",) if own_rows else ("verifier", "embed_tokens")
    randomise(model, one["seed"], (*frozen, "lm_head") if one["kind"] in BLOCKS else frozen)
    model.save_pretrained(one["folder"])
    return model.eval()


def read(one: dict) -> torch.nn.Module:
    """A drafter of a folder, as the library loads it."""
    config = SpeculatorModel.config_class.from_pretrained(one["folder"])
    config.transformer_layer_config._attn_implementation = "eager"  # flexible attention rounds elsewhere
    return SpeculatorModel.from_pretrained(one["folder"], config=config).eval()


def logits_of(model: torch.nn.Module, call: Callable[[], object]) -> list[torch.Tensor]:
    """What the head puts out in a call, pass by pass."""
    seen: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, given, out: seen.append(out.detach()[0].clone()))
    call()
    hook.remove()
    return seen


def run_eagle3(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    """[STEPS, n, k]: row j of step s is what a draft from pair j predicts s tokens later."""
    ids, states = inputs["ids"][None], inputs["states"][None]
    call = dict(hidden_states=states, input_ids=ids, document_ids=torch.zeros_like(ids), ttt_steps=STEPS)
    return torch.stack(logits_of(model, lambda: model(**call)))


def run_peagle(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    """[DEPTHS, n, k]: row j of depth d is what the d-th mask behind pair j predicts; the last rows have none."""
    ids, states, last = inputs["ids"][None], inputs["states"][None], inputs["last"][None]
    count = ids.shape[1]
    anchor = torch.cat([torch.arange(count - depth) for depth in range(DEPTHS)])
    depth = torch.cat([torch.full((count - depth,), depth) for depth in range(DEPTHS)])
    core = "speculators.models.peagle.core."
    call = dict(
        hidden_states=states, input_ids=ids, document_ids=torch.zeros_like(ids), verifier_last_hidden_states=last
    )
    drawn, loss = patch(f"{core}generate_cod_sample_indices", lambda **_: (anchor, depth)), (torch.zeros(()), {})
    with drawn, patch(f"{core}compute_metrics", lambda **_: loss):  # whose kernels need a GPU
        logits = logits_of(model, lambda: model(**call))[0]
    out = logits.new_zeros(DEPTHS, count, logits.shape[-1])
    out[depth, anchor] = logits
    return out


def run_block(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    """[anchors, levels, k], the scores along the text of the blocks behind the anchors, those of later heads included."""
    ids, anchors, size = inputs["whole"][None], inputs["anchors"], model.block_size
    drawn = patch("speculators.models.dflash.core.select_anchors", lambda *_: (anchors, torch.ones_like(anchors) > 0))
    with drawn:
        rows, scores, _, _, place = model._backbone_forward(
            inputs["states"][None],
            ids,
            torch.ones_like(ids),
            inputs["last"][None],
            torch.zeros_like(ids),
            max_anchors=len(anchors),
        )
    rows, scores = rows.view(len(anchors), size, -1), scores.view(len(anchors), size, -1)
    text, kind = ids[0, place].view(len(anchors), size), model.config.speculators_model_type
    from_root = model.config.sample_from_anchor
    before = text if from_root else torch.cat([text[:, :1], text[:, :-1]], 1)
    if kind == "dspark" and model.markov_head is not None:
        scores = scores + model.markov_head.block_bias(prev_token_ids=before, hidden_states=rows)
    if kind == "xpress":
        head, earlier = model.refiner_head, ids[0, anchors - 1][:, None]
        head.causal_tril.copy_(torch.ones_like(head.causal_tril).tril())  # not filled by the library's loader
        scores = scores + head.block_bias(before if from_root else torch.cat([earlier, text[:, :-1]], 1), rows)
    if kind == "dflash2":
        flat, best = scores.flatten(0, 1)[None], scores.topk(model.candidate_selector.top_k, -1).indices
        ends = rows.flatten(0, 1)[None], before.flatten()[None], best.flatten(0, 1)[None]
        edges = model.candidate_selector.score_candidates(flat, *ends).view_as(best)
        scores = torch.full_like(scores, FLOOR).scatter(-1, best, edges)
    return scores if from_root else scores[:, 1:]


def run_mtp(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    """[n, k], what the layer predicts of every pair."""
    return model(input_ids=inputs["whole"][None], hidden_states=inputs["mtp"][None])[0][0][0]


RUN = {"eagle3": run_eagle3, "peagle": run_peagle, "mtp": run_mtp} | dict.fromkeys(BLOCKS, run_block)


@torch.no_grad()
def main(job: dict) -> None:
    inputs, out = load_file(job["inputs"]), {}
    for one in job["make"]:
        out[one["name"]] = RUN[one["kind"]](make(one, job["verifier"], inputs), inputs)
    for one in job["read"]:
        model = read(one)
        if "again" in one:  # other weights, as the library saves them
            randomise(model, one["seed"], ("verifier", "embed_tokens", "lm_head"))
            model.save_pretrained(one["again"])
        out[one["name"]] = RUN[one["kind"]](model, inputs)
    save_file({name: value.contiguous() for name, value in out.items()}, job["out"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
