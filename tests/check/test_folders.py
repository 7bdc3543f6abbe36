"""`mmspec check` on ten folders: what it says, its exit code, its width and its JSON file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.check.text import WIDTH
from mmspec.cli import app
from tests.check.folders import FOLDERS

# exit code, what the screen says, what it does not say
SAYS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "llava": (0, ("LlavaForConditionalGeneration", "yes: the suite tests", "2 full", "4 tokens each", "strict: yes",
                  "capture: yes", "sessions: yes", "identical: 32 tokens", "mmspec caption PICTURE --model llava"), ()),
    "qwen2_5_vl": (0, ("as many tokens as its size asks for", "identical: 32 tokens"), ()),
    "qwen3_vl": (0, ("outputs of the first layers (1)", "identical: 32 tokens"), ()),
    "llama": (0, ("none: a model of text alone", "bench vlm --suite real --model llama", "256 B a token"), ()),
    "qwen3_5": (0, ("proven itself now", "1 states, 1 full", "recurrent layers step along", "of states a row", "capture: no",
                    "how far layers see: yes"), ()),
    "gpt_oss": (0, ("1 window of 128 tokens, 1 full", "strict: no", "leave strict out", "sessions: yes"), ()),
    "zoo": (0, ("144 tokens each", "dspark, 6.07 MB, in the zoo", "drafter dspark", "--model vlm"), ("for it: eagle,",)),
    "mamba": (1, ("refused: expected a forward that takes position_ids", "2 linear_attention"), ("comparison", "drafters")),
    "damaged": (2, ("Error: ", "expected 7 files of weights, got no model-00007-of-00007.safetensors"), ("taken",)),
    "config": (0, ("36 full", "16.4 GB: 8,190,735,360 in bfloat16", "147 kB a token",
                   "`hf download z-lab/Qwen3-8B-DFlash-b16`", "no weights beside the config", "strict: ?"), ("comparison",)),
}  # fmt: skip


@pytest.mark.default_cells("llava", "mamba", "damaged", "config")
@pytest.mark.parametrize("name", FOLDERS)
def test_ten_folders(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, unsaid = SAYS[name]
    result = CliRunner().invoke(app, ["check", FOLDERS[name](Path(name)), "--json", "report.json"])
    lines = (result.stdout + result.stderr).splitlines()
    shown = " ".join(" ".join(lines).split())
    assert result.exit_code == code, shown
    assert [part for part in said if part not in shown] == [], shown
    assert [part for part in unsaid if part in shown] == [], shown
    if code == 2:
        assert len(lines) == 1 and not Path("report.json").exists()
        return
    assert [line for line in lines if len(line) > WIDTH] == []
    saved = json.loads(Path("report.json").read_text())
    assert saved["taken"] is (code == 0) and saved["next_commands"]
    assert saved["loaded"] is (name not in ("mamba", "config"))
    if saved["loaded"]:
        assert saved["comparison"]["identical"] and saved["comparison"]["tokens"] == 32


@pytest.mark.whole
def test_a_class_with_a_failed_proof_is_refused_with_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.check.folders import of_class

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["check", of_class("InklingForCausalLM")(Path("inkling"))])
    shown = " ".join(result.stdout.split())
    assert result.exit_code == 1, result.stderr
    assert "refused: expected drafted passes of InklingForCausalLM to equal its single steps" in shown
    assert "a tree of drafts: no" in shown and "comparison" not in shown


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("t2i", "sjd, exact"),
        ("mar", "3 encoder, both ways"),
        ("car", "head, exact"),
        ("video", "mmspec video"),
        ("video/tokens", "mmspec video"),
        ("c2i", "mmspec image LABEL --model c2i"),
    ],
)
def test_pipelines_of_the_zoo(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*args: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("mmspec.io.readers.read_tensors", unread)
    result = CliRunner().invoke(app, ["check", f"zoo:{name}"])
    assert result.exit_code == 0 and said in result.stdout, (result.stdout, result.stderr)
    assert "memory      weights" in result.stdout and "layers" in result.stdout
