"""A step that draws through torch, with uniforms of our own in the place of its draws."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmspec.kernels.sample import sample_categorical


class Given(TorchFunctionMode):
    """Inside `with Given(uniforms)` torch.rand, rand_like and multinomial take the next of these uniforms, in order.

    uniforms: float64 [A].   torch.multinomial of one draw is made by inversion of what it is given, which is scaled to 1 as
    torch does. Raises ValueError for draws that cannot be made of these uniforms: other kinds, or more of them.
    """

    def __init__(self, uniforms: Tensor):
        super().__init__()
        self.uniforms, self.used = uniforms, 0

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        if func is torch.rand_like:
            return self._take(args[0].shape)
        if func is torch.rand:
            return self._take(torch.Size(args[0] if args and not isinstance(args[0], int) else args))
        if func is torch.multinomial:
            return self._multinomial(*args, **kwargs)
        if getattr(func, "__name__", "") in _DRAWS:
            raise ValueError(f"torch.{func.__name__}: expected draws by rand, rand_like or multinomial, got another; let the "
                             "step draw for itself, and be sampled")  # fmt: skip
        return func(*args, **kwargs)

    def _take(self, shape: torch.Size) -> Tensor:
        count = shape.numel()
        if self.used + count > len(self.uniforms):
            raise ValueError(f"uniforms: expected at most {len(self.uniforms)} draws, got more")
        self.used += count
        return self.uniforms[self.used - count : self.used].reshape(shape)

    def _multinomial(self, weight: Tensor, num_samples: int, *_: object, **__: object) -> Tensor:
        if num_samples != 1:
            raise ValueError(f"torch.multinomial: expected one draw a row, got {num_samples}; let the step be sampled")
        return sample_categorical(weight, self._take(weight.shape[:-1]))[..., None]


_DRAWS = {"bernoulli", "bernoulli_", "exponential_", "normal", "poisson", "rand_like", "randint", "randn", "randn_like",
          "uniform_"}  # fmt: skip
