"""A closed-form start of the window projector: ridge regression from patches to the embeddings of words for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.zoo.architectures.llava import PATCH_HEADS
from mmspec.zoo.architectures.smol import WindowProjector
from mmspec.zoo.training.vlm.vision_tower import IGNORE, point_along
from mmspec.zoo.world.language import POSITIONS
from mmspec.zoo.world.scene import Scene

WindowWords = tuple[str, str, str, str]


def window_words(scene: Scene) -> list[WindowWords]:
    """The words of the four rows of every grid cell: place, size and texture, color, kind; of an empty cell the background's
    texture and tone."""
    by_cell = {thing.cell: thing for thing in scene.things}
    words = []
    for cell, (place, *_) in enumerate(POSITIONS):
        if (thing := by_cell.get(cell)) is None:
            words.append((place, scene.background.texture, scene.background.tone, "background"))
        else:
            look = thing.size if thing.is_digit else f"{thing.size} {thing.texture}"
            words.append((place, look, thing.color, thing.kind))
    return words


def ridge(inputs: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """The linear map with the least squared error and a penalty on its weights.

    Args:
        inputs: float [N, D].
        targets: float [N, E].
        penalty: Of the squared weights, in units of the inputs' mean variance times N.

    Returns:
        Weight float [E, D] and bias float [E]; the bias carries no penalty.
    """
    inputs, targets = inputs.double(), targets.double()
    center, mean = inputs.mean(0), targets.mean(0)
    centred = inputs - center
    gram = centred.T @ centred
    gram.diagonal().add_(penalty * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, centred.T @ (targets - mean)).T
    return weight.float(), (mean - weight @ center).float()


@torch.no_grad()
def reading_heads(features: Tensor, labels: Mapping[str, Tensor], penalty: float = 1e-4) -> nn.ModuleDict:
    """Linear heads from patch features to the properties of the objects that patches belong to, by ridge regression.

    Args:
        features: Patch features, float [N, vision].
        labels: The class of every patch by property, int64 [N], `IGNORE` where a patch has none.
        penalty: As in `ridge`.
    """
    heads = nn.ModuleDict()
    for name, label in labels.items():
        head = heads[name] = nn.Linear(features.shape[1], len(PATCH_HEADS[name][0]))
        here = label != IGNORE
        weight, bias = ridge(features[here], F.one_hot(label[here], head.out_features).float(), penalty)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
    return heads


@torch.no_grad()
def start_from_words(
    projector: WindowProjector, heads: nn.ModuleDict, features: Tensor, targets: Tensor, penalty: float = 1e-3
) -> float:
    """Start a projector from word embeddings.

    The first layer mixes reading heads, every property with the same variance; the second is the ridge map from its windows
    to the embeddings.

    Args:
        projector: Changed in place.
        heads: As `reading_heads` gives them.
        features: Patch features, float [N, patches, vision].
        targets: Embeddings for the rows, float [N, windows, rows * text].
        penalty: As in `ridge`.

    Returns:
        The share of the targets' variance that the start explains.
    """
    point_along(projector.linear_1, heads, features.flatten(0, 1))
    inputs = projector.windows(features).flatten(0, 1)
    wanted = targets.flatten(0, 1)
    weight, bias = ridge(inputs, wanted, penalty)
    projector.linear_2.weight.copy_(weight)
    projector.linear_2.bias.copy_(bias)
    rest = (projector.linear_2(inputs) - wanted).square().sum()
    return float(1 - rest / (wanted - wanted.mean(0)).square().sum())
