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
from mmspec.core.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_layers import UNLIMITED
from mmspec.vlm.drafters.base.block_unroll import AnchoredBlocks, unroll_anchored_blocks
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.kinds import drafter_class, new_drafter
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from mmspec.vlm.export import Verifier, export_drafter
from mmspec.vlm.hidden_states import LayerOutput, record_states
from tests.vlm.drafters.eagle3.reference import OPTIONS, WINDOW, published
from tests.vlm.tiny import HIDDEN, VOCAB, liven

pytestmark = pytest.mark.whole
VERSION, WORKER = "0.9.0", Path(__file__).with_name("speculators_worker.py")
LEVELS, PROMPT, TOKENS, DRAFTED, MASK = (1, 2, 3), 8, 16, 60, 90
CLOSE = dict(atol=1e-4, rtol=1e-4)


@dataclass(frozen=True)
class Drafter:
    """A drafter that travels. made: by the library (then `fields` and `layer` are those of its training), or here."""

    kind: str
    option: str
    made: bool
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.option}-{'theirs' if self.made else 'ours'}"


def options(kind: str, made: bool, **fields: Any) -> list[Drafter]:
    return [Drafter(kind, option, made, fields) for option in OPTIONS]


BLOCK, ANCHORS = 5, torch.tensor([[9, 12, 15]])
SLIDING = dict(reach=(WINDOW, UNLIMITED), reach_from_root=True, causal=(True, False))
SCALED = dict(rope_scaling={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 16})  # fmt: skip
RANK, REDUCED = dict(refiner_rank=8), dict(draft_vocab_size=DRAFTED)
BLOCKS: dict[str, dict[str, dict[str, Any]]] = {
    "dflash": {"plain": {}, "sliding": SLIDING | dict(attention_bias=True), "scaled": SCALED,
               "both-ways": SLIDING | dict(causal=(False, False)) | REDUCED},
    "dflash2": {"plain": dict(conv_group=8, selector_rank=8, selector_top=6)},
    "dspark": {"plain": dict(markov_rank=8, from_root=True), "gated": dict(markov_rank=8, markov_head_type="gated"),
               "rnn": dict(markov_rank=8, markov_head_type="rnn", root_first=True) | REDUCED,
               "none": dict(markov_rank=0, confidence_with_markov=False)},
    "xpress": {"plain": RANK, "root": RANK | dict(from_root=True), "sliding": RANK | SLIDING | REDUCED},
}  # fmt: skip

# kinds of another module add their drafters here, their logits to LOGITS, and to RUN of the worker
DRAFTERS = [
    *options("eagle3", True),
    Drafter("eagle3", "plain-embedding", True, {"embed_requires_grad": True}),
    *options("eagle3", False),
    Drafter("eagle3", "target", False),
    *options("peagle", True, mask_token_id=MASK),
    *options("peagle", False, mask_token_id=MASK),
    *(
        Drafter(kind, option, made, BLOCKS[kind][option])
        for kind in BLOCKS
        for option in BLOCKS[kind]
        for made in (True, False)
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
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
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
    inputs = {"ids": text[0, 1:], "states": seen.levels[0], "last": last[0], "kept": torch.arange(DRAFTED) + 7}
    inputs |= {
        "text": text[0, :-1].clone(),
        "anchors": ANCHORS[0],
        "mtp": qwen3.model(text[:, :-1]).last_hidden_state[0],
    }
    save_file({name: value.contiguous() for name, value in inputs.items()}, folder / "inputs")
    verifier, make, read = Verifier.of_model(model, str(folder / "target")), [], []
    for number, one in enumerate(DRAFTERS):
        place = {"name": one.name, "kind": one.kind, "folder": str(folder / one.name), "seed": number}
        if one.kind not in ("eagle3", "peagle"):
            first = str(folder / f"{one.name}-first") if one.made else place["folder"]
            if one.kind == "mtp":
                layer = Mtp(MtpConfig(HIDDEN, VOCAB), take_apart(qwen3)).requires_grad_(False)
                named = Verifier.of_model(qwen3, str(folder / "qwen3"))
                export_drafter(stirred(layer), first, engine="speculators", verifier=named, dtype=torch.float32)
            else:
                export_drafter(block(one), first, verifier=verifier, dtype=torch.float32)
            read.append(place | {"folder": first} | ({"again": place["folder"]} if one.made else {}))
        elif one.made:
            make.append(place | training(one))
        else:
            export_drafter(ours(one, model), place["folder"], verifier=verifier, dtype=torch.float32)
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
    config, _ = published(one.option.partition("-")[0])
    layer = config.pop("transformer_layer_config")
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    fields = {name: config.get(name, False) for name in names}
    return {"layer": layer, "fields": fields | {"target_layer_ids": LEVELS} | one.fields}


def ours(one: Drafter, model: nn.Module) -> Any:
    """A drafter of this package."""
    if one.option == "target":
        torch.manual_seed(0)
        return new_drafter(one.kind, model, levels=LEVELS).eval()
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


def block(one: Drafter) -> BlockDrafter:
    made = drafter_class(one.kind)
    sizes = dict(taps=[level - 1 for level in LEVELS], mask_token_id=MASK, block_size=BLOCK, num_hidden_layers=2)
    drafter = made(made.config_class(HIDDEN, 48, 4, VOCAB, **sizes, num_key_value_heads=2, head_dim=8, **one.fields))
    if drafter.vocabulary is not None:
        drafter.head.choose(range(7, 7 + DRAFTED))
    return stirred(drafter.eval().requires_grad_(False))


def block_logits(
    drafter: Any, model: nn.Module, inputs: dict[str, Tensor], theirs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The scores of the blocks behind the anchors along the text; minus infinity is -1e9 for the library."""
    parts, ids = take_apart(model), inputs["text"][None]
    standing = AnchoredBlocks(ids, ANCHORS, torch.arange(ids.shape[1])[None], torch.zeros_like(ids))
    rows = unroll_anchored_blocks(drafter, parts.embed, standing, inputs["states"][None])[0]
    before = ids[0][ANCHORS[0, :, None] + torch.arange(drafter.config.drafted)]
    out = drafter.walk(drafter.drafting(rows, ids[0][ANCHORS[0] - 1]), before)
    return [(drafter.scores(out.flatten(0, 1), parts.head).clamp(min=-1e9), theirs.flatten(0, 1))]


def mtp_logits(
    drafter: Any, model: nn.Module, inputs: dict[str, Tensor], theirs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    count, parts = len(theirs), take_apart(model)
    read = drafter.fuse(parts.embed(inputs["text"][None, 1 : count + 1]), inputs["mtp"][None, :count])
    out = drafter(read, torch.arange(1, count + 1)[None], SlotCache(1, 0), None)
    return [(drafter.logits(out[0], 1, parts.head), theirs)]


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


LOGITS: dict[str, Callable[..., list[tuple[Tensor, Tensor]]]] = {
    "eagle3": eagle3_logits, "peagle": peagle_logits, "mtp": mtp_logits, **dict.fromkeys(BLOCKS, block_logits),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("one", DRAFTERS, ids=lambda one: one.name)
def test_logits_are_the_librarys(
    one: Drafter, travelled: tuple[Path, dict, dict], model: nn.Module, qwen3: nn.Module
) -> None:
    folder, inputs, theirs = travelled
    target = qwen3 if one.kind == "mtp" else model
    drafter = mmspec.vlm.load_drafter(folder / one.name, target=target)
    assert type(drafter) is drafter_class(one.kind)
    assert drafter.levels in (None, LEVELS, tuple(LayerOutput(level - 1) for level in LEVELS))
    pairs = LOGITS[one.kind](drafter, target, inputs, theirs[one.name])
    assert pairs
    for own, other in pairs:
        torch.testing.assert_close(own, other, **CLOSE)
    assert max(float(own.std()) for own, _ in pairs) > 0.3  # of a scale at which a part left out would show
