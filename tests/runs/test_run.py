"""Breaks if a run's result depends on interruptions, if work is done twice, if a wrong result
is returned, or if what is short while running gives a traceback.
"""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from moe_lab.config.progress import Progress
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.engine import lm
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError, ModelError, MoeLabError, RunHeldError, TaskError
from moe_lab.models.memory import ModelPool
from moe_lab.results import versions
from moe_lab.results.marks import marks_of
from moe_lab.results.model import RunResult
from moe_lab.runs.attempts import run_all
from moe_lab.runs.execute import execute
from moe_lab.runs.jobs import jobs_of
from moe_lab.runs.planning.workload import workload_of
from moe_lab.runs.prepare import prepare
from moe_lab.runs.run import Outcome
from moe_lab.tasks.answer_numbers import answer_number
from tests.support.command import run_command
from tests.support.models import make_model, make_tokenizer
from tests.support.runs import config, small_data

METRIC = "acc_norm,none"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return small_data(tmp_path / "data")


@pytest.fixture
def roe(tiny_olmoe_dir: Path, data: Path, tmp_path: Path) -> Config:
    """RoE on ten questions of three choices: 30 requests, and 30 of its baseline."""
    keys = {"n": 2, "temperature": 2.0}
    return config(
        tiny_olmoe_dir, data, tmp_path / "out", "arc_easy", "roe", method_keys=keys, num_fewshot=2
    )


def run(run_config: Config) -> Outcome:
    return execute(prepare(run_config), ModelPool())


def numbers(results: RunResult | dict[str, Any]) -> dict[str, Any]:
    """A result without what an interruption may change: what was spent, and the share of changed
    routings, which is counted over all that was computed."""
    block = {key: value for key, value in results["moe_lab"].items() if key not in ("cost", "roe")}
    content = results.content if isinstance(results, RunResult) else results
    return content | {"moe_lab": block}


def watched(
    before: Callable[[EngineLM, Any], None], after: Callable[[], None] = lambda: None
) -> Any:
    """`EngineLM.answer` that calls `before` and `after` around the logging of each answer."""
    answer = EngineLM.answer

    def watching(self: EngineLM, kind: str, requests: list[Any], on_answer: Any) -> None:
        def report(index: int, response: Any) -> None:
            before(self, requests[index])
            on_answer(index, response)
            after()

        answer(self, kind, requests, report)

    return watching


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The answers that a model computed, in this process and its children, read from a file."""
    file = tmp_path / "calls"
    file.touch()

    def counted(lm: EngineLM, request: Any) -> None:
        with file.open("a") as log:
            log.write(f"{lm.ensemble.n} {request.args!r}\n")

    monkeypatch.setattr(EngineLM, "answer", watched(counted))
    return lambda: file.read_text().splitlines()


@pytest.mark.slow
def test_a_run_writes_what_the_contract_says(roe):
    outcome = run(replace(roe, limit=7, seed=3, overrides=["method=roe"]))
    assert_files(outcome, Path(roe.output_dir))
    assert_block_keys(outcome)
    assert_settings(outcome, Path(str(roe.data_dir)))
    assert_comparison(outcome)
    assert_cost(outcome.results["moe_lab"]["cost"])


def assert_files(outcome: Outcome, output_dir: Path) -> None:
    """The run's folder has the documented files."""
    folder = outcome.run.folder
    assert outcome.path == folder / "results.json"
    assert not outcome.stored
    assert folder.parent == output_dir / "runs"
    assert folder.name == f"small-roe-arc_easy-{outcome.run.run_id[:8]}"
    assert json.loads(outcome.path.read_text()) == outcome.results.content
    assert not (folder / "status.json").exists()
    assert yaml.safe_load((folder / "overrides.yaml").read_text()) == ["method=roe"]
    assert yaml.safe_load((folder / "config.yaml").read_text())["method"]["n"] == 2
    lines = [
        json.loads(line) for line in (folder / "samples_arc_easy.jsonl").read_text().splitlines()
    ]
    assert [line["doc_id"] for line in lines] == outcome.run.samples["arc_easy"]
    assert len(lines) == 7
    assert lines[0]["arguments"]["gen_args_0"]["arg_1"] == " red"
    assert len((folder / "responses.jsonl").read_text().splitlines()) >= 22


def assert_block_keys(outcome: Outcome) -> None:
    block = outcome.results["moe_lab"]
    keys = (
        "schema_version run_id status partial model method task seed overrides versions statistics "
        "rounding samples cost intervals baseline paired roe"
    )
    assert set(block) - {"untuned"} == set(keys.split())
    assert block["schema_version"] == 1
    assert block["status"] == "success"
    assert block["partial"] is True


def assert_settings(outcome: Outcome, data_dir: Path) -> None:
    """Seed, task, samples and model are stored; the base model has no seed."""
    block = outcome.results["moe_lab"]
    base_results = outcome.run.compared_runs["baseline"].stored()
    assert block["seed"] == 3
    assert base_results is not None
    assert base_results["moe_lab"]["seed"] is None
    data = {"arc_easy": f"files in {data_dir / 'arc_easy'}"}
    assert block["task"] == {
        "name": "arc_easy",
        "tasks": ["arc_easy"],
        "data": data,
        "metric": "acc,none",
    }
    assert block["samples"] == outcome.run.samples
    assert len(block["samples"]["arc_easy"]) == 7
    assert block["model"]["attn_implementation"] == "sdpa"
    assert block["model"]["experts_implementation"]
    assert block["model"]["family"] == "olmoe"
    assert block["model"]["moe_layers"] == 4


def assert_comparison(outcome: Outcome) -> None:
    """The difference is that of the two scores, and both have intervals."""
    block = outcome.results["moe_lab"]
    paired = block["paired"]["arc_easy"][METRIC]
    scores = outcome.results["results"]["arc_easy"]
    assert paired["n"] == 7
    assert len(paired["ci95"]) == 2
    assert 0 <= paired["p_mcnemar"] <= 1
    base = block["baseline"]["results"]["arc_easy"][METRIC]
    assert paired["difference"] == pytest.approx(scores[METRIC] - base)
    low, high = block["intervals"]["arc_easy"][METRIC]
    assert low <= scores[METRIC] <= high


def assert_cost(cost: dict[str, Any]) -> None:
    assert cost["tokens_in"] > 0
    assert cost["wall_seconds"] > 0
    assert cost["peak_memory_bytes"] > 0
    assert cost["device"] == "cpu"
    assert cost["energy_joules"] is None


def test_intervals_of_earlier_methods_are_made_anew_without_the_model(roe, calls, loads):
    first = run(replace(roe, limit=3))
    stored = json.loads(first.path.read_text())
    stored["moe_lab"]["paired"]["arc_easy"][METRIC]["ci95"] = [0.0, 0.0]
    del stored["moe_lab"]["statistics"]
    first.path.write_text(json.dumps(stored))
    shown_results = first.run.stored()
    assert shown_results is not None
    assert "older-intervals" in marks_of(shown_results)
    call_count = len(calls())
    loaded = len(loads)
    second_results = run(replace(roe, limit=3)).results
    assert (len(calls()), len(loads)) == (call_count, loaded)
    assert numbers(second_results) == numbers(first.results)
    assert "older-intervals" not in marks_of(second_results)


def test_progress_names_each_run(roe, monkeypatch):
    """Broken by bars of a run and its baseline that look the same."""
    titles = []

    class Noted(Progress):
        def __init__(self, *arguments: Any, **keys: Any):
            super().__init__(*arguments, **keys)
            titles.append(self.title)

    monkeypatch.setattr(lm, "Progress", Noted)
    done = run(replace(roe, limit=2)).run
    assert done.baseline is not None
    assert titles == [
        f"{run_of_title.folder.name}: loglikelihood" for run_of_title in (done.baseline, done)
    ]


@pytest.mark.slow
def test_a_damaged_result_of_the_baseline_is_made_again(roe, calls):
    """Broken by a returned result whose comparison's stored result stays damaged."""
    small = replace(roe, limit=2)
    first = run(small)
    call_count = len(calls())
    baseline = first.run.baseline
    assert baseline is not None
    assert run(small).stored
    whole = baseline.stored()
    (baseline.folder / "results.json").write_text('{"text": 1}')
    second_outcome = run(small)
    made = baseline.stored()
    assert whole is not None
    assert made is not None
    assert made["results"] == whole["results"]
    assert second_outcome.results["results"] == first.results["results"]
    assert len(calls()) == call_count
    assert run(small).stored


@pytest.mark.slow
def test_a_baseline_comes_later_and_rerun_computes_again(roe, calls):
    without_baseline = run(replace(roe, baseline=False))
    assert "baseline" not in without_baseline.results["moe_lab"]
    assert len(calls()) == 30
    with_baseline = run(roe)
    assert with_baseline.results["moe_lab"]["paired"], "only the baseline was computed"
    assert len(calls()) == 60, "only the baseline was computed"
    assert with_baseline.results["results"] == without_baseline.results["results"]
    cost = with_baseline.results["moe_lab"]["cost"]
    assert cost == without_baseline.results["moe_lab"]["cost"]
    assert run(replace(roe, baseline=False)).stored
    second_outcome = run(replace(roe, rerun=True))
    assert not second_outcome.stored
    assert numbers(second_outcome.results) == numbers(with_baseline.results)
    assert len(calls()) == 90, "the baseline is not run again"
    assert not list(second_outcome.run.folder.glob("*rerun*"))


@pytest.mark.slow
@pytest.mark.parametrize(("whose", "lines"), [("run", 0), ("baseline", 7)])
def test_a_log_of_samples_that_lacks_lines_is_made_again_without_a_model(
    roe, calls, capsys, whose, lines
):
    whole = run(roe)
    computed = len(calls())
    damaged = prepare(roe) if whose == "run" else prepare(roe).baseline
    assert damaged is not None
    file = damaged.folder / "samples_arc_easy.jsonl"
    text = file.read_text()
    file.write_text("".join(text.splitlines(keepends=True)[:lines]))
    if whose == "baseline":
        whole.path.unlink()
    second_outcome = run(roe)
    assert numbers(second_outcome.results) == numbers(whole.results)
    assert second_outcome.results["moe_lab"]["paired"]["arc_easy"][METRIC]["n"] == 10
    assert file.read_text() == text
    assert len(calls()) == computed
    assert f"{file} is damaged: {lines} lines" in capsys.readouterr().err


def test_base_is_its_own_run(roe):
    baseline: Any = prepare(replace(roe, seed=3, seeds=2, rerun=True)).baseline
    base = prepare(replace(roe, method=baseline.config.method))
    assert base.baseline is None
    assert base.run_id == baseline.run_id
    assert (
        replace(base.config, seeds=1, baseline=False, overrides=["method=base"]) == baseline.config
    )


@pytest.mark.slow
def test_a_model_is_loaded_once_and_freed_for_the_next(roe, loads):
    pool = ModelPool()
    execute(prepare(roe), pool)
    execute(prepare(replace(roe, seed=1)), pool)
    assert len(loads) == 1
    execute(prepare(replace(roe, dtype="bfloat16")), pool)
    assert len(loads) == 2


KILLS = ["before 3", "after 12", "samples", "results", "after 2", "before 28", "samples", "results"]
"""Before or after the n-th answer of a process is logged, and when samples or the result
are written: the first four meet the baseline, the others the run. "before 28" leaves its last
answer but one computed and not logged."""


def _killed(run_config: Config, kill: str, file: Path) -> None:
    """In a child: execute, and end by SIGKILL at the given moment."""
    from moe_lab.runs import execute as evaluation

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    moment, _, count = kill.partition(" ")
    if count:
        answered = {"before": 0, "after": 0}

        def die_at(place: str) -> None:
            answered[place] += 1
            if moment == place and answered[place] == int(count):
                die()

        answer = watched(lambda *_: die_at("before"), lambda: die_at("after"))
        EngineLM.answer = answer  # type: ignore[method-assign]
    if moment == "samples":
        evaluation.write_samples = lambda *_: die()
    if moment == "results":
        write_json = evaluation.write_json

        def die_at_results(path: Path, content: Any) -> None:
            if path.name == "results.json":
                die()
            write_json(path, content)

        evaluation.write_json = die_at_results
    run(run_config)


@pytest.mark.slow
def test_kill_9_at_any_moment_and_the_same_command(roe, tmp_path, calls):
    whole = run(replace(roe, output_dir=str(tmp_path / "whole")))
    computed = len(calls())
    context = multiprocessing.get_context("fork")
    for kill in KILLS:
        child = context.Process(target=_killed, args=(roe, kill, tmp_path / "calls"))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL, kill
    outcome = run(roe)
    assert numbers(outcome.results) == numbers(whole.results)
    # two answers were computed and not logged when the kill came ("before"):
    # only these two are computed again
    later_calls = calls()[computed:]
    assert len(later_calls) == 60 + 2
    assert set(later_calls) == set(calls()[:computed])
    block = outcome.results["moe_lab"]
    uninterrupted = whole.results["moe_lab"]
    changed = [block_of_run["roe"]["changed_fraction"] for block_of_run in (block, uninterrupted)]
    assert changed[0] == pytest.approx(changed[1], abs=0.05)
    assert block["cost"]["load_seconds"] > uninterrupted["cost"]["load_seconds"]
    assert block["cost"]["tokens_in"] >= uninterrupted["cost"]["tokens_in"]


def _execute(run_config: Config, ready: Any, go: Any) -> None:
    answer = EngineLM.answer

    def slow(self: EngineLM, *args: Any) -> None:
        ready.set()
        assert go.wait(60)
        answer(self, *args)

    EngineLM.answer = slow  # type: ignore[method-assign]
    outcomes, failures = run_all(jobs_of([run_config]), ModelPool())
    assert len(outcomes) == 1
    assert not failures


@pytest.mark.slow
def test_two_processes_with_one_run(roe, calls):
    """The second command is refused.

    A command with another run that needs the same baseline waits for it.
    """
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    go = context.Event()
    first = context.Process(target=_execute, args=(roe, ready, go))
    first.start()
    assert ready.wait(60)
    with pytest.raises(RunHeldError, match=rf"held by process {first.pid} on ") as held:
        run(roe)
    assert held.value.exit_code == 3
    second = context.Process(target=_execute, args=(replace(roe, seed=1), context.Event(), go))
    second.start()
    go.set()
    first.join(60)
    second.join(60)
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert len(calls()) == 3 * 30, "two seeds of RoE, and the baseline once"
    stored = run(roe), run(replace(roe, seed=1))
    for outcome in stored:
        assert outcome.stored
    assert stored[0].results["moe_lab"]["baseline"] == stored[1].results["moe_lab"]["baseline"]


@pytest.mark.slow
def test_the_votes_of_a_run_are_resumed(roe, calls):
    """Three samples of each of four documents, of RoE and of its baseline.

    Only a lost answer is sampled again.
    """
    task = TaskConfig(name="addsub", self_consistency=3)
    voting = replace(roe, task=task, num_fewshot=0, gen_kwargs={"max_gen_toks": 6}, limit=4)
    outcome = run(voting)
    assert len(calls()) == 24
    assert outcome.results["moe_lab"]["paired"]["addsub"]
    file = outcome.run.folder / "samples_addsub.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    texts = [line["resps"][0] for line in lines]
    assert len(texts) == 4
    for line, samples in zip(lines, texts, strict=True):
        assert len(samples) == 3
        assert len(set(samples)) > 1
        answers = [answer_number(text) for text in samples]
        assert line["filtered_resps"] == [max(answers, key=answers.count)]
    log = outcome.run.folder / "responses.jsonl"
    log_lines = log.read_text().splitlines(keepends=True)
    lost = max(i for i, line in enumerate(log_lines) if '"response"' in line)
    log.write_text("".join(log_lines[:lost]))
    (outcome.run.folder / "results.json").unlink()
    assert numbers(run(voting).results) == numbers(outcome.results)
    assert len(calls()) == 25


@pytest.mark.slow
def test_several_tasks_in_one_run_and_predict_only_without_scores(roe):
    names = ["arc_easy", "addsub"]
    both_tasks = replace(
        roe, task=TaskConfig(name=names, metric="acc,none"), gen_kwargs={"max_gen_toks": 4}, limit=3
    )
    outcome = run(both_tasks)
    block = outcome.results["moe_lab"]
    assert set(block["paired"]) == {"arc_easy", "addsub"}
    assert outcome.run.num_documents == 6
    assert outcome.run.folder.name.startswith("small-roe-arc_easy-addsub-")
    block = run(replace(both_tasks, task=TaskConfig(name=names), predict_only=True)).results[
        "moe_lab"
    ]
    assert block["intervals"] == {"arc_easy": {}, "addsub": {}}
    assert block["task"]["metric"] is None
    assert not {"baseline", "paired"} & set(block)


@pytest.mark.slow
def test_lm_evals_own_model_gives_the_same_scores(roe, tiny_olmoe_dir):
    """The whole path against `lm_eval.simple_evaluate` on the same documents and examples."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from moe_lab.tasks.loading import load_tasks

    base = prepare(replace(roe, limit=6)).baseline
    assert base is not None
    scores = execute(base, ModelPool()).results["results"]["arc_easy"]
    model = AutoModelForCausalLM.from_pretrained(tiny_olmoe_dir, dtype="float32")
    hf = HFLM(
        pretrained=model, tokenizer=AutoTokenizer.from_pretrained(tiny_olmoe_dir), batch_size=1
    )
    tasks = list(load_tasks(base.config)["tasks"].values())
    keys = {"num_fewshot": 2, "fewshot_random_seed": base.config.fewshot_seed}
    manager = TaskManager(include_defaults=False)
    expected = simple_evaluate(hf, tasks=tasks, samples=base.samples, task_manager=manager, **keys)
    assert expected is not None
    for key in ("acc,none", "acc_stderr,none", METRIC):
        assert scores[key] == expected["results"]["arc_easy"][key]


def test_preparing_makes_nothing(roe):
    prepared = prepare(roe)
    assert not prepared.done
    assert prepared.num_documents == 10
    assert not prepared.partial
    assert prepared.baseline is not None
    runs = (prepared.baseline, prepared)
    workloads = [workload_of(planned_run) for planned_run in runs]
    plain, rows = (
        planned_run.method.forward_tokens(
            workload_of(planned_run), planned_run.config, planned_run.facts
        )
        for planned_run in runs
    )
    assert workloads[0] == workloads[1], "two rows of each answer"
    assert plain + workloads[0].answers >= rows > plain > 1000, "two rows of each answer"
    assert (workloads[0].documents, workloads[0].requests) == (10, 30)
    assert not Path(roe.output_dir).exists()


def test_what_is_refused_before_weights_load(roe, tmp_path, monkeypatch):
    import moe_lab.models.load as load

    monkeypatch.setattr(load, "load_model", lambda *a, **k: pytest.fail("weights were loaded"))
    (tmp_path / "empty").mkdir()
    mute = tmp_path / "mute"
    shutil.copytree(str(roe.model.path), mute, ignore=shutil.ignore_patterns("tokenizer*"))
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        (
            {"data_dir": str(tmp_path / "absent")},
            TaskError,
            r"Or give .*absent/arc_easy/<split>\.jsonl",
        ),
        ({"samples": [10]}, TaskError, "documents 0 to 9"),
        ({"num_fewshot": 7}, TaskError, "more than the 6 examples"),
        ({"model": replace(roe.model, path=str(tmp_path / "empty"))}, ModelError, "is no model"),
        ({"model": replace(roe.model, path=str(mute))}, ModelError, r"model\.tokenizer"),
        ({"method": replace(roe.method, temperature=[0.1])}, ConfigError, "4 MoE layers"),
        ({"apply_chat_template": True}, ConfigError, "no chat template"),
        ({"task": TaskConfig(name="arc_easy", metric="acc")}, TaskError, "Did you mean 'acc,none'"),
        ({"gen_kwargs": {"max_gen_tok": 5}}, ConfigError, "Did you mean 'gen_kwargs.max_gen_toks'"),
        (
            {"task": TaskConfig(name="addsub"), "max_length": 256},
            ConfigError,
            "leaves no room for a prompt",
        ),
    ]
    for change, error, message in wrong:
        with pytest.raises(error, match=message) as refused:
            prepare(replace(roe, **change))
        assert refused.value.exit_code == 2  # type: ignore[attr-defined]
    assert not Path(roe.output_dir).exists()


@pytest.mark.slow
def test_a_dense_model_runs_with_base_only(roe, tmp_path):
    folder = tmp_path / "llama"
    make_model("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    dense = replace(roe, model=replace(roe.model, path=str(folder)))
    with pytest.raises(
        ModelError, match=r"No router was found(.|\n)*OLMoE(.|\n)*method=base` runs"
    ):
        prepare(dense)
    base = prepare(roe).baseline
    assert base is not None
    assert run(replace(dense, method=base.config.method, limit=2)).results["results"]


@pytest.mark.slow
def test_answers_made_with_other_versions_are_kept_aside(roe, monkeypatch, capsys):
    """A run is interrupted, then upgraded: its answers are neither erased nor mixed."""
    base = prepare(replace(roe, limit=2)).baseline
    assert base is not None
    execute(base, ModelPool())
    (base.folder / "results.json").unlink()
    earlier = (base.folder / "responses.jsonl").read_bytes()
    now = versions.versions()
    monkeypatch.setattr(versions, "versions", lambda: now | {"transformers": "0.0"})
    execute(base, ModelPool())
    aside = base.folder / "responses.1.old.jsonl"
    assert aside.read_bytes() == earlier
    messages = [line for line in capsys.readouterr().err.splitlines() if str(aside) in line]
    assert len(messages) == 1
    assert "not used" in messages[0]


# Too little memory


def raised(error: BaseException) -> Callable[[], None]:
    def short() -> None:
        raise error

    return short


@pytest.mark.slow
@pytest.mark.parametrize(
    "short",
    [
        raised(torch.OutOfMemoryError("CUDA out of memory")),
        raised(MemoryError()),
        lambda: torch.empty(2**60),
    ],
    ids=["device", "machine", "cpu"],
)
def test_too_little_memory_says_what_needs_less_and_keeps_answers_and_defects_raise(
    roe, monkeypatch, short
):
    computed: list[Any] = []
    run = prepare(replace(roe, baseline=False, limit=2))

    def compute_two(*arguments: Any) -> None:
        if len(computed) == 2:
            short()
        else:
            computed.append(arguments)

    with monkeypatch.context() as patch:
        patch.setattr(EngineLM, "answer", watched(compute_two))
        with pytest.raises(
            MoeLabError, match=r"batch_size=(.|\n)*max_length=(.|\n)*method\.n="
        ) as memory_error:
            execute(run, ModelPool())
    assert memory_error.value.exit_code == 1
    assert "Stored answers are kept" in str(memory_error.value)
    answers = [
        line
        for line in (run.folder / "responses.jsonl").read_text().splitlines()
        if '"key"' in line
    ]
    assert len(answers) == 2
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="a defect"):
        patch.setattr(EngineLM, "answer", lambda *_: raised(RuntimeError("a defect"))())
        execute(run, ModelPool())
    assert not execute(run, ModelPool()).stored


def test_a_stored_result_is_shown_with_the_settings_of_the_command_that_shows_it(
    tiny_olmoe_dir, data, tmp_path, capsys
):
    """The first command computes the run of the default, whose key the second one gives."""
    keys = ["method=top-p", "task=arc_easy", "limit=2", f"model.path={tiny_olmoe_dir}"]
    keys += [f"data_dir={data}", f"output_dir={tmp_path / 'out'}", "baseline=false"]
    assert run_command(capsys, *keys).code == 0

    ended = run_command(capsys, "-m", *keys, "method.p=0.4,1")

    rows = [line.split()[:2] for line in ended.out.splitlines() if "PARTIAL untuned" in line]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2, "one run is stored already"
    assert [row[0] for row in rows] == ["method.p=0.4", "method.p=1"], ended.out


def test_the_page_of_a_report_shows_the_command_that_computes_a_run(
    tiny_olmoe_dir, data, tmp_path, capsys
):
    keys = ["method=top-p", "task=arc_easy", "limit=2", f"model.path={tiny_olmoe_dir}"]
    keys += [f"data_dir={data}", f"output_dir={tmp_path / 'out'}", "baseline=false"]
    assert run_command(capsys, *keys).code == 0
    page = tmp_path / "out" / "report.html"
    computed = page.read_text()
    assert run_command(capsys, *keys, "mode=report").code == 0
    assert "python -m moe_lab method=top-p" in page.read_text()
    assert "mode=report" not in page.read_text()
    assert page.read_text() == computed
