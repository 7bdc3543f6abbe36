"""Quality of generated images: a method's against plain decoding's at equal number, and against what was asked for."""

from __future__ import annotations

import numpy as np

from mmspec.evaluate.image.certainty import target_figures
from mmspec.evaluate.image.config import Config, ImageSetting
from mmspec.evaluate.image.requests import requests_of
from mmspec.evaluate.image.resources import ImageResources
from mmspec.evaluate.image.runner import make_draw
from mmspec.evaluate.quality.gallery import Galleries


class Reference(Galleries):
    """Plain images of a setting.   row: how sure the target is and how many codes it uses."""

    def __init__(self, config: Config, resources: ImageResources, setting: ImageSetting):
        asked = requests_of(setting.model, setting.prompts, setting.seed)
        super().__init__(config.rows[0], lambda method: make_draw(method, resources, setting), resources.scorer, asked,
                         setting.batch, setting.seed)  # fmt: skip
        codes = np.concatenate([one.tokens for one in self.plain])
        self.row = target_figures(resources, setting, asked, codes, setting.seed)
