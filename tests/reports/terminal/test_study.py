"""Broken by a profile beside the wrong study, and by a table that is wider than 80 columns."""

from __future__ import annotations

import sys

import yaml

from moe_lab.reports.terminal.results import print_studies


def test_a_study_of_many_layers_takes_the_width_of_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    profile = {
        "model": "olmoe",
        "task": "gsm8k",
        "metric": "perplexity",
        "split": "train",
        "samples": {"gsm8k": [1, 2, 3]},
        "trials": 100,
        "trial": 42,
        "untuned_score": 2.5,
        "score": 1234.5678,
        "temperature": [0.12] * 48,
    }
    asked = {"task": "arc_challenge", "samples": {"arc_challenge": list(range(1040))}}
    for name, more in (("a", {}), ("b", asked)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "best.yaml").write_text(yaml.safe_dump(profile | more))
    print_studies([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("model=olmoe ") and lines[1] == "metric=perplexity (train)"
    shown = lines[: lines.index(str(tmp_path / "a" / "best.yaml"))]
    assert max(map(len, shown)) <= 80
    text = " ".join(shown)
    assert text.count("0.12") == 2 * 48 and "1235" in text.replace(",", "")
    assert next(line.split()[:2] for line in shown if "gsm8k" in line) == ["gsm8k", "3"]
    assert "1,040" in text
