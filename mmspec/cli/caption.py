"""`mmspec caption`: an answer about one or several pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, progress, refusing, save_json, say, screen, spinner
from mmspec.cli.options import (
    ZOO,
    check_drafter,
    check_range,
    drawn_seed,
    open_resources,
    placement_of,
    recommended_drafter,
)
from mmspec.cli.terminal import is_for_people, say_next

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.core.round.stats import Stats
    from mmspec.run.placement import Placement
    from mmspec.run.timed_run import TimedRun
    from mmspec.run.vlm_models import VlmResources

DRAFTED, OWN = "green", "bold yellow"  # styles of streamed text
_WARM = 4  # tokens that both ways decode once before --compare times them


@command()
def caption(
    images: list[str],
    *,
    prompt: str = "Describe this picture in detail.",
    drafter: str | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
    max_new_tokens: int = 192,
    model: str = ZOO,
    stream: bool = False,
    compare: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    json: Path | None = None,
) -> None:
    """Describe pictures, or answer a question about them, in fewer passes of the model and with the same text.

    Args:
        images (IMAGE): Picture file: PNG, JPEG or WebP; several files make one prompt.
        prompt (TEXT): Question or request about the pictures.
        drafter (NAME): Drafter, such as eagle, msd, vispec, lookup or small; auto to choose by measured time; none for plain
            decoding; or a folder with a saved drafter. When left out, the zoo's recommendation for its models, else auto.
        temperature (T): 0 takes the most probable token; above 0 samples.
        seed (N): Seed of a sampled answer; drawn and printed when left out.
        model (NAME): Model: zoo, vlm/smol, a folder, or a hub id owner/name, which is downloaded.
        stream (--stream): Show the text while it grows, accepted draft tokens in colour.
        compare (--compare): Also decode plainly, and print both times and their ratio.

    Examples:
        mmspec zoo scene --out scene.png
        mmspec caption scene.png --stream
        mmspec caption scene.png --prompt "How many objects are there?" --compare
    """
    check_range(0, temperature=temperature, seed=seed)
    check_range(1, max_new_tokens=max_new_tokens)
    placement = placement_of(device, dtype)
    drafter = check_drafter(drafter)
    check_writable(json)
    pictures = tuple(map(_picture, images))
    if temperature > 0:
        seed = drawn_seed(seed)
    resources = open_resources(model, dtype=placement.dtype)
    if not resources.takes_pictures:
        raise BadOption(f"--model: expected a model that takes pictures and text, got {model!r}, use another")
    # the sampled text of a seed depends on where drafts end: only a fixed drafter gives it again
    name = drafter or recommended_drafter(resources) or ("auto" if temperature == 0 else "lookup")
    request = _opened(resources, placement, pictures, prompt, temperature, seed, max_new_tokens)
    plain = request.plain(name) if compare else None
    answer = request.answer(name, stream)
    record = {
        "images": images,
        "prompt": prompt,
        "model": resources.name,
        "drafter": name,
        "temperature": temperature,
        "seed": seed,
        "text": answer.text,
        **figures(answer.stats, answer.run.seconds),
    }
    if plain is not None:
        record["plain"] = plain_figures(answer, plain)
    _print(record, stream)
    save_json(json, record)
    say_next(
        "mmspec check MODEL  (MODEL: a folder or a hub id)" if compare else f"mmspec caption {images[0]} --compare"
    )


def _picture(path: str) -> Image:
    from mmspec.io.images import open_image

    if not Path(path).exists():
        raise BadOption(
            f"IMAGE: expected a picture file, got {path!r} (no such file), check the path or draw an example with "
            "`mmspec zoo scene --out scene.png`"
        )
    with refusing():
        return open_image(path)


@dataclass(frozen=True, slots=True)
class CaptionAnswer:
    """A decoded answer, the text without special tokens."""

    text: str
    run: TimedRun
    stats: Stats


@dataclass(frozen=True, slots=True)
class CaptionRequest:
    """A request to a loaded model, which may be decoded with several drafters."""

    resources: VlmResources
    inputs: dict[str, Any]  # of `generate` on the model's device
    settings: dict[str, Any]  # the other arguments of `generate`

    def answer(self, name: str, stream: bool) -> CaptionAnswer:
        """Decode; stream the text to the screen or show a bar."""
        with refusing():
            drafter = self.resources.drafter(name)
        if stream:
            if is_for_people():
                screen().print(legend())
            return self._decoded(drafter, text_streamer(self.resources))
        with _token_bar(self.settings["max_new_tokens"]) as counter:
            return self._decoded(drafter, counter)

    def plain(self, name: str) -> CaptionAnswer:
        """Decode without drafts, behind a few tokens that warm up both ways."""
        with refusing():
            drafter = self.resources.drafter(name)
        with spinner("decoding plainly"):
            for way in (drafter, None):
                self._decoded(way, None, max_new_tokens=min(_WARM, self.settings["max_new_tokens"]))
            return self._decoded(None, None)

    def _decoded(self, drafter: Any, streamer: Any, **changed: Any) -> CaptionAnswer:
        from time import perf_counter

        import mmspec
        from mmspec.run.timed_run import timed_run

        settings = {**self.inputs, **self.settings, **changed}
        began = perf_counter()
        out = mmspec.generate(self.resources.model, drafter=drafter, streamer=streamer, return_dict=True, **settings)
        tokens = out.sequences[0, self.inputs["input_ids"].shape[1] :].tolist()
        seconds = perf_counter() - began
        text = self.resources.tokenizer.decode(tokens, skip_special_tokens=True).strip()
        if out.errors:
            say("" if hasattr(streamer, "tokenizer") else text)
            raise ValueError("; ".join(out.errors.values()))
        return CaptionAnswer(text, timed_run(out.stats, (tuple(tokens),), seconds), out.stats)


def _opened(
    resources: VlmResources,
    placement: Placement,
    pictures: tuple,
    prompt: str,
    temperature: float,
    seed: int | None,
    limit: int,
) -> CaptionRequest:
    from mmspec.run.placement import inputs_on
    from mmspec.run.vlm_requests import VlmPrompt, encode
    from mmspec.run.vlm_runs import sampling_arguments

    with refusing():
        inputs = encode(resources.processor, [VlmPrompt(prompt, pictures)])
    resources.place(placement)
    inputs = inputs_on(inputs, resources.model)
    return CaptionRequest(resources, inputs, {"max_new_tokens": limit, "seed": seed, **sampling_arguments(temperature)})


class _TokenCounter:
    """A streamer that moves a bar."""

    def __init__(self, advance: Any):
        self.advance = advance

    def put(self, value: Any) -> None:
        """Skip the prompt."""

    def put_run(self, run: list[int], accepted: int) -> None:
        self.advance(len(run))

    def end(self) -> None:
        """Do nothing: the bar ends with its block."""


@contextmanager
def _token_bar(limit: int) -> Iterator[_TokenCounter]:
    with progress() as bar:
        task = bar.add_task("tokens, at most", total=limit)
        yield _TokenCounter(lambda count: bar.advance(task, count))


def text_streamer(resources: VlmResources) -> object:
    """Return a streamer that prints accepted draft tokens and the target's own tokens in their colours."""
    from rich.text import Text

    from mmspec.vlm.streaming import TextRuns

    out = screen()

    def write(text: str, drafted: bool) -> None:
        out.print(Text(text, style=DRAFTED if drafted else OWN), end="", soft_wrap=True)

    return TextRuns(resources.tokenizer, write)


def legend() -> Any:
    from rich.text import Text

    return Text.assemble(("accepted draft tokens", DRAFTED), ", ", ("the target's own tokens", OWN), style="dim")


def figures(stats: Stats, seconds: float) -> dict:
    """Return the figures of a request, rounded once for the screen and the file."""
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


def plain_figures(drafted: CaptionAnswer, plain: CaptionAnswer) -> dict:
    """Return the figures of plain decoding beside a drafted answer."""
    from mmspec.run.compare import Comparison

    pair = Comparison(plain.run, drafted.run)
    return {
        "tokens": plain.run.tokens,
        "seconds": round(plain.run.seconds, 4),
        "target_passes": plain.run.target_passes,
        "speedup": round(pair.speedup, 2),
        "identical": pair.identical,
    }


def _print(record: dict, streamed: bool) -> None:
    say("" if streamed else record["text"])
    seed = "" if record["seed"] is None else f", seed {record['seed']}"
    say(
        f"{record['tokens']} tokens in {record['seconds']} s: {record['target_passes']} target passes instead of "
        f"{record['tokens']}, {record['accept_length']} tokens per target pass\n"
        f"drafter {record['drafter']} ({'exact' if record['exact'] else 'relaxed'}), "
        f"temperature {record['temperature']:g}{seed}; {record['model']}",
        "dim",
    )
    if plain := record.get("plain"):
        same = "the same text" if plain["identical"] else f"another text ({plain['tokens']} tokens)"
        say(
            f"plain decoding: {plain['seconds']} s, {same}; drafted decoding is {plain['speedup']} times as fast",
            "bold",
        )
