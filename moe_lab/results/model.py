"""A stored run as an object: the content of its results.json, by name.

The keys of the `moe_lab` block are read here and nowhere else; `runs/evaluation/result_block.py` writes them.
docs/results.md describes the file.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from moe_lab.results import statistics
from moe_lab.results.identity import SCHEMA_VERSION, decisive_versions
from moe_lab.results.measured import Interval, Paired, limits
from moe_lab.results.rounding import Rounding
from moe_lab.results.stored_files import DamagedError, Results, damaged, leaves, misfit, parsed_once

Block = Mapping[str, Any]
"""A part of a results.json."""
BLOCKS = ("model", "method", "task", "versions", "samples", "cost", "intervals")
"""The mappings in the `moe_lab` block of every results.json."""
BASE = "base"
"""The name of the base model's run in comparisons."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The verdicts of one judge on the answers of a run."""

    metrics: list[str]
    toy: bool
    tasks: Mapping[str, Block]
    """By task: `documents`, `judged`, `waiting`, and `failed` with a count by reason."""

    def judged_all(self, task: str | None) -> bool:
        """Whether all answers of a task, or of all tasks, have a verdict."""
        counts = [one for name, one in self.tasks.items() if task in (None, name)]
        return all(one["judged"] == one["documents"] for one in counts)

    def unjudged(self, name: str) -> Iterator[str]:
        """A line for each task with unjudged answers: how many were judged, and why the others were not."""
        for task, counts in self.tasks.items():
            if self.judged_all(task):
                continue
            why = [f"{number} {reason}" for reason, number in counts["failed"].items()]
            why += [f"{counts['waiting']} wait for the same command"] * bool(counts["waiting"])
            judged = f"{task}, {name}: judged {counts['judged']:,} of {counts['documents']:,} answers"
            yield f"{judged} ({'; '.join(why)})"


@dataclass(frozen=True, eq=False)
class RunResult(Mapping[str, Any]):
    """A stored run. As a mapping it is the content of its results.json, and equal to it."""

    content: Block
    folder: Path | None = None
    """None for a result that is not stored."""
    asked: str | None = None
    """The headline metric of the command that shows it; None for that of the command that computed it."""

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    @property
    def _block(self) -> Block:
        return self.content["moe_lab"]

    # What ran.

    @property
    def run_id(self) -> str:
        return str(self._block["run_id"])

    @property
    def whole(self) -> bool:
        """Whether it is a complete result of this form of the file."""
        block = self._block
        written = block.get("status") == "success" and block.get("schema_version") == SCHEMA_VERSION
        return written and all(isinstance(block.get(key), dict) for key in BLOCKS)

    @property
    def seed(self) -> int | None:
        """That of the method, else that of the training on first use that made the model, else None."""
        return self._block.get("seed")

    @property
    def overrides(self) -> list[str]:
        return list(self._block.get("overrides") or [])

    @property
    def model(self) -> str:
        return str(self.model_facts["name"])

    @property
    def model_facts(self) -> Block:
        """`name`, `commit`, `experts`, `top_k`, `identified_by` and so on."""
        return self._block["model"]

    @property
    def commit(self) -> str | None:
        """Of a hub model."""
        return self.model_facts.get("commit")

    @property
    def method(self) -> str:
        return str(self._block["method"]["name"])

    @property
    def method_config(self) -> Block:
        """The method's keys; those of `lora` as `lora.r` and so on."""
        given = self._block["method"].get("config") or {}
        own = {key: value for key, value in given.items() if not isinstance(value, dict)}
        groups = {key: value for key, value in given.items() if key not in own}
        return own | {
            f"{key}.{name}": value for key, group in groups.items() for name, value in group.items()
        }

    @property
    def requested(self) -> list[str]:
        """The tasks and groups that were asked for."""
        name = self._block["task"]["name"]
        return [name] if isinstance(name, str) else list(name)

    @property
    def tasks(self) -> list[str]:
        """The tasks that were evaluated, those of groups one by one."""
        return list(self._block["task"]["tasks"])

    @property
    def metric(self) -> str | None:
        """The headline metric as lm-eval's `metric,filter`; None with predict_only."""
        return self.asked or self._block["task"].get("metric")

    @property
    def samples(self) -> Mapping[str, list[int]]:
        """Document numbers by task."""
        return self._block["samples"]

    @property
    def num_documents(self) -> int:
        return sum(map(len, self.samples.values()))

    @property
    def partial(self) -> bool:
        return bool(self._block.get("partial"))

    @property
    def untuned(self) -> bool:
        return bool(self._block.get("untuned"))

    @property
    def versions(self) -> Block:
        return self._block.get("versions", {})

    @property
    def version_notes(self) -> list[str]:
        """A note for each decisive package with another version now: "made with lm_eval 0.4.12, now 0.4.13"."""
        pairs = {name: (self.versions.get(name), now) for name, now in decisive_versions().items()}
        return [f"made with {name} {then}, now {now}" for name, (then, now) in pairs.items() if then != now]

    @property
    def older_intervals(self) -> bool:
        """Whether an earlier version computed the intervals, and they can be computed again from the stored answers."""
        return self._block.get("statistics") != statistics.VERSION and not self.version_notes

    @property
    def settings(self) -> dict[str, object]:
        """The parts of the block that name the run in a summary over seeds."""
        names = ("model", "method", "task", "untuned", "tuning", "judges")
        parts = {name: self._block[name] for name in names if name in self._block}
        return parts | {"task": {**self._block["task"], "metric": self.metric}}

    @property
    def stored_in(self) -> Path:
        """Its folder. The result is stored."""
        assert self.folder is not None
        return self.folder

    # What came out.

    @property
    def groups(self) -> list[str]:
        return list(self.content.get("groups", {}))

    def evaluated(self, name: str) -> bool:
        """Whether it has scores of a task or a group."""
        return name in self.content["results"]

    def scores(self, task: str) -> Block:
        """lm-eval's scores of a task or a group, by `metric,filter`; empty for one that was not evaluated."""
        return self.content["results"].get(task, {})

    def answer_form(self, name: str) -> str:
        """How the choices of a task or a group were asked for (`task.answer`): text or letters."""
        configs = self.content.get("configs") or {}
        # the column of `moe_lab.tasks.answer_forms`, which replaces the task's own
        asked = [configs.get(task, {}).get("doc_to_choice") == "letters" for task in self.tasks_of(name)]
        return "letters" if any(asked) else "text"

    def tasks_of(self, name: str) -> list[str]:
        """A task itself; the tasks of a group, and of the groups in it."""
        return leaves(self.content, self.samples, name)

    def interval(self, task: str, metric: str) -> Interval | None:
        return limits(self._block.get("intervals", {}).get(task, {}).get(metric))

    def lower_is_better(self, task: str, metric: str) -> bool:
        """Whether lm-eval says so of a `metric,filter`."""
        better = self.content.get("higher_is_better", {}).get(task, {})
        return better.get(metric.partition(",")[0]) is False

    @property
    def cost(self) -> Block:
        """What the answers cost, by the keys of docs/results.md; a number may be missing."""
        return self._block.get("cost") or {}

    @cached_property
    def judges(self) -> dict[str, Judge]:
        return {
            name: Judge(metrics=one["metrics"], toy=bool(one.get("toy")), tasks=one.get("tasks", {}))
            for name, one in self._block.get("judges", {}).items()
        }

    @property
    def waiting(self) -> int:
        """The number of answers that wait for a judge which could not be reached."""
        return sum(counts["waiting"] for judge in self.judges.values() for counts in judge.tasks.values())

    @property
    def unjudged(self) -> list[str]:
        """One line per task and judge with unjudged answers."""
        return [line for name, judge in self.judges.items() for line in judge.unjudged(name)]

    @property
    def tuning(self) -> Block:
        """The study whose values the run has (`methods/profile.py: Profile.block`); empty without one."""
        return self._block.get("tuning") or {}

    @property
    def report(self) -> Block:
        """What the run's method reports of itself; empty where it reports nothing."""
        return self._block.get(self.method.replace("-", "_")) or {}

    def reports(self, key: str) -> bool:
        """Whether a block that the run's method wrote has a true value for a key (`Method.report`)."""
        return any(bool(block.get(key)) for block in self._block.values() if isinstance(block, Mapping))

    # Comparisons on the same documents.

    @property
    def rounding(self) -> Rounding:
        """Which values of the run and of its base model's are equal within rounding."""
        return Rounding(self.model_facts.get("dtype"), self._block.get("rounding"))

    @property
    def compared(self) -> list[str]:
        """The runs that it is compared with, other than the base model's."""
        return list(self._block.get("compared", {}))

    def other_id(self, other: str = BASE) -> str | None:
        """The id of the run that it is compared with; None without one."""
        return (self._other(other) or {}).get("run_id")

    def other_scores(self, task: str, other: str = BASE) -> Block:
        """The scores of the run that it is compared with; empty without one."""
        return (self._other(other) or {}).get("results", {}).get(task, {})

    def paired(self, task: str, metric: str, other: str = BASE) -> Paired:
        """The difference to another run; without a number where the runs are not compared."""
        source = self._block if other == BASE else self._other(other) or {}
        return Paired.from_json(source.get("paired", {}).get(task, {}).get(metric, {}))

    def _other(self, name: str) -> Block | None:
        block = self._block
        return block.get("baseline") if name == BASE else block.get("compared", {}).get(name)


def read_run(folder: Path) -> RunResult | None:
    """The run that is stored in a folder; None without a results.json of this package. Raises DamagedError."""
    file = folder / "results.json"
    content = parsed_once(file)
    if content is None or "moe_lab" not in content:
        return None
    if (problem := misfit(content, Results)) is not None:
        raise damaged(file, problem)
    return RunResult(content, folder)


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
    return list(dict.fromkeys(name for result in results for name in result.compared))
