"""`mmspec convert`: a published pickle into safetensors, once and in a place that the user trusts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.console import BadOption, refusing, reports_errors, screen
from mmspec.cli.options import check_at_least, flag_of


@dataclass(frozen=True, slots=True)
class PickleKind:
    """Published pickles that one function converts.

    Args:
        function: `MODULE:FUNCTION`.
        heads: The config fields that hold the number of attention heads.
        options: The options that the function takes.
    """

    function: str
    heads: tuple[str, ...] = ()
    options: tuple[str, ...] = ("heads", "dtype")


KINDS = {
    "llamagen": PickleKind(
        "mmspec.imagegen.llamagen.load:convert_llamagen", ("n_head",), ("heads", "image_size", "dtype")
    ),
    "mar": PickleKind("mmspec.imagegen.continuous.mar.load:convert_mar", ("encoder_num_heads", "decoder_num_heads")),
    "wan": PickleKind("mmspec.video.wan.checkpoints:convert_wan", ("num_heads",)),
    "reward": PickleKind("mmspec.video.rewards.state_dicts:convert_reward", options=()),
}
DTYPES = ("float32", "bfloat16", "float16")


@reports_errors
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .pt, .pth or .ckpt file as it is published.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; of a reward the .safetensors file.")],
    kind: Annotated[
        str,
        typer.Option(
            help="llamagen (transformer or VQ tokenizer), mar (model or autoencoder), wan (Self-Forcing, CausVid) or "
            "reward (ImageReward, HPSv2)."
        ),
    ],
    heads: Annotated[
        int | None, typer.Option(metavar="N", help="Attention heads, for sizes that were not published.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="N", help="Of llamagen: pixels a side, where the file's name does not say it.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="D", help=f"Of the written weights: {', '.join(DTYPES)}; else the file's own.")
    ] = None,
) -> None:
    """Convert a published pickle into safetensors; code in the file is not run."""
    if kind not in KINDS:
        raise BadOption(f"--kind: expected one of {', '.join(KINDS)}, got {kind!r}, choose one")
    values = {"heads": heads, "image_size": image_size, "dtype": dtype}
    for name, value in values.items():
        if value is not None and name not in KINDS[kind].options:
            flag = flag_of(name)
            raise BadOption(f"{flag}: expected another kind than {kind}, got {value!r}, leave {flag} out")
    for flag, value in (("--heads", heads), ("--image-size", image_size)):
        check_at_least(flag, 1 if value is None else value, 1)
    if dtype not in (None, *DTYPES):
        raise BadOption(f"--dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}, choose one")
    with refusing():
        written = _convert(KINDS[kind], file, out, values)
    screen().print(f"{file}: written to {written}", markup=False, soft_wrap=True)


def _convert(kind: PickleKind, file: Path, out: Path, values: dict[str, int | str | None]) -> Path:
    import torch

    options = {}
    if values["heads"] is not None:
        options["config"] = dict.fromkeys(kind.heads, values["heads"])
    if values["image_size"] is not None:
        options["image_size"] = values["image_size"]
    if values["dtype"] is not None:
        options["dtype"] = getattr(torch, values["dtype"])
    module, _, name = kind.function.partition(":")
    return getattr(import_module(module), name)(file, out, **options)
