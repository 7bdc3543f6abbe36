"""`mmspec demo`: three held-out pictures captioned by transformers and by drafted decoding, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.caption import legend, text_streamer
from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, progress, save_json, say, screen, spinner
from mmspec.cli.options import ZOO, check_drafter, check_range, open_resources, placement_of, recommended_drafter
from mmspec.cli.terminal import has_colour, say_next

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.run.compare import Comparison
    from mmspec.run.timed_run import TimedRun
    from mmspec.run.vlm_models import VlmResources

REPEATS = 3
_REQUEST = "Describe this picture in detail."
_WARM = 4  # tokens that both ways decode before the first picture is timed


@command()
def demo(
    *,
    folder: Path = Path("mmspec-demo"),
    drafter: str | None = None,
    max_new_tokens: int = 192,
    device: str = "auto",
    dtype: str = "auto",
    json: Path | None = None,
) -> None:
    """Caption three pictures plainly and drafted, and see that the text is the same and takes less time.

    A terminal with colours shows the accepted draft tokens while the text grows. Elsewhere every caption is timed three
    times and printed whole. The pictures come from mmspec's own world, and nothing is downloaded.

    Args:
        folder (FOLDER): Folder for the three pictures.
        drafter (NAME): Drafter, such as eagle, msd, vispec, lookup or small; auto to choose by measured time; or a folder
            with a saved drafter. The zoo's recommendation when left out.

    Examples:
        mmspec demo
        mmspec demo --drafter lookup
        mmspec demo --json demo.json
    """
    check_range(1, max_new_tokens=max_new_tokens)
    placement = placement_of(device, dtype)
    drafter = check_drafter(drafter)
    check_writable(json)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"--folder: expected a folder that can be written, got {str(folder)!r} ({error.strerror}), name another"
        ) from error
    resources = open_resources(ZOO, dtype=placement.dtype)
    resources.place(placement)
    drafter = drafter or recommended_drafter(resources) or "auto"
    pictures = _draw(folder)
    is_live = has_colour()
    decode = _decode_live if is_live else _decode
    runs = decode(resources, pictures, drafter, max_new_tokens)
    records = [_record(path, resources, pair) for (path, _), pair in zip(pictures, runs, strict=True)]
    record = {"model": resources.name, "drafter": drafter, "scenes": records, **_summary(records)}
    _print(record, is_live)
    save_json(json, record)
    if record["identical"] < len(records):
        raise ValueError(
            f"expected identical texts for all {len(records)} pictures, got them for {record['identical']}, "
            "report this with the pictures"
        )
    say_next(f"mmspec caption {pictures[0][0]} --stream")


def _draw(folder: Path) -> list[tuple[Path, Image]]:
    """Render the scenes to files, and read them with the checks that users' pictures pass."""
    from mmspec.io.files import replacing
    from mmspec.io.images import open_image
    from mmspec.run.scenes import demo_scenes
    from mmspec.zoo.world.render import render

    paths = []
    for number, scene in enumerate(demo_scenes(), 1):
        path = folder / f"scene-{number}.png"
        with replacing(path) as temporary:
            render(scene).save(temporary)
        paths.append(path)
    return [(path, open_image(path)) for path in paths]


def _encoded(resources: VlmResources, picture: Image) -> dict:
    from mmspec.run.placement import inputs_on
    from mmspec.run.vlm_requests import VlmPrompt, encode

    return inputs_on(encode(resources.processor, [VlmPrompt(_REQUEST, (picture,))]), resources.model)


def _decode(resources: VlmResources, pictures: list[tuple[Path, Image]], drafter: str, limit: int) -> list[Comparison]:
    """Decode every picture in turns and warmed up; return the run of transformers and the drafted run of median time."""
    from mmspec.evaluate.engine.runs import interleave
    from mmspec.run.compare import Comparison
    from mmspec.run.vlm_runs import run_ours, run_peer

    arguments = {"max_new_tokens": limit, "do_sample": False}
    chosen = resources.drafter(drafter)
    runners = {
        "plain": lambda inputs, seed: run_peer(resources.model, inputs, seed, **arguments),
        "drafted": lambda inputs, seed: run_ours(resources.model, inputs, seed, chosen, "exact", **arguments),
    }
    cases = [_encoded(resources, picture) for _, picture in pictures]
    with progress() as bar:
        task = bar.add_task("captioning", total=len(runners) * (1 + REPEATS * len(cases)))
        results = interleave(cases, runners, repeats=REPEATS, on_run=lambda name: bar.advance(task))
    return [Comparison(*(_median_run(results[name][case]) for name in runners)) for case in range(len(cases))]


def _median_run(attempts: list) -> TimedRun:
    from mmspec.evaluate.engine.runs import Failure

    for attempt in attempts:
        if isinstance(attempt, Failure):
            raise ValueError(attempt.reason)
    return sorted(attempts, key=lambda run: run.seconds)[len(attempts) // 2]


def _decode_live(
    resources: VlmResources, pictures: list[tuple[Path, Image]], drafter: str, limit: int
) -> list[Comparison]:
    """Decode every picture once with each of both ways, and show the drafted text while it grows."""
    from mmspec.run.compare import Comparison
    from mmspec.run.vlm_runs import run_ours, run_peer

    model, chosen = resources.model, resources.drafter(drafter)
    cases = [(path, _encoded(resources, picture)) for path, picture in pictures]
    with spinner("warming up"):
        run_peer(model, cases[0][1], max_new_tokens=_WARM, do_sample=False)
        run_ours(model, cases[0][1], 0, chosen, "exact", max_new_tokens=_WARM, do_sample=False)
    say("A small vision-language model of mmspec's own world of shapes and digits describes three pictures.")
    screen().print(legend())
    pairs = []
    for path, inputs in cases:
        say(f"\n{path}", "bold")
        streamer = text_streamer(resources)
        drafted = run_ours(model, inputs, 0, chosen, "exact", streamer=streamer, max_new_tokens=limit, do_sample=False)
        say("")
        with spinner("the same by transformers.generate"):
            plain = run_peer(model, inputs, max_new_tokens=limit, do_sample=False)
        pairs.append(Comparison(plain, drafted))
        say_scene(_record(path, resources, pairs[-1]))
    return pairs


def _record(path: Path, resources: VlmResources, pair: Comparison) -> dict:
    plain, drafted = pair.plain, pair.drafted
    tokens = len(drafted.output[0])
    return {
        "image": str(path),
        "text": resources.processor.tokenizer.decode(drafted.output[0], skip_special_tokens=True).strip(),
        "tokens": tokens,
        "plain_tokens_per_second": round(len(plain.output[0]) / plain.seconds, 1),
        "drafted_tokens_per_second": round(tokens / drafted.seconds, 1),
        "speedup_vs_hf": round(plain.seconds / drafted.seconds, 2),
        "accept_length": round(drafted.accept_length, 2),
        "identical": pair.identical,
    }


def _summary(records: list[dict]) -> dict:
    ratios = sorted(record["speedup_vs_hf"] for record in records)
    return {
        "identical": sum(record["identical"] for record in records),
        "speedup_vs_hf": ratios[len(ratios) // 2],
        "accept_length": round(sum(record["accept_length"] for record in records) / len(records), 2),
    }


def _print(record: dict, is_live: bool) -> None:
    """Print the captions with their figures, where they are not on the screen yet, and the summary."""
    if not is_live:
        say(f"Model: {record['model']}, a small model of mmspec's own world of shapes and digits.")
        for scene in record["scenes"]:
            say(f"\n{scene['image']}", "bold")
            say(scene["text"])
            say_scene(scene)
    say(
        f"\n{record['identical']} of {len(record['scenes'])} texts identical to plain decoding, "
        f"{record['speedup_vs_hf']}x its speed (median), {record['accept_length']} tokens per target pass, "
        f"drafter {record['drafter']}.",
        "bold",
    )


def say_scene(scene: dict) -> None:
    say(
        f"  plain        {scene['plain_tokens_per_second']} tokens/s (transformers.generate)\n"
        f"  speculative  {scene['drafted_tokens_per_second']} tokens/s ({scene['speedup_vs_hf']}x)\n"
        f"  accept length  {scene['accept_length']} tokens per target pass, {scene['tokens']} tokens"
    )
    say("  identical: " + ("yes" if scene["identical"] else "no"), "green" if scene["identical"] else "red")
