"""Drafters by text, in `generate` and `enable`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.methods.text import joined, split
from mmspec.vlm import generate
from mmspec.vlm.auto import offer
from mmspec.vlm.drafters import Merged, PromptLookup
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.specdecpp import AcceptanceConfig, AcceptanceHead, AcceptanceStop
from tests.vlm.tiny import tiny

IDS = torch.tensor([[3, 4, 5, 6, 3, 4, 5, 6, 3, 4]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return tiny("llama")


@pytest.fixture
def folder(model, tmp_path: Path) -> Path:
    new_drafter("eagle2", model).save_pretrained(tmp_path / "eagle")
    return tmp_path / "eagle"


@pytest.mark.parametrize("text", ("lookup", "lookup:longest=3,doubling=true", "recycling", "none", "auto"))
def test_greedy_text_is_that_of_plain_decoding(text: str, model) -> None:
    plain = generate(model, input_ids=IDS, max_new_tokens=12, do_sample=False)
    assert torch.equal(generate(model, input_ids=IDS, drafter=text, max_new_tokens=12, do_sample=False), plain)


def test_settings_and_weights_reach_the_drafter(model, folder: Path) -> None:
    assert drafter_from_text("lookup:longest=3", model) == PromptLookup(longest=3)
    made = drafter_from_text(f"eagle:chain=3@{folder}", model)
    assert made.shape_for(True).longest == 3 and drafter_from_text(f"eagle:chain=3@{folder}", model) is made
    tree = drafter_from_text(f"eagle:nodes=9,depth=4,width=2@{folder}", model)
    assert (tree.shapes[0].nodes, tree.shapes[0].depth, tree.shapes[0].width) == (9, 4, 2)
    both = drafter_from_text(f"both:chain=2,alone_from=none@{folder}", model)
    assert isinstance(both, Merged) and both.alone_from is None and both.drafter.shapes[0].longest == 2
    out = generate(model, input_ids=IDS, drafter=f"eagle:chain=3@{folder}", max_new_tokens=6, return_dict=True)
    assert out.stats.drafter == "eagle"


def test_a_controller_of_lengths_is_a_setting(model, folder: Path) -> None:
    wanted = Chain(ConfidenceStop(0.3, longest=6))
    made = drafter_from_text(f"eagle:length=(confidence:threshold=0.3,longest=6)@{folder}", model)
    assert made.shapes == (wanted, wanted) == (Chain("confidence:threshold=0.3,longest=6"),) * 2
    AcceptanceHead(AcceptanceConfig(model.config.hidden_size, 1)).save_pretrained(folder.parent / "head")
    stopped = drafter_from_text(f"eagle:length=(specdecpp:threshold=0.5@{folder.parent / 'head'})@{folder}", model)
    assert isinstance(stopped.shapes[0].length, AcceptanceStop) and stopped.shapes[0].length.threshold == 0.5
    out = generate(model, input_ids=IDS, drafter=stopped, max_new_tokens=6, do_sample=False)
    assert torch.equal(out, generate(model, input_ids=IDS, max_new_tokens=6, do_sample=False))


def test_wrong_controllers_are_named(model, folder: Path) -> None:
    with pytest.raises(ValueError, match="controller: expected one of .*confidence.*, got 'confidense'; did"):
        drafter_from_text(f"eagle:length=confidense@{folder}", model)
    with pytest.raises(
        ValueError, match="chain: expected one of chain, nodes, length and shape, got chain 3 and length .*; leave out"
    ):
        drafter_from_text(f"eagle:length=confidence,chain=3@{folder}", model)
    with pytest.raises(ValueError, match="controller: expected one of .*, got 'fixt'; did you mean 'fixed'"):
        Chain("fixt")


def test_a_folder_alone_is_a_drafter_and_an_offered_drafter_needs_no_folder(model, folder: Path) -> None:
    found = drafter_from_text(str(folder), model)
    assert type(found).__name__ == "Eagle"
    offer(model, lambda: (PromptLookup(), found))
    assert type(drafter_from_text("eagle:chain=2", model)).__name__ == "Eagle"


def test_an_enabled_model_takes_the_text(model) -> None:
    mmspec.enable(model, "lookup:longest=4")
    out = model.generate(IDS, max_new_tokens=8, do_sample=False)
    assert mmspec.summary(model).calls == 1 and out.shape[1] > IDS.shape[1]
    mmspec.disable(model)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lookdown", "drafter: expected one of auto, .*lookup.*, got 'lookdown'; did you mean 'lookup'"),
        (
            "lookup:longst=3",
            r"drafter 'lookup': expected a setting of lookup \(longest, max_ngram.*did you mean 'longest'",
        ),
        ("lookup:longest=0", "drafter 'lookup': longest: expected at least 1, got 0"),
        ("medusa", "drafter 'medusa': expected its weights behind @, as in 'medusa@FOLDER', got none"),
        ("eagle@no/such/folder", "expected a folder or a hub id"),
    ],
)
def test_an_invalid_drafter_text_reports_one_error(text: str, sentence: str, model) -> None:
    with pytest.raises(ValueError, match=sentence):
        generate(model, input_ids=IDS, drafter=text, max_new_tokens=4)


def test_weights_of_another_kind_are_refused(model, folder: Path) -> None:
    with pytest.raises(
        ValueError, match="drafter 'medusa': kind: expected 'eagle2' as in the config.json of .*'medusa'"
    ):
        drafter_from_text(f"medusa@{folder}", model)


FORMS = {
    "(best:nodes=16,depth=7,width=3)": BestFirst(16, 7, 3),
    "best": BestFirst(),
    "(best:nodes=8,floor=0.2,stop=3:0.3)": BestFirst(8, floor=0.2, stop=((3, 0.3),)),
    "(dynamic:nodes=9,depth=4,width=2,stop=3:0.3+4:0.2)": DynamicTree(9, 4, 2, stop=((3, 0.3), (4, 0.2))),
    "(dynamic:stop=2:0.1:best:8)": DynamicTree(stop=((2, 0.1, "best", 8),)),
    "(static:nodes=5,depth=3,drawn=with_replacement)": StaticTree((0, 0, 1, 2, 0, 1), "with_replacement"),
    "(chain:length=4,drawn=deterministic)": Chain(FixedLength(4), "deterministic"),
    "(chain:length=(confidence:threshold=0.3,longest=6))": Chain(ConfidenceStop(0.3, longest=6)),
    "(chain:length=(confidence:threshold=0.3,longest=6),drawn=deterministic)": Chain(
        ConfidenceStop(0.3, longest=6), "deterministic"
    ),
}


@pytest.mark.parametrize("text", FORMS)
def test_every_shape_has_a_text(model, folder: Path, text: str) -> None:
    made = drafter_from_text(f"eagle:shape={text}@{folder}", model)
    assert made.shapes == (FORMS[text], FORMS[text])
    call = mmspec.methods.parse(f"eagle:shape={text}@{folder}", "vlm", "drafter")
    assert mmspec.methods.parse(str(call), "vlm", "drafter") == call and call.weights == str(folder)


def test_shapes_are_listed_and_others_are_refused(model, folder: Path) -> None:
    assert mmspec.methods.names("vlm", "shape") == ("dynamic", "best", "static", "chain")
    for text, error in {
        "shape=tree": "shape: expected one of dynamic, best, static, chain, got 'tree'",
        "shape=(best:nods=3)": "expected a setting of best .*did you mean 'nodes'",
        "shape=(dynamic:stop=3)": "stop: expected DEPTH:CHANCE of every stop.*got '3'",
        "shape=best,chain=3": "chain: expected one of chain, nodes, length and shape, got chain 3 and shape",
    }.items():
        with pytest.raises(ValueError, match=error):
            drafter_from_text(f"eagle:{text}@{folder}", model)


def test_methods_nest_at_any_depth() -> None:
    name, settings, weights = split("a:x=(b:y=(c:z=1,w=2@d),v=3@e),u=(f)@g")
    assert (name, settings, weights) == ("a", {"x": "b:y=(c:z=1,w=2@d),v=3@e", "u": "f"}, "g")
    assert split(settings["x"]) == ("b", {"y": "c:z=1,w=2@d", "v": "3"}, "e")
    assert joined(name, {"x": settings["x"]}, weights) == "a:x=(b:y=(c:z=1,w=2@d),v=3@e)@g"
