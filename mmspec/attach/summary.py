from __future__ import annotations

from dataclasses import asdict, dataclass, field

from mmspec.core.round.stats import Stats

PARTS = ("prefill_s", "draft_s", "target_s", "verify_s", "other_s")
DEEPEST = 32  # accepted counts above it are counted together


@dataclass(slots=True)
class Summary:
    """The statistics of all calls so far; see `Stats` for the passes."""

    calls: int = 0  # requests that ran
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    plain: dict[str, int] = field(default_factory=dict)  # decoded by transformers, by reason; not in `calls`
    emitted: int = 0  # values: tokens, codes, vectors, blocks
    target_passes: int = 0
    drafter_passes: int = 0
    row_passes: int = 0  # target passes summed over rows
    rounds: list[int] = field(default_factory=list)  # drafted rounds by accepted values, from 0 to `DEEPEST`
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    exact: bool = True  # every call preserved the target's distribution
    rules: list[str] = field(default_factory=list)
    drafters: list[str] = field(default_factory=list)

    @property
    def accept_length(self) -> float:
        """Values per target pass and row, the bonus included."""
        return self.emitted / max(self.row_passes, 1)

    @property
    def kept(self) -> list[float]:
        """The shares of drafted rounds in which at least 1, 2, ... drafted values were accepted."""
        total = sum(self.rounds)
        deepest = max((n for n, count in enumerate(self.rounds) if count), default=0)
        return [sum(self.rounds[n:]) / total for n in range(1, deepest + 1)]

    def add(self, stats: Stats) -> None:
        self.calls += 1
        self.emitted += sum(stats.emitted)
        self.exact = self.exact and stats.exact
        for name in ("target_passes", "drafter_passes", "row_passes"):
            setattr(self, name, getattr(self, name) + getattr(stats, name))
        for part in PARTS:
            self.seconds[part] += getattr(stats, part)
        for names, name in ((self.rules, stats.rule), (self.drafters, stats.drafter)):
            if name not in names:
                names.append(name)
        for accepted in stats.accepted[1:]:  # the prefill drafts nothing
            for count in accepted:
                if count is not None:
                    self._round(min(int(count), DEEPEST))

    def refuse(self, error: ValueError) -> None:
        _count(self.refused, error)

    def decode_plainly(self, error: ValueError) -> None:
        """Count a request that transformers decoded, with the error of the refusal."""
        _count(self.plain, error)

    def _round(self, count: int) -> None:
        self.rounds.extend([0] * (count + 1 - len(self.rounds)))
        self.rounds[count] += 1

    def copy(self) -> Summary:
        lists = {name: list(getattr(self, name)) for name in ("rounds", "rules", "drafters")}
        return Summary(
            self.calls,
            emitted=self.emitted,
            target_passes=self.target_passes,
            row_passes=self.row_passes,
            drafter_passes=self.drafter_passes,
            exact=self.exact,
            seconds=dict(self.seconds),
            refused=dict(self.refused),
            plain=dict(self.plain),
            **lists,
        )

    def to_dict(self) -> dict:
        return {**asdict(self), "accept_length": self.accept_length, "kept": self.kept}

    def __str__(self) -> str:
        refused = sum(self.refused.values())
        reasons = [f"refused {count} times: {sentence}" for sentence, count in self.refused.items()]
        reasons += [f"decoded plainly {count} times: {sentence}" for sentence, count in self.plain.items()]
        if not self.calls:
            return "\n".join([f"no call has run, {refused} were refused", *reasons])
        law = "exact" if self.exact else "relaxed"
        positions = ", ".join(f"{share:.0%}" for share in self.kept[:8]) or "none"
        total = sum(self.seconds.values())
        split = ", ".join(f"{part[:-2]} {seconds / max(total, 1e-9):.0%}" for part, seconds in self.seconds.items())
        return "\n".join(
            [
                f"{self.calls} calls, {refused} refused; {law}: rule {', '.join(self.rules)}, drafter "
                f"{', '.join(self.drafters)}",
                f"{self.emitted} values in {self.target_passes} target passes: {self.accept_length:.2f} per pass and row",
                f"rounds that accepted at least 1, 2, ... drafted values: {positions}",
                f"{total:.2f} s: {split}",
                *reasons,
            ]
        )


def _count(reasons: dict[str, int], error: ValueError) -> None:
    sentence = " ".join(str(error).split())
    reasons[sentence] = reasons.get(sentence, 0) + 1
