"""Image models of a few thousand numbers: a transformer, and a table whose laws can be written down."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, one_hot, scaled_dot_product_attention

from mmspec.core.round.loop import Drafter
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.rules.base import Rule
from mmspec.imagegen.base_pipeline import ImageOutput
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.model import ImageModelOutput
from mmspec.imagegen.pipeline import ImagePipeline

DIM, HEADS, LABELS, PROMPT = 32, 2, 5, 2


class ColourTable:
    """What both models share: labels as prompts, one colour a code, V = K and the forced values."""

    name, device, dtype, no_pixels, cache = "tiny", torch.device("cpu"), torch.float32, None, SlotPool

    def __init__(self, geometry: Geometry, codes: int, seed: int):
        self.geometry, self.codes = geometry, codes
        self.size = max(codes, int(geometry.forced.max()) + 1)
        self.generator = torch.Generator().manual_seed(seed)
        self.colours = torch.rand(codes, 3, generator=self.generator)

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=self.generator) * scale

    def prepare(self, prompts: object) -> Tensor:
        return torch.as_tensor(prompts)

    def rows(self, condition: Tensor) -> int:
        return len(condition)

    def decode(self, codes: Tensor) -> Tensor:
        grid = codes.view(-1, self.geometry.rows, self.geometry.cols)
        return self.colours[grid].permute(0, 3, 1, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)

    def codebook(self) -> Tensor:
        return self.colours


class TinyModel(ColourTable):
    """A random transformer of two layers over labels 0..4 (5 is the null class), with learned positions.

    The prompt takes two slots; the first is padding for odd labels. sharp: scale of the logits.
    """

    layers, width = 2, DIM

    def __init__(self, geometry: Geometry | None = None, codes: int = 16, seed: int = 0, sharp: float = 1.0):
        super().__init__(geometry or Geometry.square(4), codes, seed)
        self.sharp = sharp
        self.embedding = self.random(self.size, DIM)
        self.position = self.random(self.geometry.total, DIM)
        self.label = self.random(LABELS + 1, PROMPT, DIM)
        self.qkv = [self.random(DIM, 3 * DIM, scale=DIM**-0.5) for _ in range(self.layers)]
        self.out = [self.random(DIM, DIM, scale=DIM**-0.5) for _ in range(self.layers)]
        self.wide = [self.random(DIM, 2 * DIM, scale=DIM**-0.5) for _ in range(self.layers)]
        self.narrow = [self.random(2 * DIM, DIM, scale=DIM**-0.5) for _ in range(self.layers)]
        self.head = self.random(DIM, self.size, scale=2 * DIM**-0.5)

    def prefill(self, condition: Tensor, cache: SlotPool, paired: bool) -> tuple[ImageModelOutput, int]:
        label = torch.cat((condition, torch.full_like(condition, LABELS))) if paired else condition
        hidden = torch.zeros(len(label), PROMPT, dtype=torch.bool)
        hidden[:, 0] = condition.repeat(1 + paired) % 2 == 1
        causal = torch.ones(PROMPT, PROMPT, dtype=torch.bool).tril()
        seen = (causal & ~hidden[:, None, :]) | torch.eye(PROMPT, dtype=torch.bool)
        bias = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(self.dtype).min)[:, None]
        scored = self.run(self.label[label], bias, cache)
        cache.hidden = hidden if bool(hidden.any()) else None
        return ImageModelOutput(scored.logits[:, -1:], scored.hidden[:, -1:], scored.hidden), PROMPT

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        return self.run(self.embedding[value] + self.position[index], bias, cache)

    def run(self, x: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        rows, nodes, _ = x.shape
        for layer in range(self.layers):
            qkv = (layer_norm(x, (DIM,)) @ self.qkv[layer]).view(rows, nodes, 3, HEADS, DIM // HEADS)
            query, key, value = qkv.permute(2, 0, 3, 1, 4)
            key, value = cache.write(layer, key, value)
            seen = scaled_dot_product_attention(query, key, value, attn_mask=bias)
            x = x + seen.transpose(1, 2).reshape(rows, nodes, DIM) @ self.out[layer]
            x = x + (layer_norm(x, (DIM,)) @ self.wide[layer]).relu() @ self.narrow[layer]
        hidden = layer_norm(x, (DIM,))
        return ImageModelOutput(self.logits(hidden), hidden)

    def embed(self, value: Tensor) -> Tensor:
        return self.embedding[value]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.sharp * hidden @ self.head


class TableModel(ColourTable):
    """The law of value i after value x is softmax(table[i, x]), whatever came before and whatever the label; value 0 follows
    x = 0.

    table: float [total, V, V], random unless given; it keeps its dtype.   uncond: the unconditional branch's table.
    """

    layers = 1

    def __init__(
        self,
        geometry: Geometry | None = None,
        codes: int = 4,
        seed: int = 0,
        sharp: float = 1.0,
        table: Tensor | None = None,
        uncond: Tensor | None = None,
    ):
        super().__init__(geometry or Geometry.square(2), codes, seed)
        shape = (self.geometry.total, self.size, self.size)
        self.table = self.random(*shape, scale=sharp) if table is None else table
        self.uncond = self.random(*shape, scale=sharp) if uncond is None else uncond

    def prefill(self, condition: Tensor, cache: SlotPool, paired: bool) -> tuple[ImageModelOutput, int]:
        start = torch.zeros(len(condition) * (1 + paired), 1, dtype=torch.long)
        return self.forward(start, start - 1, None, cache), 1

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        slots = torch.zeros(len(value), 1, value.shape[1], 1)
        cache.write(0, slots, slots)
        step = (index + 1).clamp(max=self.geometry.total - 1)
        logits = self.table[step, value]
        if cache.copies > 1:
            half = len(value) // 2
            logits = torch.cat((logits[:half], self.uncond[step, value][half:]))
        return ImageModelOutput(logits, one_hot(value, self.size).float())

    def joint(self) -> Tensor:
        """float64 [V^total], the law of all values under plain sampling at temperature 1 without guidance; codes only."""
        table = self.table.double().softmax(-1)
        joint = table[0, 0]
        for law in table[1:]:
            joint = (joint.reshape(-1, self.size)[..., None] * law).flatten()
        return joint


def generate(
    model: ColourTable,
    labels: list[int],
    decoding: Drafter | None = None,
    rule: str | Rule | None = None,
    **settings: object,
) -> ImageOutput:
    """Codes of one image a label through the pipeline, undecoded; `settings` as in its call."""
    return ImagePipeline(model)(labels, decoding=decoding, rule=rule, pixels=False, **settings)
