"""A sham bench, tied together; a grown domain has a file for each of these parts."""

from types import SimpleNamespace

from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.engine.runs import TimedRun
from mmspec.evaluate.report.bench_page import COLUMNS, Page
from mmspec.evaluate.report.plots import ACCEPT_LENGTH, SPEEDUP, Panel
from tests.evaluate.sham.config import Config


def runner(method, resources, setting):
    def run(case, seed):
        passes = 12 // (method.drafted + 1)
        output = tuple(tuple(range(start, start + 12 * resources.step, resources.step)) for start in case)
        parts = {"prefill": 0.0, "draft": 0.1, "target": 0.1 * passes, "verify": 0.1, "other": 0.0}
        return TimedRun(sum(parts.values()), output, passes, 12 / passes, parts)

    return run


def page(result):
    title = lambda rows: f"{DOMAIN.describe(rows[0])}, {rows[0]['sure']} sure"  # noqa: E731
    return Page("counting", COLUMNS, ("batch", "temperature"), title, ("no loss",))


def panels(result):
    lines = {row["method"]: ((row["accept_length"],), (row["speedup_vs_ar"],)) for row in result["rows"]}
    return [Panel("counting", ACCEPT_LENGTH, SPEEDUP, lines)]


DOMAIN = Domain(
    name="sham",
    config=Config,
    output="numbers of plain counting",
    resources=lambda config: SimpleNamespace(name="numbers", step=config.step),
    cases=lambda resources, setting: setting.batches(list(range(setting.prompts))),
    runner=runner,
    certainty=lambda timed: {"sure": 1.0},
    environment=lambda config, resources: {"model": resources.name, "dtype": "int"},
    describe=lambda row: f"batch {row['batch']}, T = {row['temperature']:g}",
    page=page,
    panels=panels,
)
