"""What the first picture and the first caption of a process import: a library that takes seconds only where it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

CODE = """
import json, sys, torch
before = set(sys.modules)
from mmspec.cli import app
def loaded(*command):
    app(command, standalone_mode=False)
    return sorted(set(sys.modules) - before)
picture = sys.argv[1] + "/a.png"
image = loaded("image", "a red star", "--seed", "0", "--out", picture)
caption = loaded("caption", picture, "--max-new-tokens", "4")
with open(sys.argv[1] + "/loaded.json", "w") as file:
    json.dump({"image": image, "caption": caption}, file)
"""
NEITHER = {"sklearn", "matplotlib", "diffusers", "open_clip", "gradio", "torchmetrics"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Per command, the modules in memory after it that `import torch` does not bring."""
    folder = tmp_path_factory.mktemp("loaded")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", CODE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert Path(folder, "a.png").stat().st_size > 0
    return {name: set(modules) for name, modules in json.loads(Path(folder, "loaded.json").read_text()).items()}


def test_image_generation_loads_no_library_of_plots_or_benches(loaded: dict) -> None:
    assert "mmspec.imagegen.llamagen.pipeline" in loaded["image"]
    assert not NEITHER & loaded["image"]


def test_a_caption_needs_transformers_and_no_other_library_of_models_or_plots(loaded: dict) -> None:
    assert "transformers.models.llava.modeling_llava" in loaded["caption"]
    assert not NEITHER & loaded["caption"]
