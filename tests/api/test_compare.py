"""Breaks if mode=compare reports other numbers than scipy on lm-eval's own logs, or compares what
cannot be compared, or if `moe_lab.compare` has other numbers than the file.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

import moe_lab
from moe_lab.errors import ConfigError
from tests.support.command import run_command
from tests.support.lm_eval_logs import samples_of, write_log

PACKAGE = Path(moe_lab.__file__).parent
EMBEDDED = PACKAGE / "models" / "tiny"
LIMIT = 30
MINE = samples_of(acc=[0.0, 0.0, 0.0, 1.0])
THEIRS = samples_of(acc=[1.0, 1.0, 0.0, 0.0])
LONGER = samples_of(acc=[1.0] * 6)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with logs in `mine` and `theirs`, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("mine", MINE), ("theirs", THEIRS), ("same", MINE), ("longer", LONGER)):
        write_log(tmp_path / name, {"t": lines})
    return tmp_path


def test_the_same_command_writes_the_same_file_and_the_function_has_its_rows(logs, capsys):
    ended = [run_command(capsys, "mode=compare", "a=mine", "b=theirs") for _ in range(2)]
    assert ended[0] == ended[1]
    assert ended[0].code == 0
    path = ended[0].out.splitlines()[-1]
    [file] = (logs / "outputs" / "comparisons").glob("model-model-*/comparison.json")
    assert (logs / path).samefile(file)
    [row] = json.loads(file.read_text())["scores"]
    assert row["changed"] == {"to_right": [0, 1], "to_wrong": [3]}
    comparison = moe_lab.compare(
        logs / "mine", str(logs / "theirs"), logs / "same", output_dir=logs
    )
    frame = comparison.frame()
    rows = json.loads(comparison.file.read_text())["scores"]
    assert list(frame["run"]) == ["b1", "b2"] == [row["run"] for row in rows]
    assert len(comparison) == 2
    assert list(frame["p_holm"]) == [row["p_holm"] for row in rows]
    assert list(frame["to_right"]) == [2, 0]
    assert list(frame["difference"]) == [0.25, 0.0]
    assert "b1: " in repr(comparison)
    assert "p (Holm)" in comparison._repr_html_()
    assert comparison.page.suffix == ".html"
    assert comparison.page.exists()
    write_log(logs / "others", {"u": THEIRS})
    with pytest.raises(ConfigError, match="no task in common"):
        moe_lab.compare(logs / "mine", logs / "others", output_dir=logs)


def test_paths_with_blanks_and_equal_signs(logs, capsys):
    for name in ("my run (1)", "seed=1"):
        write_log(logs / name, {"t": MINE})
        assert run_command(capsys, "mode=compare", f"a={name}", "b=theirs").code == 0
        assert run_command(capsys, "mode=compare", "a=theirs", f"b={name},same").code == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a=mine"], "go together"),
        (["b=mine"], "go together"),
        ([], "go together"),
        (["a=mine", "b=theirs", "mode=run"], "go together"),
        (["a=mine", "b=mine/"], "the same result twice"),
        (["a=mine", "b=gone"], "b=gone has no results"),
        (["a=mine", "b=longer"], "2 of 6 only in b.\n"),
        (
            ["a=mine", "b=longer"],
            "Evaluate both on the same documents (limit=, samples=, data_dir=).",
        ),
        (["a=mine", "b=theirs", "limit=5"], "limit=5 changes nothing"),
        (
            ["a=mine", "b=theirs", "experiment=roe/figure3"],
            "experiment=roe/figure3 changes nothing",
        ),
        (["a=mine", "b=theirs", "seed=0,1", "-m"], "takes no grid"),
    ],
)
def test_wrong_requests(logs, capsys, argv, message):
    ended = run_command(capsys, "mode=compare", *argv)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert not (logs / "outputs").exists()


def evaluate(folder: Path, model: Path, tasks: list[str], **options: Any) -> None:
    """What `lm_eval --model hf --log_samples --output_path <folder>` does."""
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    tracker = EvaluationTracker(output_path=str(folder))
    manager = TaskManager(include_path=str(PACKAGE / "tasks" / "toy"), include_defaults=False)
    arguments = f"pretrained={model},dtype=float32"
    of_model = {"model": "hf", "model_args": arguments, "device": "cpu", "batch_size": 16}
    logged = {
        "evaluation_tracker": tracker,
        "log_samples": True,
        "limit": LIMIT,
        "bootstrap_iters": 0,
    }
    results = simple_evaluate(**of_model, **logged, tasks=tasks, task_manager=manager, **options)
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in results["configs"]:
        tracker.save_results_samples(task_name=task, samples=samples[task])


def choice_samples(folder: Path) -> list[dict[str, Any]]:
    [file] = folder.glob("*/samples_toy_choice_*")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_lm_evals_own_logs(tiny_olmoe_dir, tmp_path, capsys):
    """The embedded model next to a random one; a plain loop over the logs counts."""
    task_names = ["toy_choice", "toy_text"]
    evaluate(tmp_path / "a", EMBEDDED, task_names)
    evaluate(tmp_path / "b", tiny_olmoe_dir, task_names)
    evaluate(tmp_path / "shots", tiny_olmoe_dir, ["toy_choice"], num_fewshot=2)
    ended = run_command(
        capsys, "mode=compare", f"a={tmp_path}/a", f"b={tmp_path}/b", f"output_dir={tmp_path}"
    )
    assert ended.code == 0
    content = json.loads(Path(ended.out.splitlines()[-1]).read_text())
    rows = {(row["task"], row["metric"]): row for row in content["scores"]}
    metrics = {"word_perplexity,none", "byte_perplexity,none", "bits_per_byte,none"}
    assert {metric for task, metric in rows if task == "toy_text"} == metrics

    right = wrong = 0
    samples_a = choice_samples(tmp_path / "a")
    samples_b = choice_samples(tmp_path / "b")
    for sample_a, sample_b in zip(samples_a, samples_b, strict=True):
        assert sample_a["doc_id"] == sample_b["doc_id"]
        right += sample_a["acc"] < sample_b["acc"]
        wrong += sample_a["acc"] > sample_b["acc"]
    row = rows["toy_choice", "acc,none"]
    assert right + wrong > 0
    assert (row["to_right"], row["to_wrong"], row["examples"]) == (right, wrong, LIMIT)
    assert row["p"] == pytest.approx(binomtest(right, right + wrong, 0.5).pvalue, abs=1e-12)

    ended = run_command(capsys, "mode=compare", f"a={tmp_path}/a", f"b={tmp_path}/shots")
    assert ended.code == 2
    assert (
        f"Other prompts of toy_choice: {LIMIT} of {LIMIT} documents. The first is document 0"
        in ended.err
    )


def test_names_cannot_steer_the_terminal_or_begin_a_line(logs, capsys):
    model = "x\x1b[2J\nError: all is lost\u202e"
    write_log(logs / "odd", {"t": MINE}, model_name=model, config={"model_args": {"a\x07": model}})
    ended = run_command(capsys, "mode=compare", "a=mine", "b=odd")
    assert ended.code == 0
    assert r"x\x1b[2J\nError: all is lost\u202e" in ended.out
    for line in (ended.out + ended.err).splitlines():
        assert not line.startswith("Error")
    assert not set("\x1b\x07\u202e") & set(ended.out + ended.err)


def _twice(folder: Path) -> Path:
    [file] = folder.glob("samples_*.jsonl")
    file.write_text(file.read_text() + file.read_text().splitlines()[0] + "\n")
    return file


def _wrong_type(folder: Path) -> Path:
    [file] = folder.glob("results_*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"results": {"t": [1]}}))
    return file


@pytest.mark.parametrize("damage", [_twice, _wrong_type])
@pytest.mark.parametrize("place", ["a", "b"])
def test_a_damaged_log_is_one_message_that_names_it(logs, capsys, damage, place):
    """Broken by a traceback, a hang, and a document that counts twice."""
    file = damage(logs / "theirs")
    other_places = {"a": "b", "b": "a"}[place]
    ended = run_command(capsys, "mode=compare", f"{place}=theirs", f"{other_places}=mine")
    assert ended.code == 2, ended.err
    assert file.name in ended.err, ended.err
    assert len(ended.err.splitlines()) <= 3, ended.err
