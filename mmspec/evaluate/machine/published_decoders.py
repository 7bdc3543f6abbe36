"""Decoders of published sizes with random weights: they have the costs of the real decoders and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.layers.compat import CACHE
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.tree import chain

# fields of the published text configs
_TEXT = {
    "LLaVA-1.5-7B": (
        "llama",
        dict(
            hidden_size=4096,
            intermediate_size=11008,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=32,
            vocab_size=32064,
        ),
    ),
    "Qwen2.5-VL-7B": (
        "qwen2",
        dict(
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152064,
        ),
    ),
}
_SMALL = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=97,
)
NAMES = (*_TEXT, "LlamaGen-3B")


@dataclass(slots=True)
class CachedDecoder:
    """A model with a filled cache."""

    name: str
    parameters: int  # their number
    score: Callable[[int], Tensor]  # runs a pass over a chain of N values, root included, to logits, without a commit


def cached_decoder(name: str, device: torch.device, dtype: torch.dtype, context: int, tiny: bool) -> CachedDecoder:
    """Build a model of `NAMES` with `context` values in its cache; `tiny` takes two narrow layers of the same classes."""
    with _built(device, dtype):
        return (
            _image(name, device, context, tiny) if name.startswith("LlamaGen") else _text(name, device, context, tiny)
        )


def _text(name: str, device: torch.device, context: int, tiny: bool) -> CachedDecoder:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    kind, fields = _TEXT[name]
    fields = fields | _SMALL if tiny else fields
    model = LlamaForCausalLM(LlamaConfig(**fields)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**fields))
    model, cache = model.eval(), SlotCache(fields["num_hidden_layers"], context + 128)

    def run(token: Tensor, position: Tensor, bias: Tensor | None) -> Tensor:
        inputs = dict(input_ids=token, position_ids=position, attention_mask=bias, use_cache=True)
        out = model.model(**inputs, **{CACHE: cache})
        return model.lm_head(out.last_hidden_state)

    return _decoder(name, model, cache, run, context, fields["vocab_size"], device)


def _image(name: str, device: torch.device, context: int, tiny: bool) -> CachedDecoder:
    from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
    from mmspec.imagegen.llamagen.transformer import Transformer

    small = dict(dim=32, n_layer=2, n_head=4, vocab_size=97)
    config = GPTConfig(**small, block_size=576) if tiny else GPTConfig.preset("3B", block_size=576)
    model, cache = Transformer(config).eval(), SlotCache(config.n_layer, context + 128)

    def run(token: Tensor, position: Tensor, bias: Tensor | None) -> Tensor:
        return model.logits(model(model.embed(token), position, bias, cache, causal=bias is None))

    return _decoder(name, model, cache, run, context, config.vocab_size, device)


def _decoder(
    name: str,
    model: torch.nn.Module,
    cache: SlotCache,
    run: Callable[..., Tensor],
    context: int,
    size: int,
    device: torch.device,
) -> CachedDecoder:
    dtype = next(model.parameters()).dtype

    @torch.no_grad()
    def score(nodes: int) -> Tensor:
        tree = chain(nodes - 1, device)
        token = torch.zeros(1, nodes, dtype=torch.long, device=device)
        return run(token, context + tree.depth, cache.bias(tree.ancestor, dtype))

    with torch.no_grad():
        place = torch.arange(context, device=device)[None]
        run(place % size, place, None)
    cache.advance(context)
    return CachedDecoder(name, sum(parameter.numel() for parameter in model.parameters()), score)


@contextmanager
def _built(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Create modules with their weights on the device in the dtype, so that a 7B model is never held in float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
