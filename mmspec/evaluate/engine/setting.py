"""What all methods of a table have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One table of a bench: how requests are made and grouped. Domains add theirs.

    batch: requests decoded at once.   prompts: how many are asked, in cases of `batch`; what is left over is not asked.
    seed: of the bench.
    """

    batch: int
    temperature: float
    prompts: int
    seed: int

    @property
    def cases(self) -> int:
        """Whole batches among the prompts."""
        return self.prompts // self.batch

    def batches(self, requests: list) -> list[list]:
        """The requests in whole batches."""
        return [requests[start : start + self.batch] for start in range(0, self.cases * self.batch, self.batch)]

    def name(self) -> dict:
        """The fields of rows that tell this setting from the others."""
        return {"batch": self.batch, "temperature": self.temperature}

    def row(self) -> dict:
        """All fields of rows that the setting decides."""
        return self.name()
