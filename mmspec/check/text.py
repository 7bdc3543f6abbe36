from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from mmspec.check.report import CheckReport, Finding
from mmspec.vlm.memory_needs import in_units

WIDTH, _LABEL = 100, 12
_ROW = 4096  # tokens of the row in the memory line
_TEXT = ("text", "text and pictures")
_MARKS = {True: "yes", False: "no", None: "?"}


def report_lines(report: CheckReport, width: int = WIDTH) -> list[str]:
    """Return the report as lines of at most 100 columns, or of `width`; command lines and paths are not broken."""
    lines = [f"{report.model}: {report.class_name}"]
    for label, texts in _sections(report):
        for number, text in enumerate(texts):
            lines += _labelled(label if number == 0 else "", text, min(width, WIDTH))
    lines += [
        f"{'next':<{_LABEL}}{command}" if number == 0 else f"{'':<{_LABEL}}{command}"
        for number, command in enumerate(report.next_commands)
    ]
    return [*lines, f"{'':<{_LABEL}}({report.seconds:.1f} s)"]


def _labelled(label: str, text: str, width: int) -> list[str]:
    first = f"{label:<{_LABEL}}"
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def _sections(report: CheckReport) -> Iterator[tuple[str, list[str]]]:
    status = {True: "yes", False: "refused", None: "not known yet"}[report.supported]
    yield "supported", [f"{status}: {report.reason}"]
    if report.proofs:
        yield "proofs", [*map(_finding, report.proofs)]
    if report.layers:
        yield "layers", [", ".join(_layers(group.kind, group.count, group.width) for group in report.layers)]
    if report.kind in _TEXT:
        yield "pictures", [report.pictures or "none: a model of text alone"]
    if report.memory is not None:
        yield "memory", _memory(report)
    if report.drafters:
        is_text = report.kind in _TEXT
        yield "drafters" if is_text else "decodings", _drafters(report)
    if report.features:
        yield "features", [*map(_finding, report.features)]
    if report.comparison is not None:
        yield "comparison", _comparison(report)
    if report.notes:
        yield "note", report.notes


def _finding(finding: Finding) -> str:
    seconds = "" if finding.seconds is None else f" ({finding.seconds:.1f} s)"
    return f"{finding.name}: {_MARKS[finding.holds]}{seconds}{f', {finding.detail}' if finding.detail else ''}"


def _layers(kind: str, count: int, width: int | None) -> str:
    return f"{count} {kind}" + (f" of {width:,} tokens" if width else "")


def _memory(report: CheckReport) -> list[str]:
    memory = report.memory
    lines = [f"weights {in_units(memory.weights)}: {memory.parameters:,} in {memory.dtype}"]
    if memory.per_token is not None:
        states = f", and {in_units(memory.per_row)} of states a row" if memory.per_row else ""
        is_text = report.kind in _TEXT
        whole = f"; {in_units(memory.of_request(_ROW))} for a row of {_ROW:,}" if is_text else ""
        lines.append(f"a request {in_units(memory.per_token)} a token{states}{whole}")
    return [*lines, memory.note] if memory.note else lines


def _drafters(report: CheckReport) -> list[str]:
    """Return a line for each available drafter, then those that can be trained or fetched, and those that do not fit."""
    fits, memory = report.drafters, report.memory
    each = memory.weights / memory.parameters if memory is not None else 4  # bytes
    lines = []
    for fit in (fit for fit in fits if fit.here):
        size = f", {in_units(fit.parameters * each)}" if fit.parameters else ""
        lines.append(f"here: {fit.name}{size}, {fit.detail}")
    absent = [fit for fit in fits if fit.fits and not fit.here]
    sizes = [f"{fit.name} {in_units(fit.parameters * each)}" for fit in absent if fit.parameters is not None]
    if sizes:
        lines.append(f"can be trained for it: {', '.join(sizes)}")
    lines += [f"{fit.name}: {fit.detail}" for fit in absent if fit.parameters is None]
    misfits: dict[str, list[str]] = {}
    for fit in (fit for fit in fits if not fit.fits):
        misfits.setdefault(fit.detail, []).append(fit.name)
    return lines + [f"not {', '.join(names)}: {detail}" for detail, names in misfits.items()]


def _comparison(report: CheckReport) -> list[str]:
    result = report.comparison
    if result.identical:
        verdict = f"identical: {result.tokens} tokens"
    else:
        tie = f"as nearly equal logits may in {report.memory.dtype}; strict=True keeps the bits"
        why = "which is a defect: please report it" if report.is_precise else tie
        verdict = f"differs from token {result.first_difference} of {result.tokens}, {why}"
    return [
        f"{verdict}; drafter {result.drafter}",
        f"passes {result.plain_passes} plain, {result.drafted_passes} drafted; seconds {result.plain_s:.2f} plain, "
        f"{result.drafted_s:.2f} drafted ({result.plain_s / result.drafted_s:.2f}x)",
        f"prompt: {result.prompt}",
    ]
