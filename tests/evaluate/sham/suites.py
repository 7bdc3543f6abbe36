"""The suite of `mmspec bench sham`."""

from dataclasses import dataclass

from mmspec.evaluate.engine.suite import Method, Suite
from mmspec.evaluate.report.bench_page import COLUMNS


@dataclass(frozen=True, slots=True)
class Counting(Method):
    drafted: int = 0


METHODS = (Counting("ar", "plain"), *(Counting(f"by-{n}", f"{n} drafted", family="by", drafted=n) for n in (1, 3)))
WHOLE = {"prompts": 4, "batches": (2,), "temperatures": (0.0,), "columns": tuple(COLUMNS)}
SUITES = {"count": Suite(about="counting", methods=METHODS, **WHOLE)}
