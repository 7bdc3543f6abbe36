"""`mmspec caption`: one answer about one or several pictures."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, refusing, save_json, say, screen, spinner
from mmspec.cli.options import ZOO, check_drafter, check_range, drawn_seed, open_resources

if TYPE_CHECKING:
    from mmspec.core.stats import Stats
    from mmspec.evaluate.vlm.resources import VlmResources

DRAFTED, OWN = "green", "bold yellow"  # styles of streamed text


@command()
def caption(
    images: list[str], *, prompt: str = "Describe this picture in detail.", drafter: str | None = None,
    temperature: float = 0.0, seed: int | None = None, max_new_tokens: int = 192, model: str = ZOO, stream: bool = False,
    json: Path | None = None,
) -> None:  # fmt: skip
    """Describe pictures, or answer a question about them, with drafted decoding.

    Args:
        images (IMAGE): PNG, JPEG or WebP; several make one prompt.
        prompt: What to ask about the pictures.
        temperature: 0 takes the most probable token; above 0 samples.
        seed: Seed of a sampled answer; drawn and printed when left out.
        model: 'zoo', 'vlm/smol', a folder, or a hub id 'owner/name' (downloads it).
        stream (--stream): Show the text as it grows, drafts in colour.
    """
    check_range(0, temperature=temperature, seed=seed)
    check_range(1, max_new_tokens=max_new_tokens)
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
    record = {"images": images, "prompt": prompt, "model": resources.name, "drafter": name, "temperature": temperature,
              "seed": seed, "text": text, **figures(stats, seconds)}  # fmt: skip
    _print(record, stream)
    save_json(json, record)


def _answer(
    resources: VlmResources, pictures: tuple, prompt: str, name: str, temperature: float, seed: int | None, limit: int,
    stream: bool,
) -> tuple[str, float, Stats]:  # fmt: skip
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
        say("" if stream else text)
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
    say("" if streamed else record["text"])
    seed = "" if record["seed"] is None else f", seed {record['seed']}"
    say(
        f"{record['tokens']} tokens in {record['seconds']} s, {record['tokens_per_second']} tokens/s, "
        f"{record['accept_length']} tokens per target pass ({record['target_passes']} passes), "
        f"drafter {record['drafter']} ({'exact' if record['exact'] else 'relaxed'}), "
        f"temperature {record['temperature']:g}{seed}; {record['model']}",
        "dim",
    )
