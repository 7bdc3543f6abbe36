"""A pickled reward becomes safetensors on request, and only its tensors do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.video import imagereward_from_state_dict
from mmspec.video.rewards.state_dicts import convert_reward as convert
from tests.video.rewards.reference import CONFIG, random_state


class Code:
    def __reduce__(self) -> tuple:
        return print, ("run",)


@pytest.mark.parametrize("wrapper", ["", "state_dict"], ids=["raw", "wrapped"])
def test_a_converted_file_scores_as_the_pickle_would(tmp_path: Path, wrapper: str) -> None:
    state = random_state()
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "ImageReward.pt")
    files = [str(tmp_path / "ImageReward.pt"), str(tmp_path / "imagereward.safetensors")]
    assert CliRunner().invoke(app, ["convert", *files, "--kind", "reward"]).exit_code == 0
    found, wanted = (imagereward_from_state_dict(sd, CONFIG) for sd in (tmp_path / "imagereward.safetensors", state))
    assert all(torch.equal(value, wanted.state_dict()[name]) for name, value in found.state_dict().items())


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    whole = torch.randn(4, 4)
    torch.save({"a": whole, "b": whole[:2], "c": whole.T}, tmp_path / "a.pt")
    assert convert(tmp_path / "a.pt", tmp_path / "a.safetensors").is_file()


def test_code_other_suffixes_and_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    torch.save({"state_dict": Code()}, tmp_path / "code.pt")
    with pytest.raises(ValueError, match="expected a pickled state dict of tensors"):
        convert(tmp_path / "code.pt", tmp_path / "out.safetensors")
    with pytest.raises(ValueError, match=r"out\.pt: expected a name that ends in \.safetensors"):
        convert(tmp_path / "code.pt", tmp_path / "out.pt")
    files = [str(tmp_path / "none.pt"), str(tmp_path / "out.safetensors")]
    result = CliRunner().invoke(app, ["convert", *files, "--kind", "reward"])
    assert result.exit_code == 2 and "expected a checkpoint file, got none there" in result.stderr
    assert "run" not in capsys.readouterr().out
    assert not (tmp_path / "out.safetensors").exists()
