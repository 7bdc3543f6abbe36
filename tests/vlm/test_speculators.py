"""Drafters travel to and from the `speculators` library, both ways with the same logits.

The library runs in an environment of its own, since it takes an older transformers: the packages here, and those that it needs
besides from the package index. Without the index these tests are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import mmspec
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.block_layers import UNLIMITED
from mmspec.vlm.drafters.base.block_unroll import AnchoredBlocks, unroll_anchored_blocks
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.drafter_names import drafter_class, new_drafter
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from mmspec.vlm.export import Verifier, export_drafter
from mmspec.vlm.hidden_states import record_states
from tests.vlm.drafters.eagle3.reference import LLAMA3, OPTIONS, WINDOW, YARN, published
from tests.vlm.tiny import HIDDEN, VOCAB, liven

pytestmark = pytest.mark.whole
VERSION, WORKER = "0.9.0", Path(__file__).with_name("speculators_worker.py")
LEVELS, PROMPT, TOKENS, DRAFTED, MASK, BLOCK = (1, 2, 3), 8, 16, 60, 90, 5
CLOSE = 1e-4  # of the logits' scale, or of 1


@dataclass(frozen=True)
class Drafter:
    """A drafter that travels. made: by the library (then `fields` and `layer` are those of its training), or here."""

    kind: str
    option: str
    made: bool
    fields: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.option}-{'theirs' if self.made else 'ours'}"


def options(kind: str, made: bool, **fields: Any) -> list[Drafter]:
    # the library copies the target's embedding, so it has no drafter that is narrower than its target
    return [Drafter(kind, option, made, fields) for option in OPTIONS if option != "narrow"]


BLOCKS = ("dflash", "dflash2", "dspark", "xpress")
SIZES = {
    "dspark": {"markov_rank": 8},
    "dflash2": {"selector_rank": 8, "selector_top_k": 4},
    "xpress": {"xpress_rank": 8},
}
_QWEN3 = {"model_type": "qwen3", "num_hidden_layers": 2}
BLOCK_LAYERS = {
    "plain": _QWEN3,
    "window": {
        **_QWEN3,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "use_sliding_window": True,
    },
    "llama3": {**_QWEN3, "rope_parameters": LLAMA3},
    "biased-yarn": {**_QWEN3, "rope_parameters": YARN, "attention_bias": True},
}
SLIDING = dict(reach=(WINDOW, UNLIMITED), reach_from_root=True, causal=(True, False), num_hidden_layers=2)
MARKOV, REFINER, REDUCED = dict(markov_rank=8, from_root=False), dict(refiner_rank=8), dict(draft_vocab_size=DRAFTED)
OF_OURS: dict[str, dict[str, dict[str, Any]]] = {
    "dflash": {"plain": {}, "sliding": SLIDING | dict(attention_bias=True), "reduced": SLIDING | REDUCED},
    "dflash2": {"plain": dict(conv_group=8, selector_rank=8, selector_top=6)},
    "dspark": {
        "plain": dict(markov_rank=8),
        "gated": MARKOV | dict(markov_head_type="gated"),
        "rnn": MARKOV | REDUCED | dict(markov_head_type="rnn", root_first=True),
        "none": dict(markov_rank=0, confidence_with_markov=False),
    },
    "xpress": {"plain": REFINER, "root": REFINER | dict(from_root=True), "sliding": REFINER | SLIDING | REDUCED},
}
# kinds of another module add their drafters here, their logits to LOGITS, and to RUN of the worker
DRAFTERS = [
    *options("eagle3", True),
    Drafter("eagle3", "plain-embedding", True, {"embed_requires_grad": True}),
    *options("eagle3", False),
    Drafter("eagle3", "target", False),
    *options("peagle", True, mask_token_id=MASK),
    *options("peagle", False, mask_token_id=MASK),
    *(
        Drafter(kind, option, True, {"mask_token_id": MASK, "block_size": BLOCK, **SIZES.get(kind, {})}, layer)
        for kind in BLOCKS
        for option, layer in BLOCK_LAYERS.items()
    ),
    *(
        Drafter(kind, option, False, {"mask_token_id": MASK, "block_size": BLOCK, "taps": (0, 1, 2), **fields})
        for kind in BLOCKS
        for option, fields in OF_OURS[kind].items()
    ),
    *(Drafter("mtp", "plain", made) for made in (True, False)),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the library; packages of this environment serve where their versions do."""
    folder = tmp_path_factory.mktemp("speculators")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "here.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"speculators=={VERSION}"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"speculators {VERSION} could not be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


@pytest.fixture(scope="module")
def model() -> nn.Module:
    config = hf.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(3)
    model = hf.LlamaForCausalLM(config).eval().requires_grad_(False)
    liven(model)
    return model


@pytest.fixture(scope="module")
def qwen3() -> nn.Module:
    """The target of the MTP layer, of a class that the library has."""
    torch.manual_seed(4)
    sizes = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    config = hf.Qwen3Config(**sizes, num_key_value_heads=2, head_dim=8, max_position_embeddings=256)
    model = hf.Qwen3ForCausalLM(config).eval().requires_grad_(False)
    liven(model)
    return model


@pytest.fixture(scope="module")
def travelled(
    python: Path, model: nn.Module, qwen3: nn.Module, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict, dict]:
    """Where the folders lie, the inputs, and the library's logits of every drafter."""
    folder = tmp_path_factory.mktemp("drafters")
    model.save_pretrained(folder / "target")
    qwen3.save_pretrained(folder / "qwen3")
    text = model.generate(torch.arange(10, 10 + PROMPT)[None], max_new_tokens=TOKENS, do_sample=False)
    with record_states(take_apart(model).decoder, LEVELS) as seen:
        last = model.model(text[:, :-1]).last_hidden_state
    anchors = torch.arange(2, text.shape[1] - 1 - BLOCK)
    inputs = {
        "ids": text[0, 1:],
        "whole": text[0, :-1],
        "anchors": anchors,
        "kept": torch.arange(DRAFTED) + 7,
        "states": seen.levels[0],
        "last": last[0],
        "mtp": qwen3.model(text[:, :-1]).last_hidden_state[0],
    }
    save_file({name: value.clone() for name, value in inputs.items()}, folder / "inputs")
    verifier, make, read = Verifier.of_model(model, str(folder / "target")), [], []
    for number, drafter in enumerate(DRAFTERS):
        place = {"name": drafter.name, "kind": drafter.kind, "folder": str(folder / drafter.name), "seed": number}
        if drafter.kind == "mtp":  # the library draws other weights and saves them
            layer = stirred(Mtp(MtpConfig(HIDDEN, VOCAB), take_apart(qwen3)).requires_grad_(False))
            named, first = Verifier.of_model(qwen3, str(folder / "qwen3")), f"{folder / drafter.name}-first"
            place["folder"], again = (first, {"again": place["folder"]}) if drafter.made else (place["folder"], {})
            export_drafter(layer, place["folder"], engine="speculators", verifier=named, dtype=torch.float32)
            read.append(place | again)
        elif drafter.made:
            make.append(place | training(drafter))
        else:
            export_drafter(ours(drafter, model), place["folder"], verifier=verifier, dtype=torch.float32)
            read.append(place)
    job = dict(
        verifier=str(folder / "target"), inputs=str(folder / "inputs"), make=make, read=read, out=str(folder / "out")
    )
    (folder / "job.json").write_text(json.dumps(job))
    done = subprocess.run([python, WORKER, folder / "job.json"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, inputs, load_file(folder / "out")


def training(one: Drafter) -> dict[str, Any]:
    """What the library trains a drafter with."""
    config, _ = published("plain" if one.layer else one.option.partition("-")[0])
    layer = config.pop("transformer_layer_config") | (one.layer or {})
    names = () if one.layer else ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    fields = {name: config.get(name, False) for name in names}
    return {"layer": layer, "fields": fields | {"target_layer_ids": LEVELS} | one.fields}


def ours(one: Drafter, model: nn.Module) -> Any:
    """A drafter of this package."""
    torch.manual_seed(0)
    if one.option == "target":
        return new_drafter(one.kind, model, levels=LEVELS).eval()
    if one.kind in BLOCKS:
        return stirred(new_drafter(one.kind, model, **one.fields).eval().requires_grad_(False))
    config, state = published(
        one.option, eagle_aux_hidden_state_layer_ids=list(LEVELS), speculators_model_type=one.kind, **one.fields
    )
    return mmspec.vlm.drafter_from_state_dict(one.kind, state, config, model)


def stirred(drafter: Any) -> Any:
    """The drafter with random weights, of which none stands for another."""
    torch.manual_seed(0)
    for name, weight in drafter.named_parameters():
        weight.copy_(0.3 * torch.randn_like(weight) + ("norm" in name))
    return drafter


def eagle3_logits(
    drafter: Any, model: nn.Module, inputs: dict[str, Tensor], theirs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Ours of every depth against the library's; its row j of step s is our slot j + s.

    Its training lets a draft see its window from where the draft starts, ours and engines' from each token: a later token sees
    less, so that these rows are compared where the window reaches the start of the text.
    """
    ids = torch.cat([torch.zeros(1, dtype=torch.long), inputs["ids"]])[None]
    embeds = model.get_input_embeddings()(ids[:, 1:])
    view = PromptView(embeds, inputs["states"][None], torch.zeros(1, ids.shape[1] - 1, dtype=torch.long))
    view = drafter.embedded(view, ids)
    pairs = []
    for step, out in enumerate(drafter.unroll(drafter.read(view), view, 0, len(theirs))):
        end = WINDOW if step and any(drafter.config.windows) else out.shape[1]
        pairs.append((drafter.scores(out[0, step:end]), theirs[step, : end - step]))
    return pairs


def peagle_logits(
    drafter: Any, model: nn.Module, inputs: dict[str, Tensor], theirs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """What requests draft from, round by round, against the library's logits of the masks behind the last pair."""
    run = mmspec.vlm.start(
        model, drafter=drafter, max_new_tokens=TOKENS, do_sample=False, input_ids=torch.arange(10, 10 + PROMPT)[None]
    )
    pairs = []
    for _ in range(4):
        run.step()
        run.state.propose(run.target, run.keys)
        last = PROMPT + len(run.target.tokens[0]) - 2
        rows = run.state.rows[0, : len(theirs)]
        if last + len(rows) <= theirs.shape[1]:
            pairs.append((drafter.scores(rows), theirs[: len(rows), last]))
    return pairs


def block_logits(
    drafter: Any, model: nn.Module, inputs: dict[str, Tensor], theirs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The scores of the blocks behind the anchors along the text."""
    ids, anchors, parts = inputs["whole"][None], inputs["anchors"][None], take_apart(model)
    blocks = AnchoredBlocks(ids, anchors, torch.arange(ids.shape[1])[None], torch.zeros_like(ids))
    rows = unroll_anchored_blocks(drafter, parts.embed, blocks, inputs["states"][None])[0]
    before = ids[0][anchors[0, :, None] + torch.arange(drafter.config.drafted)]
    out = drafter.walk(drafter.drafting(rows, ids[0][anchors[0] - 1]), before)
    return [(drafter.scores(out.flatten(0, 1), parts.head).clamp(min=float(theirs.min())), theirs.flatten(0, 1))]


def mtp_logits(
    drafter: Any, model: nn.Module, inputs: dict[str, Tensor], theirs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    count, parts = len(theirs), take_apart(model)
    read = drafter.fuse(parts.embed(inputs["whole"][None, 1 : count + 1]), inputs["mtp"][None, :count])
    out = drafter(read, torch.arange(1, count + 1)[None], SlotCache(1, 0), None)
    return [(drafter.logits(out[0], 1, parts.head), theirs)]


LOGITS: dict[str, Callable[..., list[tuple[Tensor, Tensor]]]] = {
    "eagle3": eagle3_logits,
    "peagle": peagle_logits,
    "mtp": mtp_logits,
} | dict.fromkeys(BLOCKS, block_logits)


@torch.no_grad()
@pytest.mark.parametrize("one", DRAFTERS, ids=lambda one: one.name)
def test_logits_are_the_librarys(
    one: Drafter, travelled: tuple[Path, dict, dict], model: nn.Module, qwen3: nn.Module
) -> None:
    folder, inputs, theirs = travelled
    target = qwen3 if one.kind == "mtp" else model
    drafter = mmspec.vlm.load_drafter(folder / one.name, target=target)
    assert type(drafter) is drafter_class(one.kind)
    pairs = LOGITS[one.kind](drafter, target, inputs, theirs[one.name])
    assert pairs
    for own, other in pairs:
        scale = max(1.0, float(other[other > -1e8].std()))  # what is never drafted aside
        torch.testing.assert_close(own, other, atol=CLOSE * scale, rtol=CLOSE)
    assert max(float(own.std()) for own, _ in pairs) > 0.3  # of a scale at which a part left out would show
