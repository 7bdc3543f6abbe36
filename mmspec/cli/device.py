"""`--device` and `--dtype`: where the model of a command computes, and in which precision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mmspec.cli.console import BadOption
from mmspec.cli.options import check_choice

AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and the precision of a model.

    Attributes:
        device: "cpu", "cuda" or "cuda:N".
        dtype: The precision, "auto" for the precision of the files.
    """

    device: str
    dtype: str = AUTO

    def moved(self, part: Any) -> Any:
        """Return a pipeline or a model on the device and in the precision; on the CPU with "auto" nothing moves."""
        if self.device == "cpu" and self.dtype == AUTO:
            return part
        import torch

        if self.dtype == AUTO:
            return part.to(device=torch.device(self.device))
        return part.to(device=torch.device(self.device), dtype=getattr(torch, self.dtype))


def placement_of(device: str, dtype: str = AUTO) -> Placement:
    """Return the placement that the options name.

    Args:
        device: The value of --device.
        dtype: The value of --dtype.

    Raises:
        BadOption: An option has another form, or the machine has no such device.
    """
    check_choice((AUTO, *DTYPES), dtype=dtype)
    return Placement(checked_device(device), dtype)


def checked_device(name: str) -> str:
    """Return the device of a --device option; "auto" is the first GPU, or the CPU where there is no GPU.

    Args:
        name: auto, cpu, cuda or cuda:N.

    Raises:
        BadOption: The name has another form, or the machine has no such device.
    """
    if not _DEVICE.fullmatch(name):
        raise BadOption(f"--device: expected one of auto, cpu, cuda or cuda:N, got {name!r}, choose one")
    if name == "cpu":
        return name
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == AUTO:
        return "cuda" if count else "cpu"
    number = int(name.partition(":")[2] or 0)
    if number >= count:
        there = ", ".join(f"cuda:{index}" for index in range(count)) or "none"
        advice = "use --device cpu" if not count else "name one of these"
        raise BadOption(f"--device: expected an available cuda device, got {name!r} (available: {there}), {advice}")
    return name
