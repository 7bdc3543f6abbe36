"""A sham domain: how it counts, its rows, tables and curves; a grown domain has more of each."""

from types import SimpleNamespace

from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.report.bench_page import COLUMNS, Page
from mmspec.evaluate.report.plots import ACCEPT_LENGTH, SPEEDUP, Panel
from mmspec.run.timed_run import TimedRun
from tests.evaluate.sham.config import Config
from tests.evaluate.sham.suites import SUITES


class ShamDomain(Domain):
    name, config, suites, output = "sham", Config, SUITES, "numbers of plain counting"
    certainty = staticmethod(lambda timed: {"sure": 1.0})
    environment = staticmethod(lambda config, resources: {"model": resources.name, "dtype": "int"})

    def open(self, model, config):
        return SimpleNamespace(name="numbers", step=config.step, place=lambda placement: None)

    def cases(self, resources, setting):
        return setting.batches(list(range(setting.prompts)))

    def sampler(self, method, resources, setting):
        def run(case, seed):
            passes = 12 // (method.drafted + 1)
            output = tuple(tuple(range(start, start + 12 * resources.step, resources.step)) for start in case)
            parts = {"prefill": 0.0, "draft": 0.1, "target": 0.1 * passes, "verify": 0.1, "other": 0.0}
            return TimedRun(sum(parts.values()), output, passes, 12 / passes, parts), output

        return run

    def describe(self, row):
        return f"batch {row['batch']}, T = {row['temperature']:g}"

    def page(self, result):
        title = lambda rows: f"{self.describe(rows[0])}, {rows[0]['sure']} sure"  # noqa: E731
        return Page("counting", COLUMNS, ("batch", "temperature"), title, ("no loss",))

    def panels(self, result):
        lines = {row["method"]: ((row["accept_length"],), (row["speedup_vs_ar"],)) for row in result["rows"]}
        return [Panel("counting", ACCEPT_LENGTH, SPEEDUP, lines)]


DOMAIN = ShamDomain()
