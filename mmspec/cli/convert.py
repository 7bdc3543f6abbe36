"""`mmspec convert`: a published pickle or GGUF file into safetensors, once and in a place that the user trusts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.console import BadOption, refusing, reports_errors, screen
from mmspec.cli.options import check_at_least, flag_of


@dataclass(frozen=True, slots=True)
class FileKind:
    """Published files that one function converts.

    Args:
        function: `MODULE:FUNCTION`.
        heads: The config fields that hold the number of attention heads.
        options: The options that the function takes.
    """

    function: str
    heads: tuple[str, ...] = ()
    options: tuple[str, ...] = ("heads", "dtype")


KINDS = {
    "llamagen": FileKind(
        "mmspec.imagegen.llamagen.load:convert_llamagen", ("n_head",), ("heads", "image_size", "dtype")
    ),
    "mar": FileKind("mmspec.imagegen.continuous.mar.load:convert_mar", ("encoder_num_heads", "decoder_num_heads")),
    "wan": FileKind("mmspec.video.wan.checkpoints:convert_wan", ("num_heads",)),
    "reward": FileKind("mmspec.video.rewards.state_dicts:convert_reward", options=()),
    "gguf": FileKind("mmspec.io.gguf_convert:convert_gguf", options=("dtype",)),
}
DTYPES = ("float32", "bfloat16", "float16")


@reports_errors
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .pt, .pth, .ckpt or .gguf file as it is published.")],
    place: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OUT]", help="The folder to write; of a reward the .safetensors file.", show_default=False
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="OUT", help="The same as the argument OUT.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="llamagen (transformer or VQ tokenizer), mar (model or autoencoder), wan (Self-Forcing, CausVid), "
            "reward (ImageReward, HPSv2) or gguf (Llama, Qwen2, Qwen3, Gemma 2 and 3; a GGUF file needs no --kind)."
        ),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(metavar="N", help="Attention heads, for sizes that were not published.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="N", help="Of llamagen: pixels a side, where the file's name does not say it.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="D",
            help=f"Of the written weights: {', '.join(DTYPES)}; else the file's own, of a GGUF file float32.",
        ),
    ] = None,
) -> None:
    """Convert a published pickle or GGUF file into safetensors; code in the file is not run."""
    if (place is None) == (out is None):
        got = "none" if out is None else f"{str(place)!r} and {str(out)!r}"
        raise BadOption(f"OUT: expected one folder to write, as argument or as --out, got {got}, name one")
    kind = kind or _kind_of(file)
    if kind not in KINDS:
        got = "none" if kind is None else repr(kind)
        raise BadOption(f"--kind: expected one of {', '.join(KINDS)}, got {got}, choose one")
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
        written = _convert(KINDS[kind], file, out or place, values)
    screen().print(f"{file}: written to {written}", markup=False, soft_wrap=True)


def _kind_of(file: Path) -> str | None:
    """The kind of a file that says by itself what it is."""
    from mmspec.io.gguf import SUFFIX, is_gguf

    return "gguf" if file.suffix == SUFFIX or is_gguf(file) else None


def _convert(kind: FileKind, file: Path, out: Path, values: dict[str, int | str | None]) -> Path:
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
