"""From its config alone, every class of the suite's table gets a report that agrees with the table, or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers as hf

from mmspec.check import check, report_lines
from mmspec.check.text import WIDTH
from mmspec.run.supported import greedy_table
from tests.vlm.classes.build import config_of

CLASSES = {
    name: found["outcomes"]["default"] for name, found in greedy_table()["classes"].items() if "outcomes" in found
}


@pytest.mark.whole
def test_every_class_by_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sentences, wrong = {}, []
    for name, outcome in CLASSES.items():
        if not hasattr(hf, name):
            continue
        config = config_of(name)
        config.architectures = [name]
        config.save_pretrained(name)
        try:
            report = check(name, load=False)
        except ValueError as error:
            sentences[name] = str(error)
            continue
        draws = report.kind == "image"
        if report.class_name != name or report.supported is not ("same" in outcome or draws):
            wrong.append((name, outcome, report.class_name, report.supported))
        elif any(len(line) > WIDTH for line in report_lines(report)):
            wrong.append((name, "wide"))
        elif report.supported and (not report.layers or report.memory is None or not report.drafters):
            wrong.append((name, "empty"))
    assert wrong == []
    assert [name for name in sentences if "same" in CLASSES[name]] == [] and len(sentences) < 8, sentences
    assert not [text for text in sentences.values() if "\n" in text]
