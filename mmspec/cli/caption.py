"""`mmspec caption`: one answer about one or several pictures."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import BadOption, check_writable, refusing, reports_errors, save_json, screen, spinner
from mmspec.cli.options import (
    ZOO,
    Drafter,
    Json,
    MaxNewTokens,
    check_at_least,
    check_drafter,
    drawn_seed,
    open_resources,
)

if TYPE_CHECKING:
    from mmspec.core.stats import Stats
    from mmspec.evaluate.vlm.resources import VlmResources

DRAFTED, OWN = "green", "bold yellow"  # styles of streamed text


@reports_errors
def caption(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="PNG, JPEG or WebP; several make one prompt.")],
    prompt: Annotated[str, typer.Option(help="What to ask about the pictures.")] = "Describe this picture in detail.",
    drafter: Drafter = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token; above 0 samples.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Seed of a sampled answer; drawn and printed when left out.")] = None,
    max_new_tokens: MaxNewTokens = 192,
    model: Annotated[
        str, typer.Option(help="'zoo', 'vlm/smol', a folder, or a hub id 'owner/name' (downloads it).")
    ] = ZOO,
    stream: Annotated[bool, typer.Option("--stream", help="Show the text as it grows, drafts in colour.")] = False,
    json: Json = None,
) -> None:
    """Describe pictures, or answer a question about them, with drafted decoding."""
    check_at_least("--temperature", temperature, 0)
    check_at_least("--max-new-tokens", max_new_tokens, 1)
    check_at_least("--seed", seed or 0, 0)
    drafter = check_drafter(drafter)
    check_writable(json)
    from mmspec.io.images import open_image

    with refusing():
        pictures = tuple(open_image(path) for path in images)
    if temperature > 0:
        seed = drawn_seed(seed)
    resources = open_resources(model)
    if not resources.takes_pictures:
        raise BadOption(f"--model: expected a model that takes pictures and text, got {model!r}, use another")
    # what a sampled answer of a seed says depends on where drafts end: a fixed drafter gives it again
    name = drafter or ("auto" if temperature == 0 else "eagle" if resources.is_zoo else "lookup")
    text, seconds, stats = _answer(resources, pictures, prompt, name, temperature, seed, max_new_tokens, stream)
    record = {
        "images": images,
        "prompt": prompt,
        "model": resources.name,
        "drafter": name,
        "temperature": temperature,
        "seed": seed,
        "text": text,
        **figures(stats, seconds),
    }
    _print(record, stream)
    save_json(json, record)


def _answer(
    resources: VlmResources,
    pictures: tuple,
    prompt: str,
    name: str,
    temperature: float,
    seed: int | None,
    limit: int,
    stream: bool,
) -> tuple[str, float, Stats]:
    """The text, the seconds of the call and its statistics."""
    from time import perf_counter

    import mmspec
    from mmspec.evaluate.vlm.requests import VlmPrompt, encode
    from mmspec.evaluate.vlm.runner import sampling_arguments

    with refusing():
        inputs = encode(resources.processor, [VlmPrompt(prompt, pictures)])
        chosen = resources.drafter(name)
    streamer = _streamer(resources) if stream else None
    arguments = {**inputs, "max_new_tokens": limit, **sampling_arguments(temperature)}
    began = perf_counter()
    with nullcontext() if stream else spinner("generating"):
        out = mmspec.generate(
            resources.model, drafter=chosen, seed=seed, streamer=streamer, return_dict=True, **arguments
        )
    seconds = perf_counter() - began
    new = out.sequences[0, inputs["input_ids"].shape[1] :]
    text = resources.tokenizer.decode(new, skip_special_tokens=True).strip()
    if out.errors:
        screen().print("" if stream else text, markup=False, soft_wrap=True)
        raise ValueError("; ".join(out.errors.values()))
    return text, seconds, out.stats


def _streamer(resources: VlmResources) -> object:
    from rich.text import Text

    from mmspec.vlm.streaming import TextRuns

    out = screen()

    def write(text: str, drafted: bool) -> None:
        out.print(Text(text, style=DRAFTED if drafted else OWN), end="", soft_wrap=True)

    if out.is_terminal:
        out.print(Text.assemble(("drafted and accepted", DRAFTED), ", ", ("the target's own token", OWN), style="dim"))
    return TextRuns(resources.tokenizer, write)


def figures(stats: Stats, seconds: float) -> dict:
    """What a request cost, rounded once for the screen and the file."""
    tokens = sum(stats.emitted)
    parts = ("prefill", "draft", "target", "verify", "other")
    return {
        "tokens": tokens,
        "seconds": round(seconds, 4),
        "tokens_per_second": round(tokens / seconds, 1),
        "target_passes": stats.target_passes,
        "drafter_passes": stats.drafter_passes,
        "accept_length": round(stats.accept_length, 3),
        "exact": stats.exact,
        **{f"{part}_s": round(getattr(stats, f"{part}_s"), 4) for part in parts},
    }


def _print(record: dict, streamed: bool) -> None:
    out = screen()
    out.print("" if streamed else record["text"], markup=False, soft_wrap=True)
    seed = "" if record["seed"] is None else f", seed {record['seed']}"
    law = "exact" if record["exact"] else "relaxed"
    out.print(
        f"{record['tokens']} tokens in {record['seconds']} s, {record['tokens_per_second']} tokens/s, "
        f"{record['accept_length']} tokens per target pass ({record['target_passes']} passes), "
        f"drafter {record['drafter']} ({law}), temperature {record['temperature']:g}{seed}; {record['model']}",
        style="dim", markup=False, soft_wrap=True,
    )  # fmt: skip
