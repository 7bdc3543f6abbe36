"""What `mmspec bench sham` can be asked for."""

from dataclasses import dataclass
from typing import ClassVar

from mmspec.evaluate.engine.config import BenchConfig, option


@dataclass(frozen=True, kw_only=True)
class Config(BenchConfig):
    about: ClassVar[str] = "Numbers that count on, alone and drafted."

    suite: str = option("count", "count.")
    step: int = option(1, "By how much a number grows.", least=1)


CONFIG = Config
