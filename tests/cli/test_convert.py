"""`mmspec convert` refuses options that a kind of pickle does not have. Each domain's tests convert real files."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mmspec.cli import app


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kind", "vae"), "--kind: expected one of llamagen, mar, wan, reward, gguf, got 'vae'"),
        (("--kind", "reward", "--heads", "2"), "--heads: expected another kind than reward"),
        (("--kind", "reward", "--dtype", "float16"), "--dtype: expected another kind than reward"),
        (("--kind", "wan", "--image-size", "256"), "--image-size: expected another kind than wan"),
        (("--kind", "mar", "--heads", "0"), "--heads: expected a number of at least 1"),
        (("--kind", "mar", "--dtype", "int8"), "--dtype: expected one of float32, bfloat16, float16, got 'int8'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["convert", "weights.pt", "out", *options])
    assert result.exit_code == 2 and message in result.stderr
