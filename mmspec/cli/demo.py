"""`mmspec demo`: three held-out pictures captioned by transformers and by drafted decoding, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.command import command
from mmspec.cli.console import check_writable, progress, refusing, save_json, say
from mmspec.cli.options import ZOO, check_drafter, check_range, open_resources

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.evaluate.engine.runs import TimedRun
    from mmspec.evaluate.vlm.resources import VlmResources

REPEATS = 3
_REQUEST = "Describe this picture in detail."


@command()
def demo(
    *, folder: Path = Path("mmspec-demo"), drafter: str = "auto", max_new_tokens: int = 192, json: Path | None = None
) -> None:  # fmt: skip
    """Caption three held-out pictures plainly and drafted, and show that the text is the same.

    Args:
        folder: Where the pictures are written.
    """
    check_range(1, max_new_tokens=max_new_tokens)
    drafter = check_drafter(drafter)
    check_writable(json)
    with refusing():
        folder.mkdir(parents=True, exist_ok=True)
    resources = open_resources(ZOO)
    pictures = _draw(folder)
    runs = _decode(resources, [picture for _, picture in pictures], drafter, max_new_tokens)
    records = [_record(path, resources, *pair) for (path, _), pair in zip(pictures, runs, strict=True)]
    record = {"model": resources.name, "drafter": drafter, "scenes": records, **_summary(records)}
    _print(record)
    save_json(json, record)
    if record["identical"] < len(records):
        raise ValueError(
            f"expected identical texts for all {len(records)} pictures, got them for {record['identical']}, "
            "report this with the pictures"
        )


def _draw(folder: Path) -> list[tuple[Path, Image]]:
    """Renders the scenes to files and reads them back through the gate that users' pictures go through."""
    from mmspec.evaluate.vlm.requests import demo_scenes
    from mmspec.io.files import replacing
    from mmspec.io.images import open_image
    from mmspec.zoo.world.render import render

    paths = []
    for number, scene in enumerate(demo_scenes(), 1):
        path = folder / f"scene-{number}.png"
        with replacing(path) as temporary:
            render(scene).save(temporary)
        paths.append(path)
    return [(path, open_image(path)) for path in paths]


def _decode(
    resources: VlmResources, pictures: list[Image], drafter: str, limit: int
) -> list[tuple[TimedRun, TimedRun]]:
    """(transformers, drafted) per picture, each the run of median time; warmed up and in turns."""
    from mmspec.evaluate.engine.runs import interleave
    from mmspec.evaluate.vlm.requests import VlmPrompt, encode
    from mmspec.evaluate.vlm.runner import run_ours, run_peer

    arguments = {"max_new_tokens": limit, "do_sample": False}
    chosen = resources.drafter(drafter)
    runners = {
        "plain": lambda inputs, seed: run_peer(resources.model, inputs, seed, **arguments),
        "drafted": lambda inputs, seed: run_ours(resources.model, inputs, seed, chosen, "exact", **arguments),
    }
    cases = [encode(resources.processor, [VlmPrompt(_REQUEST, (picture,))]) for picture in pictures]
    with progress() as bar:
        task = bar.add_task("captioning", total=len(runners) * (1 + REPEATS * len(cases)))
        results = interleave(cases, runners, repeats=REPEATS, on_run=lambda name: bar.advance(task))
    return [tuple(_median_run(results[name][case]) for name in runners) for case in range(len(cases))]


def _median_run(attempts: list) -> TimedRun:
    from mmspec.evaluate.engine.runs import Failure

    for one in attempts:
        if isinstance(one, Failure):
            raise ValueError(one.reason)
    return sorted(attempts, key=lambda run: run.seconds)[len(attempts) // 2]


def _record(path: Path, resources: VlmResources, plain: TimedRun, drafted: TimedRun) -> dict:
    tokens = len(drafted.output[0])
    return {
        "image": str(path),
        "text": resources.processor.tokenizer.decode(drafted.output[0], skip_special_tokens=True).strip(),
        "tokens": tokens,
        "plain_tokens_per_second": round(len(plain.output[0]) / plain.seconds, 1),
        "drafted_tokens_per_second": round(tokens / drafted.seconds, 1),
        "speedup_vs_hf": round(plain.seconds / drafted.seconds, 2),
        "accept_length": round(drafted.accept_length, 2),
        "identical": plain.output == drafted.output,
    }


def _summary(records: list[dict]) -> dict:
    ratios = sorted(record["speedup_vs_hf"] for record in records)
    return {
        "identical": sum(record["identical"] for record in records),
        "speedup_vs_hf": ratios[len(ratios) // 2],
        "accept_length": round(sum(record["accept_length"] for record in records) / len(records), 2),
    }


def _print(record: dict) -> None:
    say(f"Model: {record['model']}, a small model of mmspec's own world of shapes and digits.")
    for one in record["scenes"]:
        say(f"\n{one['image']}", "bold")
        say(
            f"{one['text']}\n"
            f"  plain        {one['plain_tokens_per_second']} tokens/s (transformers.generate)\n"
            f"  speculative  {one['drafted_tokens_per_second']} tokens/s ({one['speedup_vs_hf']}x)\n"
            f"  accept length  {one['accept_length']} tokens per target pass, {one['tokens']} tokens"
        )
        say("  identical: " + ("yes" if one["identical"] else "no"), "green" if one["identical"] else "red")
    say(
        f"\n{record['identical']} of {len(record['scenes'])} texts identical to plain decoding, "
        f"{record['speedup_vs_hf']}x its speed (median), {record['accept_length']} tokens per target pass, "
        f"drafter {record['drafter']}.",
        "bold",
    )
