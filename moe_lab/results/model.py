"""A stored run as an object: the content of its results.json, by name.

The keys of the `moe_lab` block are read here and nowhere else; `runs/evaluation/result_block.py` writes them.
docs/results.md describes the file.
"""

import glob
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from moe_lab.results.identity import decisive_versions
from moe_lab.results.measured import Interval, Paired, read_interval
from moe_lab.results.rounding import Rounding
from moe_lab.results.statistics import VERSION
from moe_lab.results.stored_files import AGAIN, DamagedError, damaged, parsed_once

Block = Mapping[str, Any]
"""A part of a results.json."""
BASE = "base"
"""The name of the base model's run in comparisons."""
Name = Annotated[str, Field(min_length=1)]
Limits = Annotated[tuple[float | None, float | None], Field(strict=False)]
"""A 95% interval, as JSON has it."""
Scores = dict[str, dict[str, Any]]
"""By task, then by lm-eval's `metric,filter`."""


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """By `group.key`, and `group.key.key` where a key has keys of its own."""
    nested = {
        f"{group}.{key}": value
        for group, section in values.items()
        if isinstance(section, dict)
        for key, value in flat(section).items()
    }
    return {key: value for key, value in values.items() if not isinstance(value, dict)} | nested


class Stored(BaseModel):
    """A part of a stored file. It may have further keys."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)


class LmEvalResults(Stored):
    """What lm-eval writes into a results file."""

    results: Scores
    configs: Scores = {}
    config: dict[str, Any] | None = None
    groups: dict[str, Any] = {}
    group_subtasks: dict[str, list[str]] = {}
    higher_is_better: Scores = {}
    task_versions: dict[str, Any] = Field({}, alias="versions")
    n_samples: Scores = Field({}, alias="n-samples")
    lm_eval_version: str | None = None
    model_name: str | None = None

    def scores(self, name: str) -> Block:
        """lm-eval's scores of a task or a group, by `metric,filter`; empty for one that was not evaluated."""
        return self.results.get(name, {})

    def better(self, task: str, metric: str) -> bool | None:
        """Whether lm-eval says that a higher value of a `metric,filter` is better; None if the file does not say."""
        found = self.higher_is_better.get(task, {}).get(metric.partition(",")[0])
        return found if isinstance(found, bool) else None

    @property
    def rounding(self) -> Rounding:
        """Which values of an example are equal within rounding; of lm-eval's own result the dtype is known alone."""
        return Rounding(str((self.config or {}).get("model_dtype")).removeprefix("torch."))

    def leaves(self, samples: Mapping[str, Any], name: str) -> list[str]:
        """A task itself, which is in `samples`; the tasks of a group, and of the groups in it."""
        children = self.group_subtasks.get(name, [])
        if name in samples or not children:
            return [name]
        return [task for child in children for task in self.leaves(samples, child)]


class JudgeCounts(Stored):
    """How many answers to a task a judge was asked about."""

    documents: int
    judged: int
    failed: dict[str, int] = {}
    """By reason."""
    empty: int | None = None
    """Answers without text; None in results of earlier versions."""
    cut: dict[str, int] | None = None
    """Exchanges that were too long for the judge, by the part of which it did not read all (prompt, answer); None in
    results of earlier versions."""

    @property
    def all_cut(self) -> int | None:
        """The number of exchanges that were too long for the judge."""
        return None if self.cut is None else sum(self.cut.values())


class JudgeVerdicts(Stored):
    """The verdicts of one judge on the answers of a run."""

    metrics: list[str]
    toy: bool = False
    tasks: dict[str, JudgeCounts] = {}

    def counts(self, task: str | None) -> list[JudgeCounts]:
        """The counts of a task, or of all tasks."""
        return [counts for name, counts in self.tasks.items() if task in (None, name)]

    def judged_all(self, task: str | None) -> bool:
        """Whether all answers of a task, or of all tasks, have a verdict."""
        return all(counts.judged == counts.documents for counts in self.counts(task))

    def unjudged(self, name: str) -> Iterator[str]:
        """A line for each task with unjudged answers: how many were judged, and why the others were not."""
        for task, counts in self.tasks.items():
            if self.judged_all(task):
                continue
            why = [f"{number} {reason}" for reason, number in counts.failed.items()]
            judged = f"{task}, {name}: judged {counts.judged:,} of {counts.documents:,} answers"
            yield f"{judged} ({'; '.join(why)})"


class OtherRun(Stored):
    """A run that a run is compared with, on the same documents."""

    run_id: Name
    results: Scores = {}
    paired: Scores = {}


def _block(*path: str, default: Any = ...) -> Any:
    """A field that has its place in the `moe_lab` block."""
    return Field(default, validation_alias=AliasPath("moe_lab", *path))


class RunResult(LmEvalResults):
    """A stored run. Raises pydantic's ValidationError for a content that is no results.json of this package."""

    content: dict[str, Any]
    """The whole results.json."""
    folder: Path | None = None
    """None for a result that is not stored."""
    asked: str | None = None
    """The headline metric of the command that shows it; None for that of the command that computed it."""

    # What ran.

    run_id: Name = _block("run_id")
    status: str | None = _block("status", default=None)
    schema_version: int | None = _block("schema_version", default=None)
    seed: int | None = _block("seed", default=None)
    """That of the method, else that of the training on first use that made the model, else None."""
    overrides: list[str] = _block("overrides", default=[])
    config_dirs: list[str] = _block("config_dirs", default=[])
    model: Name = _block("model", "name")
    commit: str | None = _block("model", "commit", default=None)
    """Of a hub model."""
    dtype: str | None = _block("model", "dtype", default=None)
    experts: int | None = _block("model", "experts", default=None)
    """Of an MoE layer."""
    top_k: int | None = _block("model", "top_k", default=None)
    method: Name = _block("method", "name")
    method_config: Annotated[dict[str, Any], AfterValidator(flat)] = _block(
        "method", "config", default={}
    )
    """The method's keys, nested ones with dots: `space.scale`."""
    requested: Annotated[
        list[Name], BeforeValidator(lambda name: [name] if isinstance(name, str) else name)
    ] = _block("task", "name")
    """The tasks and groups that were asked for."""
    tasks: list[Name] = _block("task", "tasks")
    """The tasks that were evaluated, those of groups one by one."""
    headline: str | None = _block("task", "metric", default=None)
    samples: dict[str, list[int]] = _block("samples")
    """Document numbers by task."""
    partial: bool = _block("partial", default=False)
    untuned: bool = _block("untuned", default=False)
    versions: dict[str, str | None] = _block("versions", default={})
    statistics: int | None = _block("statistics", default=None)

    # What came out.

    intervals: dict[str, dict[str, Limits | None]] = _block("intervals", default={})
    cost: dict[str, Any] = _block("cost", default={})
    """What the answers cost, by the keys of docs/results.md; a number may be missing."""
    judges: dict[str, JudgeVerdicts] = _block("judges", default={})
    tuning: dict[str, Any] = _block("tuning", default={})
    """The study whose values the run has (`methods/profile.py: Profile.block`); empty without one."""
    baseline: OtherRun | None = _block("baseline", default=None)
    paired_with_base: Scores = _block("paired", default={})
    others: dict[str, OtherRun] = _block("compared", default={})
    """The runs that it is compared with, other than the base model's."""
    measured_rounding: float | None = _block("rounding", default=None)

    def __init__(self, content: Mapping[str, Any], folder: Path | None = None):
        super().__init__(**{**content, "content": content, "folder": folder})

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    @property
    def command(self) -> str:
        """The command line that computes it."""
        return command_line(self.overrides, self.config_dirs)

    @property
    def metric(self) -> str | None:
        """The headline metric as lm-eval's `metric,filter`; None with predict_only."""
        return self.asked or self.headline

    @property
    def num_documents(self) -> int:
        return sum(map(len, self.samples.values()))

    @property
    def version_notes(self) -> list[str]:
        """A note for each decisive package with another version now: "made with lm_eval 0.4.12, now 0.4.13"."""
        pairs = {name: (self.versions.get(name), now) for name, now in decisive_versions().items()}
        return [
            f"made with {name} {then}, now {now}"
            for name, (then, now) in pairs.items()
            if then != now
        ]

    @property
    def older_intervals(self) -> bool:
        """Whether an earlier version computed the intervals, and they can be computed again from the stored answers."""
        return self.statistics != VERSION and not self.version_notes

    @property
    def settings(self) -> dict[str, object]:
        """The parts of the block that name the run in a summary over seeds."""
        block = self.content["moe_lab"]
        names = ("model", "method", "task", "untuned", "tuning", "judges")
        parts = {name: block[name] for name in names if name in block}
        return parts | {"task": {**block["task"], "metric": self.metric}}

    @property
    def stored_in(self) -> Path:
        """Its folder. The result is stored."""
        assert self.folder is not None
        return self.folder

    def answer_form(self, name: str) -> str:
        """How the choices of a task or a group were asked for (`task.answer`): text or letters."""
        # the column of `moe_lab.tasks.answer_forms`, which replaces the task's own
        asked = [
            self.configs.get(task, {}).get("doc_to_choice") == "letters"
            for task in self.tasks_of(name)
        ]
        return "letters" if any(asked) else "text"

    def examples_of_test(self, name: str | None = None) -> bool:
        """Whether the few-shot examples of a task, of a group or of any task come from the evaluated split."""
        tasks = self.tasks if name is None else self.tasks_of(name)
        return any(_examples_of_test(self.configs.get(task, {})) for task in tasks)

    def tasks_of(self, name: str) -> list[str]:
        """A task itself; the tasks of a group, and of the groups in it."""
        return self.leaves(self.samples, name)

    def interval(self, task: str, metric: str) -> Interval | None:
        return read_interval(self.intervals.get(task, {}).get(metric))

    def judge_counts(self, task: str, metric: str) -> JudgeCounts | None:
        """The counts of the judge whose metric (lm-eval's `metric,filter`) it is; None for another metric."""
        for judge in self.judges.values():
            if metric in judge.metrics and task in judge.tasks:
                return judge.tasks[task]
        return None

    @property
    def unjudged(self) -> list[str]:
        """One line per task and judge with unjudged answers."""
        return [line for name, judge in self.judges.items() for line in judge.unjudged(name)]

    @property
    def report(self) -> Block:
        """What the run's method reports of itself; empty where it reports nothing."""
        return self.content["moe_lab"].get(self.method.replace("-", "_")) or {}

    def reports(self, key: str) -> bool:
        """Whether a block that the run's method wrote has a true value for a key (`Method.report`)."""
        return any(
            block.get(key)
            for block in self.content["moe_lab"].values()
            if isinstance(block, Mapping)
        )

    # Comparisons on the same documents.

    @property
    def rounding(self) -> Rounding:
        """Which values of the run and of its base model's are equal within rounding."""
        return Rounding(self.dtype, self.measured_rounding)

    @property
    def base_id(self) -> str | None:
        """The id of the base model's run that it is compared with; None without one."""
        return self.baseline.run_id if self.baseline else None

    def other_scores(self, task: str, other: str = BASE) -> Block:
        """The scores of the run that it is compared with; empty without one."""
        found = self.baseline if other == BASE else self.others.get(other)
        return found.results.get(task, {}) if found else {}

    def paired(self, task: str, metric: str, other: str = BASE) -> Paired:
        """The difference to another run; without a number where the runs are not compared."""
        found = self.others.get(other)
        pairs = self.paired_with_base if other == BASE else found.paired if found else {}
        return Paired.from_json(pairs.get(task, {}).get(metric, {}))


def _examples_of_test(config: Block) -> bool:
    """Whether lm-eval draws few-shot examples from the split that it evaluates, by a task's stored configuration."""
    if not config.get("num_fewshot"):
        return False
    validation = config.get("validation_split")
    evaluated = config.get("test_split") or validation
    fewshot = config.get("fewshot_config") or {}
    if fewshot.get("split") is not None:
        return bool(fewshot["split"] == evaluated)
    if fewshot.get("samples") is not None:
        return False
    examples = config.get("training_split") or validation or config.get("test_split")
    return examples is not None and bool(examples == evaluated)


def command_line(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> str:
    """The command line of some overrides, quoted for a shell; `config_dirs` are the folders of `--config-dir`."""
    flags = [part for folder in config_dirs for part in ("--config-dir", folder)]
    return shlex.join(["python", "-m", "moe_lab", *flags, *overrides])


def stored_results(content: Mapping[str, Any], file: Path, advice: str = AGAIN) -> LmEvalResults:
    """The results in a file; a RunResult, if this package wrote them. Raises DamagedError for any other content."""
    try:
        return RunResult(content, file.parent) if "moe_lab" in content else LmEvalResults(**content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise damaged(
            file, f"{'.'.join(map(str, first['loc']))}: {first['msg']}", advice
        ) from error


def read_run(folder: Path) -> RunResult | None:
    """The run that is stored in a folder; None without a results.json of this package. Raises DamagedError."""
    file = folder / "results.json"
    content = parsed_once(file)
    found = None if content is None else stored_results(content, file)
    return found if isinstance(found, RunResult) else None


def find_run(runs: Path, run_id: str) -> RunResult | None:
    """The run with this id in `outputs/runs`, whose folders end in the first 8 characters of their ids."""
    for folder in sorted(runs.glob(f"*-{glob.escape(run_id[:8])}")):
        try:
            found = read_run(folder)
        except DamagedError:
            continue  # the run's own command says so
        if found is not None and found.run_id == run_id:
            return found
    return None


def compared_names(results: Iterable[RunResult]) -> list[str]:
    """The runs that any of the results is compared with, other than the base model's."""
    return list(dict.fromkeys(name for result in results for name in result.others))
