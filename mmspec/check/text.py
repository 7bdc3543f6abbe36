"""The report as lines of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from mmspec.check.memory import in_units
from mmspec.check.report import CheckReport, Finding

WIDTH, _LABEL = 100, 12
_ROW = 4096  # tokens of the row whose memory is shown
_TEXT = ("text", "text and pictures")
_MARKS = {True: "yes", False: "no", None: "?"}


def report_lines(report: CheckReport) -> list[str]:
    """The report for the screen."""
    lines = [f"{report.model}: {report.class_name}"]
    for label, texts in _sections(report):
        for number, text in enumerate(texts):
            lines += _labelled(label if number == 0 else "", text)
    lines += [f"{'next':<{_LABEL}}{command}" if number == 0 else f"{'':<{_LABEL}}{command}"
              for number, command in enumerate(report.next_commands)]  # fmt: skip
    return [*lines, f"{'':<{_LABEL}}({report.seconds:.1f} s)"]


def _labelled(label: str, text: str) -> list[str]:
    """A text behind a label, wrapped; words such as commands and paths stay whole."""
    first = f"{label:<{_LABEL}}"
    return wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * _LABEL, break_long_words=False,
                break_on_hyphens=False) or [first]  # fmt: skip


def _sections(report: CheckReport) -> Iterator[tuple[str, list[str]]]:
    status = {True: "yes", False: "refused", None: "not known yet"}[report.taken]
    yield "taken", [f"{status}: {report.reason}"]
    if report.proofs:
        yield "proofs", [_finding(one) for one in report.proofs]
    if report.layers:
        yield "layers", [", ".join(_layers(one.kind, one.count, one.width) for one in report.layers)]
    if report.kind in _TEXT:
        yield "pictures", [report.pictures or "none: a model of text alone"]
    if report.memory is not None:
        yield "memory", _memory(report)
    if report.drafters:
        is_text = report.kind in _TEXT
        yield "drafters" if is_text else "decodings", _drafters(report)
    if report.features:
        yield "features", [_finding(one) for one in report.features]
    if report.comparison is not None:
        yield "comparison", _comparison(report)
    if report.notes:
        yield "note", report.notes


def _finding(one: Finding) -> str:
    took = "" if one.seconds is None else f" ({one.seconds:.1f} s)"
    return f"{one.name}: {_MARKS[one.holds]}{took}{f', {one.detail}' if one.detail else ''}"


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
    """Those that are here, those that could be, and those that do not fit."""
    fits, memory = report.drafters, report.memory
    each = memory.weights / memory.parameters if memory is not None else 4  # bytes
    lines = []
    for one in (one for one in fits if one.here):
        size = f", {in_units(one.parameters * each)}" if one.parameters else ""
        lines.append(f"here: {one.name}{size}, {one.detail}")
    made = [one for one in fits if one.fits and not one.here and one.parameters is not None]
    if made:
        sizes = ", ".join(f"{one.name} {in_units(one.parameters * each)}" for one in made)
        lines.append(f"can be trained for it: {sizes}")
    lines += [f"{one.name}: {one.detail}" for one in fits if one.fits and not one.here and one.parameters is None]
    misfits: dict[str, list[str]] = {}
    for one in (one for one in fits if not one.fits):
        misfits.setdefault(one.detail, []).append(one.name)
    return lines + [f"not {', '.join(names)}: {detail}" for detail, names in misfits.items()]


def _comparison(report: CheckReport) -> list[str]:
    found = report.comparison
    if found.identical:
        verdict = f"identical: {found.tokens} tokens"
    else:
        tie = f"as nearly equal logits may in {report.memory.dtype}; strict=True keeps the bits"
        why = "which is a defect: please report it" if report.is_precise else tie
        verdict = f"differs from token {found.first_difference} of {found.tokens}, {why}"
    return [
        f"{verdict}; drafter {found.drafter}",
        f"passes {found.plain_passes} plain, {found.drafted_passes} drafted; seconds {found.plain_s:.2f} plain, "
        f"{found.drafted_s:.2f} drafted ({found.plain_s / found.drafted_s:.2f}x)",
        f"prompt: {found.prompt}",
    ]
