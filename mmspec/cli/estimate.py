"""`mmspec estimate`: the estimated gain of drafting on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, quiet_transformers, refusing, save_json, say, spinner
from mmspec.cli.estimate_views import estimate_panels, show_table
from mmspec.cli.options import check_left_out, check_range, split_numbers
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import countdown, say_next

if TYPE_CHECKING:
    from mmspec.estimate.acceptance import AcceptanceCurve
    from mmspec.estimate.device import Device
    from mmspec.estimate.drafters import DrafterCost
    from mmspec.estimate.model_cost import ModelCost
    from mmspec.estimate.round_cost import MeasuredPasses, Request

_MODELS = "llava-1.5-7b, qwen2.5-vl-7b, qwen3.5-9b, llamagen-xl, llamagen-3b and wan-14b"
_PUBLISHED_LENGTH = 5  # draft levels of a published accept length without --length
_PROBE = 20.0


@command(models=lambda: _MODELS)
def estimate(
    model: str | None = None,
    *,
    drafter: str = "eagle",
    device: str = "h100",
    acceptance: str | None = None,
    bench: Path | None = None,
    row: str | None = None,
    accept_length: float | None = None,
    label: str = "",
    length: int | None = None,
    tree: int | None = None,
    batch: int = 1,
    context: int = 128,
    pictures: int = 0,
    picture_tokens: int | None = None,
    new_tokens: int = 256,
    dtype: str = "bfloat16",
    threads: int | None = None,
    timed_passes: bool = False,
    published: bool = False,
    validate: bool = False,
    prompts: int = 6,
    repeats: int = 2,
    json: Path | None = None,
    markdown: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Estimate the gain of drafting on another machine, from a config, a device's figures and an acceptance curve.

    Nothing is decoded and no weights are read: all figures are estimates. --validate instead measures this machine, and
    compares estimates from a probe and counted operators with benches of the zoo.

    Args:
        model (MODEL): Model: a folder with a config.json, that file, a model of the zoo, or {models}.
        drafter (NAME): Drafter or decoding of `mmspec methods`; small@MODEL is another model that drafts.
        device (NAME): Device: h100, a100, 4090, l4, or here for this machine, which is measured for 20 seconds.
        acceptance (A,A,...): Acceptance rate of each draft token once all tokens before it are accepted.
        bench (FILE): Read the acceptance rates from a bench's JSON, or by position from the records of a run (JSONL).
        row (KEY): Row of that file.
        accept_length (N): Derive the acceptance rates from a published accept length, the target's own value included.
        label (TEXT): Paper or table of that accept length.
        length (N): Draft levels, also of the drafts behind --accept-length; the fastest number when left out.
        tree (N): Draft nodes; a chain of --length when left out.
        batch (N): Requests at once.
        context (N): Text tokens of the prompt.
        pictures (N): Pictures of the prompt.
        picture_tokens (N): Tokens of a picture, for models of pictures of any size.
        new_tokens (N): Tokens of the answer.
        dtype (NAME): Precision of weights and cache: bfloat16, float16 or float32.
        threads (N): Threads of torch, with --device here and --validate.
        timed_passes (--timed-passes): With --device here and a text model of the zoo, also time its passes over 1 to 64
            tokens; rounds are never timed.
        published (--published): Estimate all published models of the project, beside the figures of their papers.
        validate (--validate): Compare estimates with measurements on this machine; takes about half an hour.
        prompts (N): Prompts of every bench of --validate.
        repeats (N): Repeats of every request of --validate.

    Examples:
        mmspec estimate qwen2.5-vl-7b --drafter eagle3 --accept-length 3.4 --device h100
        mmspec estimate llava-1.5-7b --acceptance 0.8,0.7,0.6 --batch 4
        mmspec estimate vlm --drafter eagle --bench drafters.json --row eagle --device here
    """
    check_range(
        1,
        batch=batch,
        context=context,
        new_tokens=new_tokens,
        length=length,
        tree=tree,
        threads=threads,
        picture_tokens=picture_tokens,
        prompts=prompts,
        repeats=repeats,
    )
    check_range(0, pictures=pictures)
    check_writable(json, markdown, plot)
    if markdown is not None and not (validate or published):
        raise BadOption(f"--markdown: expected it with --validate or --published, got {str(markdown)!r}, leave it out")
    if timed_passes and (device != "here" or batch > 1):
        raise BadOption(f"--timed-passes: expected --device here and batch 1, got {device} and {batch}, leave it out")
    if plot is not None:
        _need_plots()
    quiet_transformers()
    if validate:
        _validate(prompts, repeats, threads or 1, json, markdown, plot)
        return
    if published:
        check_left_out({"MODEL": model, "plot": plot}, "no model with --published, got {value}")
        _published(json, markdown)
        return
    if model is None:
        raise BadOption(f"MODEL: expected a config, a model of the zoo or one of {_MODELS}, got none, name one")
    from mmspec.estimate.round_cost import Request, RoundCost
    from mmspec.estimate.table import estimate_table
    from mmspec.evaluate.base.provenance import threads as with_threads

    with refusing(), with_threads(threads):
        if _is_video(model):
            others = {"plot": plot, "bench": bench, "accept_length": accept_length}
            check_left_out(others, "a model of tokens, got {value}")
            _video(model, drafter, _device(device, dtype), acceptance, dtype, json)
            return
        curve = _curve(acceptance, bench, row, accept_length, label, length, tree)
        request = Request(batch, context, pictures, new_tokens, dtype)
        target, cost, small = _models(model, drafter, request, picture_tokens)
        passes = _timed_passes(model) if timed_passes else None
        costs = RoundCost(_device(device, dtype), target, cost, curve, small, passes)
        table = estimate_table(costs, request, length=length, nodes=tree)
    save_json(json, table.record())
    show_table(table)
    if plot is not None:
        from mmspec.evaluate.report.plots import draw

        draw(estimate_panels(table), plot)
    say_next("mmspec estimate --published")


def _need_plots() -> None:
    from mmspec.evaluate.report.style import need_matplotlib

    with refusing():
        need_matplotlib()


def _device(name: str, dtype: str) -> Device:
    from mmspec.estimate.device import HERE, device_of

    if name != HERE:
        return device_of(name)
    from mmspec.estimate.probe import probe

    with countdown("measuring this machine", _PROBE):
        return probe(_PROBE, (dtype,))


def _curve(
    acceptance: str | None,
    bench: Path | None,
    row: str | None,
    accept_length: float | None,
    label: str,
    length: int | None,
    tree: int | None,
) -> AcceptanceCurve:
    from mmspec.estimate.acceptance import AcceptanceCurve, curve_of_length, read_bench

    sources = {"--acceptance": acceptance, "--bench": bench, "--accept-length": accept_length}
    named = [flag for flag, value in sources.items() if value is not None]
    if len(named) != 1:
        raise BadOption(
            f"--acceptance: expected one of {', '.join(sources)}, got {' and '.join(named) or 'none'}, give one"
        )
    if bench is None:
        check_left_out({"row": row}, "it with --bench, got {value}")
    if accept_length is None:
        check_left_out({"label": label or None}, "it with --accept-length, got {value}")
    if length is None:
        check_left_out({"tree": tree}, "it with --length, got {value}")
    drafted = length or _PUBLISHED_LENGTH
    if acceptance is not None:
        chances = split_numbers("--acceptance", acceptance, float)
        return AcceptanceCurve(chances, "--acceptance", max((tree or 0) - len(chances), 0))
    if bench is not None:
        return read_bench(bench, row, drafted)
    return curve_of_length(accept_length, drafted, label, tree or 0)


def _models(
    model: str, drafter: str, request: Request, picture_tokens: int | None
) -> tuple[ModelCost, DrafterCost, ModelCost | None]:
    """Return the costs of the target, of the drafter, and of another model that drafts, None for other drafters."""
    from mmspec.estimate.drafters import drafter_cost

    name, _, other = drafter.partition("@")
    cost = drafter_cost(name)
    with spinner("counting a pass of the model"):
        target = _cost(model, picture_tokens)
        small = _cost(other, None) if other else None
    if request.pictures and not target.picture_rows:
        raise BadOption(
            f"--pictures: expected 0 for {target.name}, which sees none, got {request.pictures}, leave it out"
        )
    return target, cost, small


def _cost(model: str, picture_tokens: int | None) -> ModelCost:
    """Return the costs of a model, of the zoo too."""
    from dataclasses import replace

    from mmspec.estimate.named import named_cost
    from mmspec.zoo.files.registry import folder_with_weights
    from mmspec.zoo.files.table import MODELS

    if model not in MODELS:
        return named_cost(model, picture_tokens=picture_tokens)
    return replace(named_cost(str(folder_with_weights(model)), picture_tokens=picture_tokens), name=f"zoo {model}")


def _timed_passes(model: str) -> MeasuredPasses:
    """Return the seconds of passes of a text model by their number of tokens."""
    from statistics import median

    from mmspec.cli.options import open_resources
    from mmspec.estimate.counting import own_clock
    from mmspec.estimate.round_cost import MeasuredPasses
    from mmspec.evaluate.vlm.config import VlmBenchConfig
    from mmspec.evaluate.vlm.measured import pass_seconds
    from mmspec.evaluate.vlm.runner import cases

    resources = open_resources(model, "MODEL")
    config = VlmBenchConfig(suite="drafters" if resources.takes_pictures else "real", prompts=1, model=model)
    inputs = cases(resources, next(config.settings()))[0]
    seconds = pass_seconds(resources.model, inputs, clock=own_clock())
    return MeasuredPasses({values: median(some) for values, some in seconds.items()})


def _published(json: Path | None, markdown: Path | None) -> None:
    from dataclasses import asdict

    from mmspec.estimate.published_page import HEADS, published_estimates, rows
    from mmspec.estimate.published_page import markdown as as_markdown
    from mmspec.estimate.table import NOT_MEASURED
    from mmspec.io.files import write_text_atomic

    with spinner("counting passes of published models"):
        estimates = published_estimates()
    save_json(json, {"label": NOT_MEASURED, "rows": [asdict(row) for row in estimates]})
    if markdown is not None:
        write_text_atomic(markdown, as_markdown(estimates))
    print_table(f"published models: {NOT_MEASURED}", HEADS, rows(estimates))


def _is_video(model: str) -> bool:
    from mmspec.estimate.named import is_video
    from mmspec.estimate.published import CONFIGS

    return model in CONFIGS and is_video(CONFIGS[model])


def _video(model: str, drafter: str, device: Device, acceptance: str | None, dtype: str, json: Path | None) -> None:
    from mmspec.estimate.named import config_values, is_video
    from mmspec.estimate.table import NOT_MEASURED
    from mmspec.estimate.videos import BlockModel, estimate_video

    name, _, other = drafter.partition("@")
    shares = split_numbers("--acceptance", acceptance, float) or ()
    if len(shares) != 1:
        raise BadOption(f"--acceptance: expected the share of accepted blocks, got {acceptance}, give one number")
    small = config_values(other if name == "small" and other else "wan-1.3b")
    if not is_video(small):
        raise BadOption(f"--drafter: expected small@ and a video model, got {drafter!r}, name wan-1.3b")
    estimate = estimate_video(device, BlockModel.of(config_values(model)), BlockModel.of(small), shares[0], dtype=dtype)
    save_json(
        json,
        {"label": NOT_MEASURED, "model": model, "device": device.name, "acceptance": shares[0], **estimate.record()},
    )
    rows = [
        (f"{estimate.plain:.1f} s", f"{estimate.drafted:.1f} s", f"{estimate.speedup:.2f}", f"{estimate.eager:.2f}")
    ]
    print_table(
        f"{model} on {device.title}: {NOT_MEASURED}",
        ("target alone", "drafted", "x plain", "x plain, eager cache"),
        rows,
    )


def _validate(
    prompts: int, repeats: int, threads: int, json: Path | None, markdown: Path | None, plot: Path | None
) -> None:
    from mmspec.evaluate.machine.predicted import validate
    from mmspec.evaluate.machine.predicted_page import markdown_page, predicted_panels, table_rows
    from mmspec.io.files import write_text_atomic

    result = validate(prompts, repeats, thread_count=threads, on_part=lambda name: say(f"{name}: done", stderr=True))
    save_json(json, result)
    if markdown is not None:
        write_text_atomic(markdown, markdown_page(result))
    if plot is not None:
        from mmspec.evaluate.report.plots import draw

        draw(predicted_panels(result), plot)
    heads, rows = table_rows(result)
    print_table("predicted against measured on this machine", heads, rows)
