"""What lm-eval writes into a results file, by name."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from moe_lab.results.rounding import Rounding
from moe_lab.results.stored import Stored

Scores = dict[str, dict[str, Any]]
"""By task, then by lm-eval's `metric,filter`."""


class LmEvalResults(Stored):
    """lm-eval's result dictionary."""

    results: Scores
    configs: Scores = Field({})
    config: dict[str, Any] | None = None
    groups: dict[str, Any] = Field({})
    group_subtasks: dict[str, list[str]] = Field({})
    higher_is_better: Scores = Field({})
    task_versions: dict[str, Any] = Field({}, alias="versions")
    n_samples: Scores = Field({}, alias="n-samples")
    lm_eval_version: str | None = None
    model_name: str | None = None

    def scores(self, name: str) -> Mapping[str, Any]:
        """The scores of a task or a group, by `metric,filter`; empty for one that was not
        evaluated."""
        return self.results.get(name, {})

    def better(self, task: str, metric: str) -> bool | None:
        """Whether a higher value of a `metric,filter` is better; None if the file does not say."""
        better = self.higher_is_better.get(task, {}).get(metric.partition(",")[0])
        return better if isinstance(better, bool) else None

    @property
    def rounding(self) -> Rounding:
        """Which values of an example are equal within rounding, by the dtype alone."""
        config = self.config or {}
        dtype = str(config.get("model_dtype"))
        return Rounding(dtype.removeprefix("torch."))

    def leaves(self, samples: Mapping[str, Any], name: str) -> list[str]:
        """`[name]` for a task, which is in `samples`; for a group its tasks and those of the groups
        in it."""
        children = self.group_subtasks.get(name, [])
        if name in samples or not children:
            return [name]
        tasks = []
        for child in children:
            tasks += self.leaves(samples, child)
        return tasks

    def asks_by_letters(self, task: str) -> bool:
        """Whether the choices of a task were asked for by letters (`task.answer=letters`)."""
        # the column of `moe_lab.tasks.letters`, which replaces the task's own
        return bool(self.configs.get(task, {}).get("doc_to_choice") == "letters")

    def has_test_examples(self, task: str) -> bool:
        """Whether the few-shot examples of a task come from the split that lm-eval evaluates."""
        config = self.configs.get(task, {})
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
