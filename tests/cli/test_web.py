"""`mmspec web` refuses in one sentence what it cannot serve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from tests.house.tree import ROOT

runner = CliRunner()


def refused(*words: str) -> str:
    result = runner.invoke(app, ["web", *words])
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("missing", ("gradio", "matplotlib"))
def test_a_missing_package_reports_its_install_command(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    assert refused() == f'Error: web: expected {missing}, got none, pip install "mmspec[web]"'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "0"), "--port: expected 1 to 65535, got 0"),
        (("--port", "70000"), "--port: expected 1 to 65535"),
        (("--seconds", "0"), "--seconds: expected a number above 0"),
        (("--seconds", "nan"), "--seconds: expected a number above 0"),
        (("--waiting", "0"), "--waiting: expected a number of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(words: tuple[str, ...], said: str) -> None:
    assert said in refused(*words)


def test_help_needs_no_gradio_and_names_the_extra() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from mmspec.cli import app\n"
            "try: app(['web', '--help'])\n"
            "except SystemExit: pass\n"
            "assert 'gradio' not in sys.modules and 'torch' not in sys.modules",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "mmspec[web]" in done.stdout and "--port" in done.stdout


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command's process and the address that it serves."""
    command = [sys.executable, "-m", "mmspec", "web", "--runs", str(tmp_path)]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}  # gradio's own, which come and go
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving on http://127.0.0.1:"), (line, process.stderr.read() if process.poll() else "")
        yield process, line.split()[2].rstrip(";")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra `web`")
def test_the_command_serves_until_it_is_interrupted(served) -> None:
    process, address = served
    with urllib.request.urlopen(address, timeout=120) as page:
        assert page.status == 200
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and rest.strip().endswith("Stopped.") and errors == ""


@pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra `web`")
def test_a_visitor_who_waits_and_a_stored_upload_do_not_keep_the_command_from_ending_well(served) -> None:
    process, address = served
    form = b'--B\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nx\r\n--B--\r\n'
    (stored,) = post(f"{address}gradio_api/upload", form, "multipart/form-data; boundary=B")
    with urllib.request.urlopen(f"{address}config", timeout=120) as page:
        number = next(entry["id"] for entry in json.load(page)["dependencies"] if entry["api_name"] == "pareto")
    call = {"data": ["none"], "fn_index": number, "session_hash": "waits"}
    post(f"{address}gradio_api/queue/join", json.dumps(call).encode(), "application/json")
    stream = f"{address}gradio_api/queue/data?session_hash=waits"
    with urllib.request.urlopen(stream, timeout=120) as first:
        assert b"process_completed" in first.read()
    with urllib.request.urlopen(stream, timeout=120) as second:  # nothing is to come, and it waits
        process.send_signal(signal.SIGTERM)
        second.read()  # raises IncompleteRead where the connection is cut
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and rest.strip().endswith("Stopped.") and errors == ""
    assert not Path(stored).parents[1].exists()


def post(address: str, body: bytes, content_type: str) -> Any:
    request = urllib.request.Request(address, body, {"content-type": content_type})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)
