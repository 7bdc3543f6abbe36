"""The suite of families for images: several pictures for a prompt, and trees of equal nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmspec.evaluate.image.config import ImageBenchConfig
from mmspec.evaluate.image.domain import DOMAIN
from mmspec.evaluate.image.families import FAMILIES
from mmspec.run.image_models import ImageResources, zoo_resources
from tests.evaluate.tiny_images import use_tiny_images


@pytest.fixture(scope="module")
def resources() -> Iterator[ImageResources]:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_images(patch)
        yield zoo_resources("t2i")


def config(**settings: object) -> ImageBenchConfig:
    return ImageBenchConfig(suite="families", **settings)


def test_every_prompt_has_several_pictures_in_a_row(resources: ImageResources) -> None:
    setting = next(config(prompts=6, pictures=4).settings())
    prompts = [request.prompt for request in DOMAIN.requests(resources, setting)]
    assert len(prompts) == 6 and len(set(prompts[:4])) == len(set(prompts[4:])) == 1
    assert prompts[0] != prompts[4] and setting.row()["pictures"] == 4
    alone = next(ImageBenchConfig(suite="speed", prompts=6).settings())
    assert len({request.prompt for request in DOMAIN.requests(resources, alone)}) == 6 and "pictures" not in alone.row()


def test_trees_have_equal_nodes(resources: ImageResources) -> None:
    rows = {row.key: row for row in FAMILIES.methods}
    shapes = {
        name: rows[f"eagle-{name}"].make(resources).shapes for name in ("deep", "wide", "dyspec", "dynamic", "ddd")
    }
    nodes = {len(shapes[name][1].parents) - 1 for name in ("deep", "wide")}
    nodes |= {shapes["dyspec"][1].nodes, shapes["dynamic"][0].nodes, shapes["ddd"][0].nodes}
    assert len(nodes) == 1
    assert shapes["wide"][1].longest < shapes["deep"][1].longest
    for name in ("chain", "deep", "wide", "dyspec"):
        relaxed, exact = (rows[f"eagle-{name}{rest}"] for rest in ("-lantern", ""))
        assert relaxed.rule != exact.rule and relaxed.make(resources).shapes == exact.make(resources).shapes


def test_pictures_share_a_memory_in_the_shared_row_only(resources: ImageResources) -> None:
    rows = {row.key: row for row in FAMILIES.methods}
    setting = next(config(prompts=3, pictures=3, temperatures=(0.0,), guidance=(1.0,)).settings())
    request = DOMAIN.requests(resources, setting)[:1]
    for key, learns in (("memory", False), ("memory-shared", True)):
        draw = DOMAIN.draw(rows[key], resources, setting)
        first, second, third = (draw(request, 0).stats.target_passes for _ in range(3))
        assert first == second and (third < second) == learns  # the warm-up leaves nothing behind
