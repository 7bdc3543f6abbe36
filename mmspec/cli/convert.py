"""`mmspec convert`: a published pickle or GGUF file as safetensors, converted once where the user trusts the file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, refusing, say, spinner
from mmspec.cli.options import check_choice, check_left_out, check_range
from mmspec.cli.terminal import say_next


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of published file, with the function that converts it."""

    function: str  # `MODULE:FUNCTION`
    heads: tuple[str, ...] = ()  # config fields with the number of attention heads
    options: tuple[str, ...] = ("heads", "dtype")  # that the function takes


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


@command(dtypes=lambda: ", ".join(DTYPES))
def convert(
    file: Path,
    place: Path | None = None,
    *,
    out: Path | None = None,
    kind: str | None = None,
    heads: int | None = None,
    image_size: int | None = None,
    dtype: str | None = None,
) -> None:
    """Convert a published pickle or GGUF file into safetensors without running code of the file.

    Args:
        file (FILE): Published .pt, .pth, .ckpt or .gguf file.
        place ([OUT]): Folder to write; for a reward the .safetensors file.
        out (OUT): The same as the argument OUT.
        kind (NAME): Kind of the file: llamagen (transformer or VQ tokenizer), mar (model or autoencoder), wan (Self-Forcing,
            CausVid), reward (ImageReward, HPSv2) or gguf (Llama, Qwen2, Qwen3, Gemma 2 and 3). A GGUF file needs no --kind.
        heads (N): Number of attention heads, for sizes that were not published.
        image_size (N): Pixels a side of a llamagen model, where the file's name does not hold them.
        dtype (D): Precision of the written weights: {dtypes}. When left out the file's own, for a GGUF file float32.

    Examples:
        mmspec convert FILE.gguf --out FOLDER
        mmspec convert c2i_L_256.pt FOLDER --kind llamagen
        mmspec convert ImageReward.pt imagereward.safetensors --kind reward
    """
    if (place is None) == (out is None):
        got = "none" if out is None else f"{str(place)!r} and {str(out)!r}"
        raise BadOption(f"OUT: expected one folder to write, as argument or as --out, got {got}, name one")
    kind = kind or _kind_of(file)
    if kind is None:
        raise BadOption(f"--kind: expected one of {', '.join(KINDS)}, got none, choose one")
    check_choice(KINDS, kind=kind)
    values = {"heads": heads, "image_size": image_size, "dtype": dtype}
    others = {name: value for name, value in values.items() if name not in KINDS[kind].options}
    check_left_out(others, f"another kind than {kind}, got {{value}}")
    check_range(1, heads=heads, image_size=image_size)
    check_choice(DTYPES, dtype=dtype)
    with spinner(f"converting {file}"), refusing():
        written = _convert(KINDS[kind], file, out or place, values)
    say(f"{file}: written to {written}")
    if kind == "gguf":
        say_next(f"mmspec check {written}")


def _kind_of(file: Path) -> str | None:
    """Return the kind of a file that shows its kind itself, None for other files."""
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
