"""`mmspec export`: a trained drafter in the files that a serving engine reads."""

from __future__ import annotations

from pathlib import Path

from mmspec.cli.command import command
from mmspec.cli.console import refusing, say
from mmspec.cli.options import check_choice, check_range, open_resources
from mmspec.methods import methods

_FACTS = {one.name: one.facts.get("engines", ()) for one in methods("vlm", "drafter")}
ENGINES = tuple(sorted({engine for engines in _FACTS.values() for engine in engines}))
LAYERS = "speculators"  # the engine whose drafters are layers of the target's class
DTYPES = ("bfloat16", "float16", "float32")


def _kinds() -> str:
    """The kinds of drafters by engine, for the help text."""
    kinds = {engine: ", ".join(name for name, engines in _FACTS.items() if engine in engines) for engine in ENGINES}
    return "; ".join(f"{engine} takes {names}" for engine, names in kinds.items())


@command(engines=" or ".join(ENGINES), kinds=_kinds(), dtypes=", ".join(DTYPES))
def export(
    folder: str, *, engine: str = "vllm", verifier: str, out: Path, tokens: int | None = None,
    positions: int | None = None, dtype: str = DTYPES[0],
) -> None:  # fmt: skip
    """Write a trained drafter the way a serving engine reads it: {kinds}.

    Args:
        folder (FOLDER): A drafter that `mmspec train` has saved, a published one, or zoo:NAME.
        engine (--for ENGINE): {engines}.
        verifier (ID): The target, as the engine is to find it: a folder or a hub id. Its config is read, and its embedding;
            for an MTP layer it is loaded.
        out (OUT): The folder to write.
        tokens (N): Drafted by default; the kind's own number when left out.
        positions (N): The longest context; the target's when left out.
        dtype (D): Of the written weights: {dtypes}.
    """
    check_choice(ENGINES, **{"for": engine})  # the option's name is a word of the language
    check_choice(DTYPES, dtype=dtype)
    check_range(1, tokens=tokens, positions=positions)
    import torch

    from mmspec.vlm import load_drafter
    from mmspec.vlm.export import export_drafter

    with refusing():
        model = open_resources(verifier, "--verifier").model if engine == LAYERS else None
        written = export_drafter(
            load_drafter(folder, target=model), out, engine=engine, verifier=verifier, dtype=getattr(torch, dtype),
            speculative_tokens=tokens, max_position_embeddings=positions,
        )  # fmt: skip
    say(f"{folder}: written for {engine} to {written}")
