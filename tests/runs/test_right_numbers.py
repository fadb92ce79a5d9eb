"""The numbers that a command shows, on the embedded model: rounding, the asked metric, seeds,
and families of comparisons.

Broken by rounding that is called significant, a metric or a seed of another request,
a p that an option changes, and a stored result that is parsed twice.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import moe_lab
from moe_lab.results import stored_files as stored_results
from tests.support.command import run_command

NULL = ("method=roe", "method.temperature=0", "method.n=3", "task=toy_text", "limit=8")


def block_of(output: Path, method: str) -> dict[str, Any]:
    [file] = output.glob(f"runs/*-{method}-*/results.json")
    return json.loads(file.read_text())["moe_lab"]


def frame(*overrides: str, **options: Any) -> pd.DataFrame:
    return moe_lab.run(list(overrides), quiet=True, **options).frame()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", (1, 2, 5))
def test_the_same_model_in_other_shapes_is_equal(tmp_path, capsys, seeds):
    """In float32; the differences are 1e-6 and less, and not 0."""
    command = [*NULL, f"seeds={seeds}", f"output_dir={tmp_path}"]
    ended = run_command(capsys, *command)
    assert "equal: within rounding" in ended.out
    assert "significantly" not in ended.out
    rows = frame(*command)
    compared = rows[rows["compared_with"].notna()]
    assert (compared["difference"] != 0).any()
    assert compared["difference"].abs().max() < 1e-4
    assert compared["p"].isna().all()
    assert compared["family"].isna().all()
    assert compared["test"].isna().all()
    assert compared["notes"].str.contains("equal").all()
    page = (tmp_path / "report.html").read_text()
    assert "within rounding" in page
    assert "significantly" not in page


@pytest.mark.slow
def test_the_bound_of_bfloat16_is_measured_once(tmp_path):
    command = [*NULL, "dtype=bfloat16", f"output_dir={tmp_path}"]
    rows = frame(*command)
    base = block_of(tmp_path, "base")
    roe = block_of(tmp_path, "roe")
    assert 0 < base["rounding"] == roe["rounding"]
    [row] = rows[rows["method"] == "roe"].to_dict("records")
    assert "equal" in row["notes"]
    assert pd.isna(row["p"])
    frame(*command[:-1], f"output_dir={tmp_path}", "rerun=true")
    assert block_of(tmp_path, "base") == base, "a stored base run keeps its bound"


@pytest.mark.slow
def test_the_request_decides_which_metric_is_shown(tmp_path, capsys):
    common = ["task=toy_text", "limit=4", f"output_dir={tmp_path}"]
    run_command(capsys, "method=base", "task.metric=bits_per_byte,none", *common)
    output = run_command(capsys, "method=roe", "method.n=2", *common).out
    assert "metric=word_perplexity,none" in output
    assert "bits_per_byte" not in output
    ended = run_command(capsys, "method=base", "task.metric=byte_perplexity,none", *common)
    assert "metric=byte_perplexity,none" in ended.out
    rows = frame("method=base", "task.metric=bits_per_byte,none", *common)
    assert set(rows["metric"]) == {"bits_per_byte,none"}


def test_two_headline_metrics_of_one_run_are_refused(tmp_path, capsys):
    """Broken by a grid that shows the first one in silence."""
    grid = [
        "-m",
        "method=base",
        "task=toy_text",
        "task.metric='word_perplexity,none','bits_per_byte,none'",
    ]
    ended = run_command(capsys, *grid, f"output_dir={tmp_path}")
    assert ended.code == 2
    assert "word_perplexity,none and bits_per_byte,none are of one run" in ended.err


@pytest.mark.slow
def test_seeds_of_trained_models_have_a_label(tmp_path, capsys):
    """method=base has no randomness; the three models differ by the seed of their training."""
    command = [
        "-m",
        "method=base",
        "model=toy-rules",
        "model.recipe.steps=1",
        "task=toy_rules",
        "limit=2",
    ]
    ended = run_command(capsys, *command, "seed=0,1,2", f"output_dir={tmp_path}")
    rows = [line for line in ended.out.splitlines() if line.startswith("seed=")]
    assert [row.split()[0] for row in rows[:3]] == ["seed=0", "seed=1", "seed=2"]
    assert list(frame(*command[1:], "seed=2", f"output_dir={tmp_path}")["seed"]) == [2]


@pytest.mark.slow
def test_controls_and_expert_metrics_leave_the_p_of_scores_alone(tmp_path, capsys):
    """Broken by one family over scores, controls and expert metrics."""
    command = ["method=calibration", "method.logit_scale=0.5", "task=toy_choice", "limit=6"]
    command += [f"output_dir={tmp_path}"]

    def families(*options: str) -> dict[str, set[tuple[float, int]]]:
        rows = frame(*command, *options)
        tested = rows[rows["p_holm"].notna()]
        groups = tested.groupby("question")
        return {
            name: set(zip(group["p_holm"], group["family"], strict=True)) for name, group in groups
        }

    p_alone = families()
    measured = families("metrics=expert")
    assert p_alone["scores"] == measured["scores"]
    assert {count for _, count in p_alone["scores"]} == {1}
    ended = run_command(capsys, *command, "metrics=expert")
    assert "(scores: 1, expert metrics: " in " ".join(ended.out.split())


SAME = {
    "roe": ("method=roe", "method.temperature=0", "method.n=3"),
    "roe, own history": (
        "method=roe",
        "method.temperature=0",
        "method.n=3",
        "method.cache=standard",
    ),
    "roe, n=1": ("method=roe", "method.n=1"),
    "scmoe": ("method=scmoe", "method.beta=0"),
    "top-p": ("method=top-p", "method.p=1", "method.k_max=4"),
    "top-k": ("method=top-k", "method.k=4"),
    "calibration": ("method=calibration", "method.logit_scale=1"),
}
"""Methods that are the base model by construction. `model=tiny` takes 4 experts."""


TASKS = ("toy_text", "toy_math", "toy_choice")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_no_method_that_is_the_base_model_differs_from_it(task, tmp_path):
    """Broken by a p for rounding. In bfloat16 greedy tokens may flip: answers change,
    and none of it is significant.

    Each pair of a method, a task and a dtype occurs.
    """
    for number, (name, keys) in enumerate(SAME.items()):
        dtype = ("bfloat16", "float32")[(number + TASKS.index(task)) % 2]
        rows = frame(*keys, f"task={task}", f"dtype={dtype}", "limit=8", f"output_dir={tmp_path}")
        [row] = rows[rows["compared_with"] == "base"].to_dict("records")
        if task == "toy_text":
            assert "equal" in row["notes"], name
            assert pd.isna(row["p_holm"]), name
        else:
            assert row["p_holm"] > 0.05, name
            assert pd.notna(row["to_right"]), name
            assert pd.notna(row["to_wrong"]), name
            if dtype == "float32":
                assert (row["to_right"], row["to_wrong"]) == (0, 0), name


# Stored results


@pytest.mark.slow
def test_each_results_json_is_parsed_once_per_command(tmp_path, capsys, monkeypatch):
    parsed: Counter[Path] = Counter()
    whole_mapping = stored_results.whole_mapping

    def counted(path: Path):
        if path.name == "results.json" and path.exists():
            parsed[path] += 1
        return whole_mapping(path)

    monkeypatch.setattr(stored_results, "whole_mapping", counted)

    def command(*argv: str) -> str:
        """Its output; nothing is known from the command before, as in a process of its own."""
        parsed.clear()
        stored_results._parsed.cache_clear()
        ended = run_command(
            capsys, "method.n=2", "limit=2", "seeds=2", f"output_dir={tmp_path}", *argv
        )
        assert ended.code == 0, ended.err
        return ended.out

    written = command()
    files = sorted(tmp_path.glob("runs/*/results.json"))
    assert len(files) == 3, "two seeds and their baseline"
    assert max(parsed.values()) == 1
    for argv in ((), ("mode=plan",), ("mode=report",)):
        out = command(*argv)
        assert parsed == dict.fromkeys(files, 1)
        if argv != ("mode=plan",):
            assert out.splitlines()[-2:] == written.splitlines()[-2:]
