"""The job, the examples, the device and the licence that the options of `mmspec train` name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption
from mmspec.cli.options import ZOO, check_choice, is_of_zoo, placement_of, split_pairs
from mmspec.vlm.drafters.drafter_names import SMALL, trained_kinds

if TYPE_CHECKING:
    from mmspec.vlm.training.data import TrainingData
    from mmspec.vlm.training.job import Job


def job_of(**fields: Any) -> Job:
    from mmspec.vlm.training.job import Job

    check_choice((*trained_kinds(), SMALL), kind=fields["kind"])
    for name in ("start", "reference"):
        if fields[name] is None or (fields["kind"] == SMALL and str(fields[name]).startswith("zoo:")):
            continue
        if not (fields[name] / "config.json").is_file():
            raise BadOption(
                f"--{name}: expected a folder with a saved drafter, got {str(fields[name])!r}, name another"
            )
    try:
        return Job(**fields)
    except ValueError as error:
        raise BadOption(f"--{error}") from error


def sizes_of(texts: list[str]) -> tuple[tuple[str, Any], ...]:
    """Return the names and values of NAME=VALUE texts; numbers, true and false become JSON values."""
    sizes = []
    for name, value in split_pairs("--size", texts, "NAME=VALUE", "write for example latents=16"):
        try:
            sizes.append((name, json.loads(value)))
        except ValueError:
            sizes.append((name, value))
    return tuple(sizes)


def check_sizes(job: Job, model: Any) -> None:
    """Refuse sizes that a new drafter of the job's kind does not take; nothing is allocated."""
    import torch

    from mmspec.vlm.admission import take_apart
    from mmspec.vlm.drafters.drafter_names import untrained

    if job.start is not None or not job.sizes:
        return
    try:
        with torch.device("meta"):
            untrained(job.kind, take_apart(model), dict(job.sizes))
    except (ValueError, TypeError) as error:
        raise BadOption(f"--size: {str(error).removeprefix('sizes: ')}, correct it") from error


def own_prompts_of(data: str) -> int:
    """Return the N of own:N, 0 for other data."""
    if not data.startswith("own:"):
        return 0
    count = data.removeprefix("own:")
    if not count.isdecimal() or int(count) < 1:
        raise BadOption(f"--data: expected own:N with a number of prompts, got {data!r}, correct it")
    return int(count)


def data_of(data: str, texts: Path | None, held_out: int, seed: int) -> TrainingData:
    """Return the examples of the zoo or of the file `data`, with those without images from the file `texts` (None for
    none). `seed` chooses which `held_out` examples are kept from training."""
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
    """Return the device of this process, not a GPU by its number, and whether it is the main process, which prints."""
    from mmspec.vlm.training.run_setup import process_state

    device = placement_of(name).device
    if ":" in device:
        number = device.partition(":")[2]
        raise BadOption(
            f"--device: expected auto, cpu or cuda, got {name!r}, set CUDA_VISIBLE_DEVICES={number} instead"
        )
    state = process_state(cpu=device == "cpu")
    return state.device, state.is_main_process


def licence_of(target: str) -> str | None:
    """Return the licence in the card of the target, None where it names none."""
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
