"""The cost of a model's pass from its config: a pass on the meta device is counted, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.layers.compat import CACHE
from mmspec.estimate.counting import WorkCounter
from mmspec.estimate.pictures import picture_work
from mmspec.estimate.work import BYTES, NOTHING, Work, product

_FIRST, _SECOND = 8, 24  # cached tokens of the counted passes; their difference is the cost of a token in the cache


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a mixture."""

    layers: int  # with experts
    count: int  # experts a layer
    chosen: int  # experts that a token passes through
    weights: tuple[tuple[int, int], ...]  # (inner, columns) of an expert's products

    def active(self, rows: float) -> float:
        """Return the expected experts a layer that any of `rows` tokens chooses, all equally likely as in MoESD."""
        return self.count * (1 - (1 - self.chosen / self.count) ** rows)

    def work(self, rows: float) -> Work:
        """Return the products of `rows` tokens, with a call each, as in grouped kernels."""
        active = self.active(rows)
        shared = {
            (rows * self.chosen / active, inner, columns): self.layers * active for inner, columns in self.weights
        }
        return Work(shared, calls=self.layers * len(self.weights))


@dataclass(frozen=True, slots=True)
class ModelCost:
    """The costs of a model; `layer` has the products of a decoder layer, for drafters with such a layer."""

    name: str
    products: Mapping[tuple[int, int], float]  # (inner, columns) -> number on every token's path, without head
    head: tuple[int, int]  # (inner, columns) of the product that gives the logits
    parameters: int  # shared parameters count once
    kept: float  # elements of a token in the cache
    states: float  # elements of the recurrent and convolution states of a request
    attention: float  # flops of a token per visible token
    touched: float  # elements per token that operators other than products and attention read and write
    calls: float  # operators of a pass, whatever its size, that compute
    views: float  # operators of a pass that only create views
    layers: int
    picture: Work = NOTHING  # the work of a picture up to its embeddings
    picture_rows: int = 0  # prompt tokens of a picture
    experts: Experts | None = None
    branches: int = 1  # passes per value, 2 with guidance, which run as a single pass over twice the rows
    layer: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def weight_bytes(self, dtype: str) -> float:
        return self.parameters * BYTES[dtype]

    def kv_bytes(self, tokens: float, dtype: str) -> float:
        """Return the bytes of the cache of a request with `tokens` tokens; recurrent states are float32."""
        return self.branches * (tokens * self.kept * BYTES[dtype] + 4 * self.states)

    def pass_work(self, rows: float, context: float, dtype: str, *, batch: int = 1, heads: float | None = None) -> Work:
        """Return the work of a pass over `rows` tokens of each request behind `context` tokens in the cache. `dtype` is
        that of cache and activations; `heads` the tokens of a request whose logits are computed, None for all."""
        itemsize, requests = BYTES[dtype], batch * self.branches
        every = requests * rows
        wide = {(every, inner, columns): count for (inner, columns), count in self.products.items()}
        moved = requests * context * self.kept * itemsize + every * self.touched * itemsize
        moved += 2 * requests * 4 * self.states
        flops = every * self.attention * (context + (rows + 1) / 2)
        work = Work(wide, flops, moved, self.calls, self.views)
        if self.experts is not None:
            work += self.experts.work(every)
        return work + product(requests * (rows if heads is None else heads), *self.head)

    def prefill_work(self, tokens: float, dtype: str, *, batch: int = 1, pictures: int = 0) -> Work:
        """Return the work of a prompt of `tokens` text tokens and `pictures` a request."""
        rows = tokens + pictures * self.picture_rows
        return self.pass_work(rows, 0, dtype, batch=batch, heads=1) + batch * pictures * self.picture


def cost_of_config(config: Any, name: str = "", picture_tokens: int | None = None) -> ModelCost:
    """Return the costs of a transformers model, counted on the meta device. `name` is by default the class name;
    `picture_tokens` is for pictures of any size."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = kind.from_config(config).eval()
        return cost_of_model(model, name or type(model).__name__, picture_tokens)
    except (RuntimeError, NotImplementedError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"MODEL: expected the config of a decoder that transformers can build and count, got {type(config).__name__} "
            f"({' '.join(str(error).split())[:120]}), name another model"
        ) from error


def cost_of_model(model: nn.Module, name: str, picture_tokens: int | None = None) -> ModelCost:
    """Return the costs of a loaded transformers model on any device; its modules run on the meta device."""
    if next(model.parameters()).device.type != "meta":
        return cost_of_config(model.config, name, picture_tokens)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    experts = _take_experts(decoder)
    first, second = (_SinglePass.of(decoder, context) for context in (_FIRST, _SECOND))
    products, layers = first.products, _layer_count(decoder)
    seen = _SECOND - _FIRST
    attention = (second.flops - first.flops) / seen
    picture, rows = picture_work(model, picture_tokens)
    per_token = (second.cached - first.cached) / seen
    return ModelCost(
        name,
        products,
        (head.in_features, head.out_features),
        sum(p.numel() for p in model.parameters()),
        per_token,
        first.cached - (_FIRST + 1) * per_token,
        attention,
        first.touched - (_FIRST + 1) * (second.touched - first.touched) / seen,
        first.calls,
        first.views,
        layers,
        picture,
        rows,
        experts,
        layer=_last_layer(decoder),
    )


@dataclass(frozen=True, slots=True)
class _SinglePass:
    """A counted pass over a single token after cached tokens."""

    products: Mapping[tuple[int, int], float]
    flops: float
    touched: float
    calls: int
    views: int
    cached: float

    @classmethod
    def of(cls, decoder: nn.Module, context: int) -> _SinglePass:
        from transformers import DynamicCache

        past = DynamicCache(config=decoder.config)

        def read(start: int, count: int) -> object:
            places = torch.arange(start, start + count, device="meta")[None]
            ids = torch.zeros(1, count, dtype=torch.long, device="meta")
            return decoder(input_ids=ids, position_ids=places, use_cache=True, **{CACHE: past})

        with torch.no_grad(), torch.device("meta"):
            read(0, context)
            # reference code reads recurrent states many times, kernels read them once; `pass_work` adds that read
            states = frozenset(
                held.numel() for held in _tensors(past) if held.dtype == torch.float32 and _is_state(held, context)
            )
            with WorkCounter(states) as counter:
                read(context, 1)
        wide = {(inner, columns): float(n) for (_, inner, columns), n in counter.products.items()}
        return cls(wide, counter.flops, counter.moved / 4, counter.calls, counter.views, _cached(past))


def _tensors(past: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    for layer in past.layers:
        for value in vars(layer).values():
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            tensors += [part for part in parts if isinstance(part, Tensor) and part.dim() > 2]
    return tensors


def _is_state(tensor: Tensor, context: int) -> bool:
    return tensor.dim() == 4 and tensor.shape[-2] != context


def _cached(past: Any) -> float:
    """Return the number of elements in a cache."""
    return float(sum(tensor.numel() for tensor in _tensors(past)))


def _layer_count(decoder: nn.Module) -> int:
    return len(getattr(decoder, "layers", ()))


def _last_layer(decoder: nn.Module) -> dict[tuple[int, int], float]:
    products: dict[tuple[int, int], float] = {}
    for module in decoder.layers[-1].modules():
        if isinstance(module, nn.Linear):
            shape = (module.in_features, module.out_features)
            products[shape] = products.get(shape, 0.0) + 1
    return products


def _take_experts(decoder: nn.Module) -> Experts | None:
    """Return the experts of a decoder and replace them by identities, since their work depends on the tokens."""
    layers, experts = 0, None
    for module in decoder.modules():
        first, last = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
        if isinstance(first, nn.Parameter) and isinstance(last, nn.Parameter) and first.dim() == 3:
            config = decoder.config
            chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", 1)
            inner = last.numel() // (last.shape[0] * config.hidden_size)
            experts = Experts(0, first.shape[0], chosen, ((config.hidden_size, 2 * inner), (inner, config.hidden_size)))
            module.forward = lambda states, *others, **named: states
            layers += 1
    return None if experts is None else Experts(layers, experts.count, experts.chosen, experts.weights)
