"""Faster kernels for what an autoencoder does to small frames on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def small_frames(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Inside, norms over channels of float32 on a CPU take a few times less, and so do convolutions without gradients.

    PyTorch leaves 3D convolutions of few values to a kernel that takes five times as long as oneDNN's, and its norm over a
    dimension that is not the last does not vectorise. Values differ in rounding only.
    """
    lean = device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return _SmallFrames() if lean else nullcontext()


class _SmallFrames(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        own = {F.normalize: _normalize, F.conv3d: _conv3d}.get(func, func)
        if own is _conv3d and torch.is_grad_enabled():
            own = func
        return own(*args, **(kwargs or {}))


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    if p != 2 or out is not None:
        return F.normalize(x, p, dim, eps, out)
    return x / x.square().sum(dim, keepdim=True).sqrt().clamp_min(eps)


def _conv3d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    if x.dtype != torch.float32 or isinstance(padding, str) or x.ndim != 5:
        return F.conv3d(x, weight, bias, stride, padding, dilation, groups)
    stride, padding, dilation = (_three(value) for value in (stride, padding, dilation))
    return torch.mkldnn_convolution(x, weight, bias, padding, stride, dilation, groups)


def _three(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) * 3 if isinstance(value, int) else tuple(value)
