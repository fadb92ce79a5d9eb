"""A run's results.json as an object: lm-eval's results, and the block `moe_lab` with its parts.

`runs/evaluation/result_block.py` fills the block. docs/results.md describes the file.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from operator import not_
from pathlib import Path
from typing import Any

from pydantic import Field

from moe_lab.results.judge_counts import JudgeCounts, JudgeVerdicts
from moe_lab.results.lm_eval_results import LmEvalResults
from moe_lab.results.measured import Paired
from moe_lab.results.rounding import Rounding
from moe_lab.results.run_parts import Comparisons, Cost, MethodPart, ModelPart, OtherRun, TaskPart
from moe_lab.results.statistics import VERSION
from moe_lab.results.stored import Interval, Name, Stored, StoredInterval
from moe_lab.results.versions import decisive_versions

BASE = "base"
"""The name of the base model's run in comparisons."""
NO_DIFFERENCE = Paired()
WRITTEN_LAST = ("chat_template", "judges")
"""Keys that the file has after those of the method's report."""


class RunBlock(Stored):
    """The block `moe_lab` of results.json (schema version 1). A part that does not apply is absent.

    Further keys are the blocks that the method reports (`Method.report`).
    """

    # What ran.

    schema_version: int | None = None
    run_id: Name
    status: str | None = None
    partial: bool = False
    model: ModelPart
    method: MethodPart
    task: TaskPart
    seed: int | None = None
    """That of the method, else that of the training on first use that made the model, else None."""
    overrides: list[str] = Field([])
    config_dirs: list[str] = Field([], exclude_if=not_)
    versions: dict[str, str | None] = Field({})
    statistics: int | None = None
    """The version of the methods that computed intervals and comparisons."""
    rounding: float | None = None
    """The measured bound of rounding, in nats."""
    samples: dict[str, list[int]]
    """Document numbers by task."""

    # What came out.

    cost: Cost = Cost()
    intervals: dict[str, dict[str, StoredInterval]] = Field({})
    """By task, then by lm-eval's `metric,filter`."""
    paired: Comparisons = Field({}, exclude_if=not_)
    """Differences to the base model's run."""
    baseline: OtherRun | None = Field(None, exclude_if=not_)
    compared: dict[str, OtherRun] = Field({}, exclude_if=not_)
    """The runs that it is compared with, other than the base model's."""
    failed: list[dict[str, Any]] = Field([], exclude_if=not_)
    """The metrics that could not be computed (`MetricFailure`)."""
    untuned: bool = Field(False, exclude_if=not_)
    tuning: dict[str, Any] = Field({}, exclude_if=not_)
    """The study whose values the run has (`methods/profile.py: Profile.block`); empty without
    one."""
    chat_template: dict[str, Any] = Field({}, exclude_if=not_)
    judges: dict[str, JudgeVerdicts] = Field({}, exclude_if=not_)

    def to_json(self) -> dict[str, Any]:
        """The block as results.json has it. The keys of `WRITTEN_LAST` come last."""
        block = self.model_dump(by_alias=True)
        for key in WRITTEN_LAST:
            if key in block:
                block[key] = block.pop(key)
        return block

    @property
    def report(self) -> Mapping[str, Any]:
        """What the run's method reports under its own name; empty where it reports nothing."""
        reports = self.model_extra or {}
        return reports.get(self.method.name.replace("-", "_")) or {}

    def is_reported(self, key: str) -> bool:
        """Whether a block that the run's method reports has a true value for a key
        (`Method.report`)."""
        reports = self.model_extra or {}
        return any(block.get(key) for block in reports.values() if isinstance(block, Mapping))

    @property
    def num_documents(self) -> int:
        """The number of evaluated documents, of all tasks."""
        return sum(len(numbers) for numbers in self.samples.values())

    @property
    def command(self) -> str:
        """The command line that computes the run."""
        return command_line(self.overrides, self.config_dirs)

    @property
    def version_notes(self) -> list[str]:
        """A note for each decisive package with another version now: "made with lm_eval 0.4.12, now
        0.4.13"."""
        notes = []
        for name, now in decisive_versions().items():
            then = self.versions.get(name)
            if then != now:
                notes.append(f"made with {name} {then}, now {now}")
        return notes

    @property
    def older_intervals(self) -> bool:
        """Whether an earlier version computed the intervals, and they can be computed again from
        the stored answers."""
        return self.statistics != VERSION and not self.version_notes

    def interval(self, task: str, metric: str) -> Interval | None:
        """The 95% interval of a score; None for a score without one."""
        return self.intervals.get(task, {}).get(metric)

    def judge_counts(self, task: str, metric: str) -> JudgeCounts | None:
        """The counts of the judge whose metric (lm-eval's `metric,filter`) it is; None for another
        metric."""
        for judge in self.judges.values():
            if metric in judge.metrics and task in judge.tasks:
                return judge.tasks[task]
        return None

    @property
    def unjudged(self) -> list[str]:
        """One line per task and judge with unjudged answers."""
        lines: list[str] = []
        for name, judge in self.judges.items():
            lines += judge.unjudged(name)
        return lines

    # Comparisons on the same documents.

    @property
    def equality(self) -> Rounding:
        """Which values of the run and of its base model's are equal within rounding."""
        return Rounding(self.model.dtype, self.rounding)

    @property
    def base_id(self) -> str | None:
        """The id of the base model's run that it is compared with; None without one."""
        return None if self.baseline is None else self.baseline.run_id

    def other_scores(self, task: str, other: str = BASE) -> Mapping[str, Any]:
        """The scores of a task in the run that this one is compared with, by lm-eval's
        `metric,filter`; empty without a comparison."""
        run = self.baseline if other == BASE else self.compared.get(other)
        return {} if run is None else run.results.get(task, {})

    def difference(self, task: str, metric: str, other: str = BASE) -> Paired:
        """The difference to another run; `NO_DIFFERENCE`, which has no numbers, where the runs or
        the metric are not compared."""
        if other == BASE:
            differences = self.paired
        elif other in self.compared:
            differences = self.compared[other].paired
        else:
            return NO_DIFFERENCE
        return differences.get(task, {}).get(metric, NO_DIFFERENCE)


class RunResult(RunBlock):
    """A stored run. Raises pydantic's ValidationError for a content that is no results.json of this
    package."""

    lm_eval: LmEvalResults = Field(exclude=True)
    content: dict[str, Any] = Field(exclude=True)
    """The whole results.json."""
    folder: Path | None = Field(None, exclude=True)
    """None for a result that is not stored."""
    asked: str | None = Field(None, exclude=True)
    """The headline metric of the command that shows it; None for that of the command that computed
    it."""

    def __init__(self, content: Mapping[str, Any], folder: Path | None = None):
        block = content["moe_lab"]
        if not isinstance(block, Mapping):
            block = {}  # the error names the first key that is missing
        super().__init__(**{**block, "lm_eval": content, "content": content, "folder": folder})

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    @property
    def metric(self) -> str | None:
        """The headline metric as lm-eval's `metric,filter`; None with predict_only."""
        return self.asked or self.task.metric

    @property
    def stored_in(self) -> Path:
        """Its folder. Only for a result that is stored."""
        assert self.folder is not None
        return self.folder

    def answer_form(self, name: str) -> str:
        """How the choices of a task or a group were asked for (`task.answer`): text or letters."""
        letters = any(self.lm_eval.asks_by_letters(task) for task in self.tasks_of(name))
        return "letters" if letters else "text"

    def has_test_examples(self, name: str | None = None) -> bool:
        """Whether the few-shot examples of a task, of a group or of any task come from the
        evaluated split."""
        tasks = self.task.tasks if name is None else self.tasks_of(name)
        return any(self.lm_eval.has_test_examples(task) for task in tasks)

    def tasks_of(self, name: str) -> list[str]:
        """`[name]` for a task; for a group its tasks and those of the groups in it."""
        return self.lm_eval.leaves(self.samples, name)


def command_line(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> str:
    """The command line of some overrides, quoted for a shell; `config_dirs` are the folders of
    `--config-dir`."""
    arguments = ["python", "-m", "moe_lab"]
    for folder in config_dirs:
        arguments += ["--config-dir", folder]
    return shlex.join([*arguments, *overrides])


def compared_names(results: Iterable[RunResult]) -> list[str]:
    """The names of the runs that any of the results is compared with (keys of `compared` in
    results.json), each once. The base model's run is not among them."""
    names: dict[str, None] = {}
    for result in results:
        names |= dict.fromkeys(result.compared)
    return list(names)
