"""`--device` and `--dtype`: where a model computes, and in which precision; and a clock that waits for the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16")
DEVICE_HELP = "Device of the model: auto, cpu, cuda or cuda:N; auto takes an available GPU."
DTYPE_HELP = (
    f"Precision of the weights: auto, {', '.join(DTYPES[:-1])} or {DTYPES[-1]}; auto is the precision of the files."
)
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class Placement:
    device: str  # "cpu", "cuda" or "cuda:N"
    dtype: str = AUTO  # "auto" for the precision of the files

    def moved(self, part: Any) -> Any:
        """Return a pipeline or a model on the device and in the precision; on the CPU with "auto" nothing moves."""
        if self.device == "cpu" and self.dtype == AUTO:
            return part
        import torch

        if self.dtype == AUTO:
            return part.to(device=torch.device(self.device))
        return part.to(device=torch.device(self.device), dtype=getattr(torch, self.dtype))


def placement_of(device: str, dtype: str = AUTO) -> Placement:
    """Return the placement that --device (auto, cpu, cuda or cuda:N) and --dtype name; the device "auto" is the first
    GPU, or the CPU."""
    if dtype not in (known := (AUTO, *DTYPES)):
        raise ValueError(f"--dtype: expected one of {', '.join(known)}, got {dtype!r}, choose one")
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"--device: expected one of auto, cpu, cuda or cuda:N, got {device!r}, choose one")
    if device == "cpu":
        return Placement(device, dtype)
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == AUTO:
        return Placement("cuda" if count else "cpu", dtype)
    if int(device.partition(":")[2] or 0) >= count:
        there = ", ".join(f"cuda:{index}" for index in range(count)) or "none"
        advice = "use --device cpu" if not count else "name one of these"
        raise ValueError(f"--device: expected an available cuda device, got {device!r} (available: {there}), {advice}")
    return Placement(device, dtype)


def inputs_on(inputs: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return the inputs of a model: tensors on its device, pixels in its precision too; other values as they are."""
    return {name: _fitted(value, model) for name, value in inputs.items()}


def _fitted(value: Any, model: Any) -> Any:
    if not hasattr(value, "is_floating_point"):
        return value
    return value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)


def clock(device: torch.device) -> float:
    """Return the seconds of `perf_counter` once a device has finished its work; a GPU works on while Python goes on."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return perf_counter()


def weights_of(resources: Any) -> dict[str, str]:
    """Return the precision and the device of the model of resources, by name as records hold them."""
    model = resources.model
    dtype = model.dtype if hasattr(model, "dtype") else next(model.transformer.parameters()).dtype
    return {"dtype": str(dtype).removeprefix("torch."), "device": device_name(model.device)}


def device_name(device: torch.device) -> str:
    """Return the name of a device for records; a GPU has its product name too, since seconds depend on it."""
    if device.type != "cuda":
        return str(device)
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"
