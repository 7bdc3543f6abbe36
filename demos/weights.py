"""The weights of an example: from the zoo, from a folder, or from a hub id. Only `--hub` downloads anything."""

from __future__ import annotations

import argparse
from pathlib import Path


def options(description: str) -> argparse.ArgumentParser:
    """Return the parser that all examples share: `--zoo`, `--model FOLDER` or `--hub OWNER/NAME`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--zoo", action="store_true", help="the small model that ships with the package")
    choice.add_argument("--model", metavar="FOLDER", help="a folder with weights")
    choice.add_argument("--hub", metavar="OWNER/NAME", help="a repository of the hub, which is downloaded")
    return parser


def source(args: argparse.Namespace, needs: str) -> str:
    """Return the folder or hub id of the arguments of `options`, or end the program with a sentence that says which
    weights the example `needs`."""
    if args.hub:
        return args.hub
    if args.model is None or not Path(args.model).is_dir():
        got = "no model" if args.model is None else f"no folder {args.model}"
        raise SystemExit(
            f"expected {needs}, got {got}; name it with --model FOLDER, let --hub OWNER/NAME fetch it, or try --zoo"
        )
    return args.model
