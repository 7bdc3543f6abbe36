"""A method is one file: toys of several kinds, one file each in a copy of the product, appear in every view and decode."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("mmspec", "kernels", "vlm", "imagegen", "video")

DECODING = '''
"""A toy decoding."""

from __future__ import annotations

from mmspec.imagegen.jacobi.jacobi_drafts import SJD
from mmspec.methods import method


@method("toydrafts", domain="image", kind="decoding", title="toy drafts", exact=True, about="windows of three")
def toy_drafts(window: int = 3) -> SJD:
    """Short windows.

    Args:
        window: The values of a pass.
    """
    return SJD(window)
'''
RULE = '''
"""A toy relaxed rule."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft
from mmspec.core.round.rules import Weights
from mmspec.core.round.rules.relaxed import RelaxedRule
from mmspec.methods import method


@method("toyrule", domain="image", kind="rule", title="toy rule", exact=False, about="accepts nearly everything", tiny={})
class ToyRule(RelaxedRule):
    """Accepts with a probability that is raised.

    Args:
        boost: What is added to the probability.
    """

    name = "toyrule (relaxed)"

    def __init__(self, boost: float = 0.9):
        self.boost = boost

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        return (weights.threshold + self.boost).clamp_max(1)
'''
ROUTER = '''
"""A toy router."""

from __future__ import annotations

from mmspec.methods import method
from mmspec.video.routing.routers import Threshold


@method("toyrouter", domain="video", kind="router", title="toy router", exact=False, about="keeps what scores above zero")
class ToyRouter(Threshold):
    """A threshold of zero."""

    def __init__(self) -> None:
        super().__init__(0.0)
'''
TRAINED = '''
"""A toy drafter of text tokens that is trained and published."""

from __future__ import annotations

from typing import ClassVar

from mmspec.core.drafting.request_shape import shape_of
from mmspec.methods import method
from mmspec.vlm.drafters.eagle import Eagle


@method(
    "toydrafter", domain="vlm", kind="drafter", title="toy drafter", exact=True, needs=("weights",), takes=shape_of,
    about="a layer under another name",
)
class ToyDrafter(Eagle):
    """EAGLE under another name."""

    kind: ClassVar[str] = "toykind"
    name = "toydrafter"
    published_as = ("ToyDraftModel",)
'''
COPIED = '''
"""A toy drafter of text tokens that needs no weights."""

from __future__ import annotations

from mmspec.methods import method
from mmspec.vlm.drafters.prompt_lookup import PromptLookup


@method(
    "toycopies", domain="vlm", kind="drafter", title="toy copies", exact=True, about="two tokens of the text so far",
    drafts=("n-grams",),
)
def toy_copies(longest: int = 2) -> PromptLookup:
    """Short copies.

    Args:
        longest: The most tokens of a draft.
    """
    return PromptLookup(longest=longest)
'''
TEXT_VIEWS = """
import json
from typer.testing import CliRunner
import mmspec
from mmspec.cli import app
from mmspec.run.vlm_models import drafter_names
from mmspec.vlm.drafters.checkpoints import published_kind

listed = {one["drafter"]: one["drafts"] for one in mmspec.supported()["drafters"]}
run = lambda *args: CliRunner().invoke(app, args, env={"COLUMNS": "200"})
wrong = run("train", "vlm-drafter", "--out", "x", "--kind", "nonsense").stderr
print(json.dumps({
    "supported": [listed.get(name) for name in ("toykind", "toycopies")],
    "command": ["toykind" in run("supported").stdout, "toykind" in run("train", "vlm-drafter", "--help").stdout],
    "refused": "toykind" in wrong and "toycopies" not in wrong,
    "published": published_kind({"architectures": ["ToyDraftModel"]}, None),
    "offered": "toycopies" in drafter_names(),
    "public": mmspec.drafters.ToyDrafter.kind,
}))
"""
TEXT = """
import json, torch, mmspec
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.training.recipes import equal_recipe, published_recipe
from tests.vlm.drafters.published_files import PUBLISHED, random_file
from tests.vlm.tiny import tiny

model, ids = tiny("llama"), torch.tensor([[3, 4, 5, 6, 3, 4, 5, 6, 3, 4]])
made = new_drafter("toykind", model)
made.save_pretrained("toy")
published = PUBLISHED["EAGLE-Vicuna-7B-v1.3"]
config = published.small_config
read = mmspec.vlm.drafter_from_state_dict("toykind", random_file(published.shapes(config)), config, model)
run = lambda drafter: mmspec.generate(
    model, input_ids=ids, drafter=drafter, max_new_tokens=12, do_sample=False, return_dict=True)
plain, runs = run(None), [run(one) for one in ("toydrafter:chain=3@toy", "toycopies:longest=3", read, "toy")]
print(json.dumps({
    "same": [torch.equal(plain.sequences, one.sequences) for one in runs],
    "names": [runs[0].stats.drafter, type(read).__name__, read.kind],
    "recipes": [published_recipe("toykind", made).lr, equal_recipe(made).objective.depths],
}))
"""
BLOCKS = '''
"""A toy decoding of videos."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.methods import method
from mmspec.video.decoding.request import VideoRequest
from mmspec.video.decoding.undrafted import PlainVideoDecoding
from mmspec.video.model import BlockVideoModel


@method("toyblocks", domain="video", kind="decoding", title="toy blocks", exact=True, models=("blocks",), about="no drafts")
@dataclass(frozen=True)
class ToyBlocks:
    """The target alone.

    Args:
        least: The fewest blocks that it draws.
    """

    least: int = 1

    def prepare(self, model: BlockVideoModel, request: VideoRequest) -> tuple:
        if request.blocks < self.least:
            raise ValueError(f"blocks: expected at least {self.least}, got {request.blocks}; ask for more")
        return PlainVideoDecoding().prepare(model, request)
'''
PLACES = "import mmspec, mmspec.imagegen, mmspec.video; print(mmspec.__file__, mmspec.imagegen.__file__)"
VIEWS = """
import json
from typer.testing import CliRunner
from mmspec import zoo
from mmspec.certify.rules import RELAXED, step_of
from mmspec.certify import certify
from mmspec.cli import app
from mmspec.run.image_models import decoding_names
from mmspec.evaluate.image.suites import SUITES
from mmspec.run.video_models import decoding_names as video_decodings, router_of
from mmspec.methods import names

said = CliRunner().invoke(app, ["methods"]).stdout
shown = CliRunner().invoke(app, ["methods", "toyrule"]).stdout
wrong = CliRunner().invoke(app, ["image", "a red circle", "--decoding", "nonsense"]).stderr
print(json.dumps({
    "methods": [name in said for name in ("toydrafts", "toyrule", "toyrouter", "toyblocks")],
    "shown": "What is added" in shown,
    "choices": [name in wrong for name in ("toydrafts", "toyrule")],
    "bench": sorted({one.key for one in SUITES["all"].methods if "toy" in one.key}),
    "decodings": [name in decoding_names() for name in ("toydrafts", "toyrule")] + ["toyblocks" in video_decodings()],
    "help": "toyblocks" in CliRunner().invoke(app, ["video", "--help"], terminal_width=400).stdout,
    "certify": "toyrule" in RELAXED and not certify(step_of("toyrule"), laws=("far",)).exact,
    "router": router_of("toyrouter").least,
}))
"""
DRAWN = """
import json, torch
from mmspec.imagegen import ImagePipeline
from mmspec.imagegen.geometry import Geometry
from tests.imagegen.tiny import TinyModel

pipe = ImagePipeline(TinyModel(Geometry.square(4)))
asked = {"pixels": False, "seed": 3}
plain, toy = (pipe([0, 1], decoding=name, temperature=0.0, **asked) for name in (None, "toydrafts"))
loose = pipe([0, 1], decoding="toydrafts:window=4", rule="toyrule:boost=0.5", **asked)
same = [torch.equal(plain.tokens, toy.tokens), toy.stats.exact, loose.stats.exact]

from tests.evaluate.tiny_video import blocks

film = blocks()
alone, routed = (film("a red circle", decoding=text, seed=3).latents[0] for text in (None, "toyblocks:least=2"))
try:
    film("a red circle", decoding="toyblocks:least=9")
except ValueError as error:
    print(json.dumps([*same, torch.equal(alone, routed), str(error)]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product with six more files, its index written anew."""
    root = tmp_path_factory.mktemp("product")
    skip = shutil.ignore_patterns("weights", "__pycache__", "static")
    for room in ROOMS:
        shutil.copytree(ROOT / room, root / room, ignore=skip)
    (root / "mmspec" / "zoo" / "weights").symlink_to(ROOT / "mmspec" / "zoo" / "weights")
    (root / "imagegen" / "toy_drafts.py").write_text(DECODING.lstrip())
    (root / "imagegen" / "rules" / "toy_rule.py").write_text(RULE.lstrip())
    (root / "video" / "routing" / "toy_router.py").write_text(ROUTER.lstrip())
    (root / "vlm" / "drafters" / "toy_drafter.py").write_text(TRAINED.lstrip())
    (root / "vlm" / "drafters" / "toy_copies.py").write_text(COPIED.lstrip())
    (root / "video" / "decoding" / "toy_blocks.py").write_text(BLOCKS.lstrip())
    (root / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "from importlib.machinery import PathFinder\n"
        f"HOMES = {{'mmspec.kernels': {str(root / 'kernels' / 'ops')!r}, 'mmspec.vlm': {str(root / 'vlm')!r},\n"
        f"         'mmspec.imagegen': {str(root / 'imagegen')!r}, 'mmspec.video': {str(root / 'video')!r}}}\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name not in HOMES:\n"
        "            return None\n"
        "        home = HOMES[name]\n"
        "        return importlib.util.spec_from_file_location(\n"
        "            name, home + '/__init__.py', submodule_search_locations=[home])\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    run(root, "from tests.methods.index import write_index; assert write_index()")
    return root


@pytest.fixture(scope="module")
def printed(copy: Path) -> dict[str, str]:
    """What each script prints last. One process runs them all, since its imports take longer than the scripts."""
    scripts = {"places": PLACES, "views": VIEWS, "drawn": DRAWN, "text views": TEXT_VIEWS, "text": TEXT}
    code = f"for name, script in {scripts!r}.items():\n    exec(script, {{}})\n    print('printed by', name)"
    found: dict[str, str] = {}
    lines = run(copy, code).splitlines()
    for before, line in zip(lines, lines[1:], strict=False):
        if line.startswith("printed by "):
            found[line.removeprefix("printed by ")] = before
    return found


def run(root: Path, code: str) -> str:
    """What a script prints, with the copy in front of everything."""
    paths = {"PYTHONPATH": f"{root}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(root)}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_copied_package_is_imported(copy: Path, printed: dict[str, str]) -> None:
    assert printed["places"].split() == [str(copy / "mmspec" / "__init__.py"), str(copy / "imagegen" / "__init__.py")]


@pytest.mark.slow
def test_single_file_methods_appear_in_every_view(printed: dict[str, str]) -> None:
    views = json.loads(printed["views"])
    assert all(views["methods"]) and views["shown"] and all(views["choices"]) and all(views["decodings"])
    assert views["bench"] == ["eagle-toyrule", "scd-64-toyrule", "scd-toyrule", "sjd-toyrule"]
    assert views["certify"] and views["router"] == 0.0 and views["help"]


@pytest.mark.slow
def test_the_toys_decode_by_their_text(printed: dict[str, str]) -> None:
    *drawn, refused = json.loads(printed["drawn"])
    assert drawn == [True, True, False, True] and refused == "blocks: expected at least 9, got 4; ask for more"


@pytest.mark.slow
def test_single_file_text_drafters_appear_in_every_view(printed: dict[str, str]) -> None:
    assert json.loads(printed["text views"]) == {
        "supported": ["a layer under another name", "two tokens of the text so far"],
        "command": [True, True],
        "refused": True,
        "published": "toydrafter",
        "offered": True,
        "public": "toykind",
    }


@pytest.mark.slow
def test_toy_text_drafters_are_loaded_trained_and_decode_by_their_text(printed: dict[str, str]) -> None:
    said = json.loads(printed["text"])
    assert said["same"] == [True, True, True, True]
    assert said["names"] == ["toydrafter", "ToyDrafter", "toykind"] and said["recipes"] == [3e-5, 4]
