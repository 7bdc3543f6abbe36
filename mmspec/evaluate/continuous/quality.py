"""Quality of pictures of continuous tokens: a method's against plain decoding's, and against what was asked for."""

from __future__ import annotations

from mmspec.evaluate.continuous.certainty import target_figures
from mmspec.evaluate.continuous.config import Config, ContinuousSetting
from mmspec.evaluate.continuous.requests import labels
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.continuous.runner import make_draw
from mmspec.evaluate.quality.gallery import Galleries


class Reference(Galleries):
    """Plain images of a setting.   row: how sure the target is."""

    def __init__(self, config: Config, resources: ContinuousResources, setting: ContinuousSetting):
        asked = labels(resources, setting.prompts, setting.seed)
        super().__init__(config.rows[0], lambda method: make_draw(method, resources, setting), resources.scorer, asked,
                         setting.batch, setting.seed)  # fmt: skip
        self.row = target_figures(resources, setting, asked, setting.seed)
