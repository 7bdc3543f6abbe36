"""The Python of the pages under docs/ runs as it stands, on a tiny stand-in for the zoo."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.video import save_wan
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from tests.evaluate.tiny_continuous import captioned
from tests.evaluate.tiny_images import tiny_image_zoo, use_tiny_images
from tests.evaluate.tiny_video import saved, tiny_video_zoo, use_tiny_video
from tests.evaluate.tiny_zoo import WIDTH, tiny_zoo, use_tiny_zoo
from tests.video.tiny import wan

DOCS = Path(__file__).parents[2] / "docs"
TEXT = ("vlm", "choose", "train", "serve", "conversations", "advanced")
IMAGES, CONTINUOUS, VIDEO, CERTIFY, ENABLE, EVALUATE = (
    DOCS / f"{name}.md" for name in ("images", "continuous", "video", "certify", "enable", "evaluate")
)


def publish_eagle(folder: Path) -> None:
    """A random EAGLE checkpoint with the published names."""
    config = {"hidden_size": WIDTH, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 260}
    layer, inner = "layers.0.", config["intermediate_size"]
    shapes = {
        **{f"{layer}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"},
        f"{layer}mlp.gate_proj.weight": (inner, WIDTH),
        f"{layer}mlp.up_proj.weight": (inner, WIDTH),
        f"{layer}mlp.down_proj.weight": (WIDTH, inner),
        f"{layer}post_attention_layernorm.weight": (WIDTH,),
        "fc.weight": (WIDTH, 2 * WIDTH),
        "fc.bias": (WIDTH,),
        "embed_tokens.weight": (260, WIDTH),
    }
    folder.mkdir()
    save_file({name: torch.randn(shape) * 0.1 for name, shape in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def publish_dflash(folder: Path) -> None:
    """A random DFlash drafter as z-lab publishes them."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "vocab_size": 260,
        "num_hidden_layers": 1,
        "block_size": 9,
        "dflash_config": {"mask_token_id": 250, "target_layer_ids": [0, 1]},
    }
    layer, head = "layers.0.", WIDTH // 2
    shapes = {
        "fc.weight": (WIDTH, 2 * WIDTH),
        "hidden_norm.weight": (WIDTH,),
        "norm.weight": (WIDTH,),
        **{f"{layer}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"},
        **{f"{layer}self_attn.{name}_norm.weight": (head,) for name in "qk"},
        **{f"{layer}mlp.{name}_proj.weight": (48, WIDTH) for name in ("gate", "up")},
        f"{layer}mlp.down_proj.weight": (WIDTH, 48),
        **{f"{layer}{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")},
    }
    folder.mkdir()
    save_file({name: torch.randn(shape) * 0.1 for name, shape in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.S)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict]:
    """Runs the Python of a page over the tiny zoo, in a folder with the files that it names; its names come back."""
    use_tiny_zoo(monkeypatch)
    monkeypatch.chdir(tmp_path)
    tiny_zoo()["vlm/eagle"].save_pretrained("my-drafter")
    publish_eagle(Path("published-eagle"))
    publish_dflash(Path("published-dflash"))
    sizes = dict(hidden_size=WIDTH, intermediate_size=48, num_attention_heads=2, vocab_size=260)
    Eagle3(Eagle3Config(**sizes, levels=(1, 2, 3))).save_pretrained("my-eagle3")

    def run(page: str) -> dict:
        names: dict = {}
        for block in blocks_of(page):
            exec(block, names)
        return names

    return run


def test_the_page_on_captions_runs(shown: Callable[[str], dict], capsys: pytest.CaptureFixture) -> None:
    assert shown("vlm")["out"].stats.exact and "True" in capsys.readouterr().out


def test_the_page_on_choosing_runs(shown: Callable[[str], dict]) -> None:
    names = shown("choose")
    assert names["auto"].stats.drafter == "goodput(prompt_lookup)" and names["ids"].shape[0] == 1
    assert names["mmspec"].vlm.automatic(names["model"]).name == "goodput(eagle)"  # what the page offers
    assert Path("converted", "model.safetensors").is_file() and names["out"].stats.exact


def test_the_page_on_conversations_runs(shown: Callable[[str], dict]) -> None:
    names = shown("conversations")
    assert names["session"].last is names["answer"] and len(names["session"].pictures) == 2


def test_the_page_on_serving_runs(shown: Callable[[str], dict]) -> None:
    shown("serve")
    assert all(Path(folder, "model.safetensors").is_file() for folder in ("for-vllm", "for-sglang"))


def test_the_page_on_advanced_decoding_runs(shown: Callable[[str], dict]) -> None:
    names = shown("advanced")
    assert names["end"].calls and names["captured"].shape[0] == 1 and names["ids"].shape[0] == 1


def test_a_pickle_becomes_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weight = torch.arange(6.0).view(2, 3)
    torch.save({"a": weight, "b": weight.t()}, "pytorch_model.bin")
    (block,) = blocks_of("troubleshooting")
    exec(block, {})
    assert torch.equal(load_file("model.safetensors")["b"], weight.t())


def test_the_pages_on_text_name_commands_that_exist() -> None:
    from typer.main import get_command

    from mmspec.cli import app

    commands = get_command(app).commands
    text = "\n".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in TEXT)
    for line in re.findall(r"mmspec ((?:bench|zoo|supported|train)[a-z -]*)", text):
        words = line.split()
        assert words[0] in commands
        if len(words) > 1 and hasattr(commands[words[0]], "commands") and not words[1].startswith("-"):
            assert words[1] in commands[words[0]].commands, line


def test_the_page_on_images_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    use_tiny_images(monkeypatch)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", IMAGES.read_text(), re.S)
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)
    assert names["out"].stats.exact and not names["relaxed"].stats.exact
    assert names["fast"].stats.exact and names["fast"].stats.drafter == "goodput(SCD gumbel(64))"
    assert Path("circle.png").is_file() and "gsd (relaxed) False" in capsys.readouterr().out


def test_the_page_on_images_names_decodings_and_rules_that_exist() -> None:
    from mmspec.methods import names
    from mmspec.run.image_models import decoding_names

    page = IMAGES.read_text()
    decodings, rules = page.split("## Rules")
    named = set(re.findall(r"`([a-z+]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", decodings, re.M))))
    assert named == set(decoding_names())
    assert set(re.findall(r"^\| `([a-z+]+):", rules, re.M)) == set(names("image", "rule", exact=False))


def test_the_page_on_continuous_tokens_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    steps = {"mar": captioned(0, "50"), "mar/draft": captioned(1, "50")}
    monkeypatch.setattr("mmspec.zoo.load", steps.__getitem__)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", CONTINUOUS.read_text(), re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert Path("class3.png").is_file() and not names["stacked"].errors
    assert "head window 8, annealed 50-5, checkerboard 1, lazy 5-9 null+tokens 0.1 False" in capsys.readouterr().out


def test_the_page_on_continuous_tokens_names_decodings_that_exist() -> None:
    from mmspec.run.continuous_models import decoding_names

    table = CONTINUOUS.read_text().split("## Decodings")[1].split("## The stack")[0]
    assert {row.split()[0] for row in re.findall(r"^\| `(.*?)` \|", table, re.M)} - {"--decoding"} == set(
        decoding_names()
    )


def test_the_page_on_videos_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    use_tiny_video(monkeypatch)
    monkeypatch.chdir(tmp_path)
    saved(Path("Wan2.1"))
    save_wan(wan(), "self-forcing")
    monkeypatch.setattr(tiny_video_zoo()["video"], "blocks", 5)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", VIDEO.read_text(), re.S)
    assert len(blocks) == 5
    for block in blocks:
        exec(block, names)
    assert not names["out"].errors and not names["out"].stats.exact and Path("my-video/model_index.json").is_file()
    assert names["blind"].stats.target_blocks == names["out"].stats.target_blocks
    assert "reward >= " in capsys.readouterr().out


def test_the_page_on_videos_names_decodings_and_routers_that_exist() -> None:
    from mmspec.methods import names
    from mmspec.run.video_models import decoding_names

    decodings, routers = VIDEO.read_text().split("## Decodings")[1].split("## Cache discipline")[0].split("## Routers")
    assert set(re.findall(r"^\| `(.*?)` \|", decodings, re.M)) - {"--decoding"} == set(decoding_names())
    named = {one.split(":")[0] for one in re.findall(r"^\| `(.*?)` \|", routers, re.M)} - {"--router"}
    assert named == set(names("video", "router"))


def test_the_page_on_certificates_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    file, code = re.findall(r"```python\n(.*?)```", CERTIFY.read_text(), re.S)
    (tmp_path / "accept.py").write_text(file)
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(code, {"__name__": "shown"})
    monkeypatch.delitem(sys.modules, "accept")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "True regions True" and "islands of more than 0.00046" in lines[1]
    assert lines[2] == "False lenient by 1.11" and len(lines) == 5


def test_the_page_on_certificates_names_mistakes_and_rules_that_exist() -> None:
    from mmspec.certify.diagnosis import KNOWN_MISTAKES
    from mmspec.certify.rules import RELAXED
    from mmspec.certify.runners import BATCH, MEMORY, STATE
    from mmspec.certify.step import ARGUMENTS

    page = CERTIFY.read_text()
    table = page.split("## Mistakes")[1].split("## Other")[0]
    named = {name for row in re.findall(r"^\| ([^|]*?) \|", table, re.M) for name in row.split(", ")}
    known = {mistake.name for mistake in KNOWN_MISTAKES} | {BATCH, MEMORY, STATE, "lenient by ...", "behaves like"}
    assert named - {"---"} == known
    assert set(re.findall(r"^\| (`.*?`) \|", page.split("## What")[0], re.M)) == {
        *(f"`{name}`" for name in ARGUMENTS if name not in ("q_uncut", "top_k")),
        "`q_uncut`, `top_k`",
    }
    assert set(re.findall(r"`(\w+)`", page.split("relaxed ones (")[1].split(") fail")[0])) == {
        name.replace("++", "_plus") for name in RELAXED
    }


def test_the_page_on_enabling_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    models = {**tiny_zoo(), **tiny_image_zoo(), **tiny_video_zoo()}
    monkeypatch.setattr("mmspec.zoo.load", models.__getitem__)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", ENABLE.read_text(), re.S)
    assert len(blocks) == 4  # with the file for checkpoints, which `tests/docs` runs
    for block in blocks:
        exec(block, names)
    said = capsys.readouterr().out
    assert "1 calls, 0 refused; exact" in said and "True False\n" in said and said.endswith("False\n")
    assert all("start" not in vars(names[pipe]) for pipe in ("pipe", "film"))


@pytest.mark.whole
def test_the_page_on_quality_against_speed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    use_tiny_images(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", EVALUATE.read_text(), re.S)
    exec(block, {})
    said = capsys.readouterr().out
    assert (
        "SJD (window 8)" in said
        and "('plain', True, 1.0, 1.0)" in said
        and Path("runs/small/report/pareto.png").is_file()
    )


def test_the_page_on_quality_names_models_sets_and_extractors_that_exist() -> None:
    from typer.main import get_command

    from mmspec.cli import app
    from mmspec.evaluate.engine.registry import DOMAINS, domain_of
    from mmspec.evaluate.exports import LAYOUTS

    page = EVALUATE.read_text()
    helps = {param.name: param.help for param in get_command(app).commands["evaluate"].params}
    models = re.search(r"^\| `--model` \| (.*?) of the zoo", page, re.M)[1]
    assert set(re.findall(r"`([\w/]+)`", models)) == {model for name in DOMAINS for model in domain_of(name).models}
    sets = {
        row.partition("=")[0] for row in re.findall(r"^\| `(\w+(?:=\w+)?)` \|", page.split("## Prompt sets")[1], re.M)
    }
    assert sets == {"zoo", "coco", "imagenet", "folder", "texts", "jsonl", "mmspec"} and all(
        features in helps["prompts"] for features in sets
    )
    assert all(f"`--export {kind}=DIR`" in page and kind in helps["export"] for kind in LAYOUTS)
