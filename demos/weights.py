"""Which weights an example runs: the zoo's, those of a folder, or those of a hub id. Nothing is fetched unasked."""

from __future__ import annotations

import argparse
from pathlib import Path


def options(description: str) -> argparse.ArgumentParser:
    """What every example takes: `--zoo`, or `--model FOLDER`, or `--hub OWNER/NAME`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--zoo", action="store_true", help="the small model that ships with the package")
    one.add_argument("--model", metavar="FOLDER", help="a folder with weights")
    one.add_argument("--hub", metavar="OWNER/NAME", help="a repository of the hub, which is downloaded")
    return parser


def source(args: argparse.Namespace, needs: str) -> str:
    """The folder or hub id; ends with one sentence where there is none. needs: what the example runs on."""
    if args.hub:
        return args.hub
    if args.model is None or not Path(args.model).is_dir():
        got = "no model" if args.model is None else f"no folder {args.model}"
        raise SystemExit(f"expected {needs}, got {got}; name it with --model FOLDER, let --hub OWNER/NAME fetch it, or "
                         "try --zoo")  # fmt: skip
    return args.model
