"""Pipelines over the tiny models, with processors built from scratch."""

from __future__ import annotations

from functools import cache

from mmspec.imagegen.adapters.registry import AdapterPipeline, pipeline_for
from tests.imagegen.adapters.models import COLS, EMU3_MAP, LARGE, ROWS, SMALL, tiny


class Names:
    """A processor that knows nothing but the names of tokens."""

    class tokenizer:
        get_vocab = staticmethod(lambda: EMU3_MAP)


@cache
def pipeline(name: str) -> AdapterPipeline:
    """The pipeline `pipeline_for` makes; GLM-Image with grids smaller than its processor ever asks for."""
    if name == "glm_image":
        return pipeline_for(tiny(name), size=(LARGE[0] * 32, LARGE[1] * 32), preview=SMALL)
    if name == "emu3":
        return pipeline_for(tiny(name), size=(ROWS * 2, COLS * 2))
    if name == "emu3_text":
        return pipeline_for(tiny(name), Names(), size=(ROWS * 8, COLS * 8))
    return pipeline_for(tiny(name))
