"""Nothing speaks with a network unless a hub id was named: not an import, and not a model of the zoo."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.house.tree import ROOT

# an audit hook hears of every socket of the process, whoever opens it, and cannot be taken off
CODE = """
import sys
heard = []
def hook(event, given):
    if not event.startswith("socket.") or event in ("socket.__new__", "socket.gethostname"):
        return
    if event == "socket.bind" and given[1] == ("::1", 0):
        return  # urllib3 tries once whether the machine has IPv6 at all; nobody is spoken with
    hosts = {{one[0] if isinstance(one, tuple) and one else one for one in given}}
    if not ({local} and "127.0.0.1" in hosts):
        heard.append((event, str(given)[:80]))
sys.addaudithook(hook)
{work}
assert not heard, heard
print("quiet")
"""
IMPORTS = """
import importlib, pkgutil
import mmspec
names = ("core", "kernels", "vlm", "imagegen", "video", "zoo", "evaluate", "attach", "certify", "check", "cli")
for name in names:
    package = importlib.import_module("mmspec." + name)
    for one in getattr(package, "__all__", ()):
        getattr(package, one)
for one in mmspec.__all__:
    getattr(mmspec, one)
"""
ZOO = """
import mmspec
for name in mmspec.zoo.names():
    mmspec.zoo.load(name)
"""
CHECK = """
from mmspec.check import check
assert check("zoo:vlm").comparison.identical
assert check("zoo:t2i").supported
try:
    check("owner/model")
except ValueError as error:
    assert "nothing is fetched unasked" in str(error)
"""
WEB = """
from pathlib import Path
import os
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
from mmspec.web.app import build
from mmspec.web.limits import Limits
from mmspec.web.model_cache import ModelCache
from mmspec.web.tabs.controls import PageContext
build(PageContext(ModelCache(), Limits(), Path("runs"), Path("uploads")))
"""


SERVED = """
from pathlib import Path
from urllib.request import urlopen
from mmspec.web.server import serving
from mmspec.web.model_cache import ModelCache
with serving(ModelCache(), runs=Path("runs")) as address:
    assert urlopen(address).status == 200
"""


def run(work: str, local: bool = False) -> subprocess.CompletedProcess[str]:
    # online, as far as libraries are told: what is offline because it was told to be proves nothing
    told = ("PYTHONPATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    env = {name: value for name, value in os.environ.items() if name not in told}
    command = [sys.executable, "-c", CODE.format(work=work, local=local)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.whole
@pytest.mark.parametrize("work", [IMPORTS, ZOO, CHECK], ids=["imports", "zoo", "check"])
def test_no_socket_is_used(work: str) -> None:
    done = run(work)
    assert done.returncode == 0 and done.stdout.endswith("quiet\n"), done.stderr


@pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra `web`")
def test_the_app_is_built_without_a_socket() -> None:
    done = run(WEB)
    assert done.returncode == 0 and done.stdout.endswith("quiet\n"), done.stderr


@pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra `web`")
def test_the_app_is_served_and_speaks_with_this_machine_alone() -> None:
    done = run(SERVED, local=True)
    assert done.returncode == 0 and done.stdout.endswith("quiet\n"), done.stderr


@pytest.mark.parametrize(
    "work",
    [
        "import socket\ntry: socket.create_connection(('127.0.0.1', 1), 0.1)\nexcept OSError: pass",
        "import socket\nsocket.getaddrinfo('localhost', 80)",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('127.0.0.1', 0))",
    ],
    ids=["connect", "lookup", "bind"],
)
def test_a_socket_that_is_used_is_heard(work: str) -> None:
    done = run(work)
    assert done.returncode != 0 and "socket." in done.stderr


def test_lookups_of_other_machines_fail_where_only_the_local_machine_is_allowed() -> None:
    work = "import socket\nfor host in ('127.0.0.1', '192.0.2.1'):\n    socket.getaddrinfo(host, 80)"
    done = run(work, local=True)
    assert done.returncode != 0 and "192.0.2.1" in done.stderr and "127.0.0.1" not in done.stderr
