"""`mmspec export`: a trained drafter as the files that a serving engine reads."""

from __future__ import annotations

from pathlib import Path

from mmspec.cli.command import command
from mmspec.cli.console import refusing, say, spinner
from mmspec.cli.options import check_choice, check_range, open_resources
from mmspec.cli.terminal import say_next
from mmspec.methods import methods

_FACTS = {method.name: method.facts.get("engines", ()) for method in methods("vlm", "drafter")}
ENGINES = tuple(sorted({engine for engines in _FACTS.values() for engine in engines}))
LAYERS = "speculators"  # the engine whose drafters are layers of the target's class
DTYPES = ("bfloat16", "float16", "float32")


def _kinds() -> str:
    kinds = {engine: ", ".join(name for name, engines in _FACTS.items() if engine in engines) for engine in ENGINES}
    return "; ".join(f"{engine} takes {names}" for engine, names in kinds.items())


@command(engines=lambda: " or ".join(ENGINES), kinds=_kinds, dtypes=lambda: ", ".join(DTYPES))
def export(
    folder: str,
    *,
    engine: str = "vllm",
    verifier: str,
    out: Path,
    tokens: int | None = None,
    positions: int | None = None,
    dtype: str = DTYPES[0],
) -> None:
    """Write a trained drafter as the files that a serving engine reads.

    Args:
        folder (FOLDER): Drafter: a folder that `mmspec train` wrote, a published drafter, or zoo:NAME.
        engine (--for ENGINE): Engine: {engines}. {kinds}.
        verifier (ID): Target as the engine finds it: a folder or a hub id. Its config and its embedding are read; for an MTP
            layer the whole target is loaded.
        out (OUT): Folder to write.
        tokens (N): Draft tokens by default; the kind's own number when left out.
        positions (N): Longest context; the target's when left out.
        dtype (D): Precision of the written weights: {dtypes}.

    Examples:
        mmspec export my-eagle --for vllm --verifier Qwen/Qwen3-8B --out served
        mmspec export my-eagle --for sglang --verifier TARGET --out served --tokens 5
    """
    check_choice(ENGINES, **{"for": engine})  # the option's name is a word of the language
    check_choice(DTYPES, dtype=dtype)
    check_range(1, tokens=tokens, positions=positions)
    import torch

    from mmspec.vlm import load_drafter
    from mmspec.vlm.export import export_drafter

    with spinner("writing the drafter"), refusing():
        model = open_resources(verifier, "--verifier").model if engine == LAYERS else None
        written = export_drafter(
            load_drafter(folder, target=model),
            out,
            engine=engine,
            verifier=verifier,
            dtype=getattr(torch, dtype),
            speculative_tokens=tokens,
            max_position_embeddings=positions,
        )
    say(f"{folder}: written for {engine} to {written}")
    say_next(f"mmspec check {verifier} --drafter {folder}")
