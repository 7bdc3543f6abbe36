"""What the options of `mmspec train` name: jobs, examples, devices, licences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption
from mmspec.cli.options import ZOO, check_choice, is_of_zoo, split_pairs
from mmspec.vlm.drafters.kinds import trained_kinds

if TYPE_CHECKING:
    from mmspec.vlm.training.data import TrainingData
    from mmspec.vlm.training.job import Job


def job_of(**fields: Any) -> Job:
    """The job of these fields.   Raises BadOption for what it refuses."""
    from mmspec.vlm.training.job import Job

    check_choice(trained_kinds(), kind=fields["kind"])
    for name in ("start", "reference"):
        if fields[name] is not None and not (fields[name] / "config.json").is_file():
            raise BadOption(
                f"--{name}: expected a folder with a saved drafter, got {str(fields[name])!r}, name another"
            )
    try:
        return Job(**fields)
    except ValueError as error:
        raise BadOption(f"--{error}") from error


def sizes_of(texts: list[str]) -> tuple[tuple[str, Any], ...]:
    """Names and values of NAME=VALUE; numbers and true and false are read as such."""
    found = []
    for name, value in split_pairs("--size", texts, "NAME=VALUE", "write for example latents=16"):
        try:
            found.append((name, json.loads(value)))
        except ValueError:
            found.append((name, value))
    return tuple(found)


def check_sizes(job: Job, model: Any) -> None:
    """Raises BadOption for sizes that a new drafter of this kind refuses; nothing is allocated."""
    import torch

    from mmspec.vlm.admission import take_apart
    from mmspec.vlm.drafters.kinds import untrained

    if job.start is not None or not job.sizes:
        return
    try:
        with torch.device("meta"):
            untrained(job.kind, take_apart(model), dict(job.sizes))
    except (ValueError, TypeError) as error:
        raise BadOption(f"--size: {str(error).removeprefix('sizes: ')}, correct it") from error


def own_prompts_of(data: str) -> int:
    """The N of own:N, 0 for other data.   Raises BadOption where N is no number above 0."""
    if not data.startswith("own:"):
        return 0
    count = data.removeprefix("own:")
    if not count.isdecimal() or int(count) < 1:
        raise BadOption(f"--data: expected own:N with a number of prompts, got {data!r}, correct it")
    return int(count)


def data_of(data: str, texts: Path | None, held_out: int, seed: int) -> TrainingData:
    """The zoo's examples or a file's.   Raises BadOption for what is no file."""
    from mmspec.vlm.training.data import TrainingData
    from mmspec.vlm.training.data import load_training_data as read

    if data == ZOO:
        if texts is not None:
            raise BadOption("--texts: expected --data FILE beside it, got the zoo's own examples, leave it out")
        from mmspec.zoo.training.vlm.drafter_recipes import IMAGE_REQUESTS, TEXT_REQUESTS
        from mmspec.zoo.training.vlm.drafter_requests import HeldOutRequests, SceneRequests, TextRequests

        pictures = SceneRequests(IMAGE_REQUESTS)
        return TrainingData(pictures, pictures, TextRequests(TEXT_REQUESTS), HeldOutRequests(held_out), "Apache-2.0")
    for name, file in (("--data", Path(data)), ("--texts", texts)):
        if file is not None and not file.is_file():
            raise BadOption(
                f"{name}: expected 'zoo', own:N or a JSONL file, got {str(file)!r}, which is none, correct it"
            )
    return read(Path(data), texts, held_out, seed)


def device_of(name: str) -> tuple[Any, bool]:
    """Where this process computes, and whether it is the one that tells.   Raises BadOption for a GPU that is not there."""
    import torch

    from mmspec.vlm.training.run_setup import process_state

    if name == "cuda" and not torch.cuda.is_available():
        raise BadOption("--device: expected cpu or an available cuda device, got 'cuda', use --device cpu")
    found = process_state(cpu=name == "cpu" or not torch.cuda.is_available())
    return found.device, found.is_main_process


def licence_of(target: str) -> str | None:
    """What the target's own card says its licence is."""
    if is_of_zoo(target):
        return "Apache-2.0"
    from mmspec.io.readers import read_text

    card = Path(target) / "README.md"
    if not Path(target).is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            card = Path(hf_hub_download(target, "README.md"))
        except (HfHubHTTPError, LocalEntryNotFoundError):  # a model without a card
            return None
    lines = read_text(card).splitlines() if card.is_file() else []
    header = lines[1 : lines.index("---", 1)] if lines[:1] == ["---"] and "---" in lines[1:] else []
    return next((line.partition(":")[2].strip() or None for line in header if line.startswith("license:")), None)
