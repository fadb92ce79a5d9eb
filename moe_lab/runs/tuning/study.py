"""A study of temperatures or settings: its search and documents, checked and identified without weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config, TaskConfig, TuningConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods import get_method
from moe_lab.methods.method import Method
from moe_lab.methods.profile import Profile, read_profile
from moe_lab.models.facts import ModelFacts
from moe_lab.results.identity import run_id
from moe_lab.results.names import folder_name, task_label
from moe_lab.results.stored_files import whole_mapping
from moe_lab.runs.prepare import facts_of, identity, prepare
from moe_lab.runs.tuning.search import Search, resolve, resolve_grid, resolve_scale
from moe_lab.tasks.documents import Holdout, document_hashes, select_documents
from moe_lab.tasks.lm_eval_tasks import evaluated_documents
from moe_lab.tasks.loading import load_tasks

TABLE = "trials.csv"
"""Written from the storage after every trial."""
EXPECTED_SCALE = 0.9
"""A logit scale that is yet to be found; 1 would be the base model's."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A search over temperatures or settings, before anything is computed."""

    config: Config
    """With the preset's n and the task of the tuning documents. Its temperature, or the settings of a grid, are
    placeholders."""
    evaluated: Config
    """The configuration that is evaluated with the profile. Where GSM8K is tuned for another task, it has that task."""
    search: Search
    study_id: str
    """SHA-256 of everything that determines the trials, without their number, so that more trials continue a study."""
    folder: Path
    facts: ModelFacts
    method: Method
    tasks: TaskDict
    """The task over its tuning documents."""
    split: str
    """The split of the tuning documents."""
    samples: dict[str, list[int]]
    """The row numbers of the tuning documents in that split."""
    documents: list[str]
    """`document_hashes` of the tuning documents."""

    @property
    def task(self) -> Any:
        """lm-eval's task over the tuning documents."""
        return next(iter(self.tasks["tasks"].values()))

    def finished(self) -> int:
        """The number of finished trials, as trials.csv has it; 0 without one that can be read."""
        try:
            return int(pd.read_csv(self.folder / TABLE)["state"].isin(["COMPLETE", "PRUNED"]).sum())
        except (OSError, ValueError, KeyError):
            return 0

    def profile(self) -> Profile | None:
        """The temperature profile; None before the study and its figures are finished."""
        finished = (whole_mapping(self.folder / "study.json") or {}).get("finished")
        if not isinstance(finished, int) or finished < self.search.n_trials:
            return None
        try:
            return read_profile(self.best)
        except ConfigError:
            return None  # absent or damaged; it is written again from the storage

    @property
    def best(self) -> Path:
        """The file of the profile."""
        return self.folder / "best.yaml"

    def expected_profile(self) -> Profile:
        """The profile of a study that is yet to be finished, with placeholders for what it will find.

        Its documents are right, and it has a logit scale of the base model if the study finds one.
        """
        search, method = self.search, cast(Any, self.method)
        temperatures = [
            1.0 if layer in search.layers else 0.0 for layer in range(search.moe_layers)
        ]
        settings = None
        if search.grid is not None:
            temperatures, settings = [], method.settings(search.grid[0])
        elif search.given is not None:
            temperatures = search.given
        return Profile(
            model=self.facts.name,
            task=self.task.task_name,
            study=self.folder.name,
            tuning=search.tuning,
            metric=search.metric,
            n=getattr(self.config.method, "n", 1),
            noise=getattr(self.config.method, "noise", "gumbel"),
            trials=search.n_trials,
            trial=0,
            score=1.0,
            untuned_score=1.0,
            logit_scale=EXPECTED_SCALE if search.logit_scale else 1.0,
            calibrated_scale=EXPECTED_SCALE if self.calibrates else None,
            split=self.split,
            samples=self.samples,
            documents=self.documents,
            temperature=temperatures,
            settings=settings,
        )

    @property
    def calibrates(self) -> bool:
        """Whether its trial 0 finds the best logit scale of the base model."""
        if self.search.metric != "perplexity":
            return False
        if self.search.grid is not None:
            return bool(cast(Any, self.method).begins_with_base)
        return self.search.given is None or not any(self.search.given)

    def tuned_config(self) -> Config:
        """The configuration of the evaluation with the profile's path as temperature."""
        method: Any = self.method
        tuned = method.with_profile(str(self.best))
        seeds = 1 if self.config.num_studies > 1 else self.config.num_seeds
        return replace(self.evaluated, method=tuned, tuning=TuningConfig(), seeds=seeds)


def prepare_study(config: Config, trained: ModelFacts | None = None) -> Study:
    """The study of a configuration. Checks it and the following evaluation without weights. Creates no folder.

    `trained`: the facts of a model that is yet to be trained, as in `moe_lab.runs.prepare.prepare`.

    Raises the errors of `moe_lab.runs.prepare.prepare`, and ConfigError for an impossible search.
    """
    kind: Any = get_method(config.method.name)
    if config.tuning.name not in kind.tunings:
        raise ConfigError(
            f"tuning={config.tuning.name} has nothing to search in method={config.method.name}. "
            f"Use tuning={' or '.join([*kind.tunings, 'none'])}."
        )
    if config.predict_only:
        raise ConfigError(
            f"predict_only computes no metric: leave it or tuning={config.tuning.name} out."
        )
    facts = trained or facts_of(config)
    if config.tuning.name == "scale":
        search = resolve_scale(config, facts, kind(config.method))
    elif "grid" in kind.tunings and facts.moe_layers:
        search = resolve_grid(config, facts, kind(config.method))
    elif facts.moe_layers:  # prepare refuses a model without routers in its own words
        config, search = resolve(config, facts)
    evaluation = prepare(replace(config, tuning=TuningConfig(), baseline=False), trained)
    holdout = Holdout(num_samples=search.num_samples, seed=config.sample_seed)
    tasks = load_tasks(config, holdout)
    if len(tasks["tasks"]) > 1:
        raise ConfigError(
            f"A study tunes on one task, not on {', '.join(tasks['tasks'])}. Tune each: -m task=<one>,<other>."
        )
    [(name, task)] = tasks["tasks"].items()
    if search.metric == "accuracy" and task.get_config("output_type") == "loglikelihood_rolling":
        raise ConfigError(f"{name} has no accuracy: tuning.metric=perplexity.")
    if search.metric == "perplexity" and task.get_config("unsafe_code"):
        raise ConfigError(f"{name} has no reference answers to score: tuning.metric=accuracy.")
    if search.metric == "accuracy":
        search = replace(search, lower_is_better=is_error(task, config.task.metric))
    evaluated = config
    if search.metric == "perplexity" and has_bare_answers(task):
        config, tasks = on_gsm8k(config, holdout)
        [(name, task)] = tasks["tasks"].items()
    documents = sorted(frozenset[str]().union(*document_hashes(task)))
    select_documents(evaluated, evaluation.tasks, frozenset(documents))
    dataset = task.config.custom_dataset
    samples = {name: dataset.numbers}
    held_out = {name: list(range(len(evaluated_documents(task))))}
    content = identity(config, evaluation.method, facts, tasks, samples, held_out)
    headline = config.task.metric if search.metric == "accuracy" else None
    content["search"] = search.identity | {"headline": headline}
    if facts.commit is not None:  # trials of another state of the model are another study
        content["commit"] = facts.commit
    digest = run_id(content)
    folder = folder_name(config.model.name, task_label(name), search.metric, digest=digest)
    return Study(
        config=config,
        evaluated=evaluated,
        search=search,
        study_id=digest,
        folder=Path(config.output_dir, "studies", folder),
        facts=facts,
        method=evaluation.method,
        tasks=tasks,
        split=dataset.source,
        samples=samples,
        documents=documents,
    )


def is_error(task: Any, metric: str | None) -> bool:
    """Whether lower values of a task's headline are better.

    Args:
        metric: lm-eval's `metric,filter`; None: the first one of the task.
    """
    directions = task.higher_is_better()
    name = metric.partition(",")[0] if metric else next(iter(directions), None)
    return directions.get(name) is False


# The answers whose perplexity a study minimizes: the data's own, or GSM8K's where these are bare. Others wrote both

TRIMMING = frozenset({"take_first", "take_first_k", "remove_whitespace", "lowercase", "uppercase"})
"""lm-eval's filters that keep the whole answer; any other extracts it from a longer text."""
SOURCE = TaskConfig(name="gsm8k", metric="exact_match,strict-match", category="math")
"""`conf/task/gsm8k.yaml`."""


def has_bare_answers(task: Any) -> bool:
    """Whether a generation task's data has final answers without steps, which filters extract from the output."""
    if task.get_config("output_type") != "generate_until":
        return False
    filters = [one["function"] for each in task.config.filter_list or [] for one in each["filter"]]
    targets = map(
        task.doc_to_target, () if TRIMMING.issuperset(filters) else evaluated_documents(task)
    )
    answers = [
        str(one) for target in targets for one in (target if isinstance(target, list) else [target])
    ]
    # bare: one word, apart from marks such as `####`
    return bool(answers) and all(
        sum(any(map(str.isalnum, word)) for word in answer.split()) <= 1 for answer in answers
    )


def on_gsm8k(config: Config, holdout: Holdout) -> tuple[Config, TaskDict]:
    """The configuration of GSM8K's own study with the settings of another task's, and its tuning documents.

    Settings of generation are left out: they do not change the perplexity of given answers. Raises TaskError if GSM8K's
    worked answers are not at hand.
    """
    source = replace(config, task=SOURCE, gen_kwargs=None, limit=None, samples=None)
    try:
        tasks = load_tasks(source, holdout)
        if has_bare_answers(tasks["tasks"]["gsm8k"]):
            raise TaskError(f"GSM8K's answers in data_dir={config.data_dir} are bare, too.")
    except TaskError as error:
        raise TaskError(
            f"The answers of {config.task.name} are bare, so the study is GSM8K's. {str(error).splitlines()[0]}\n"
            "tuning.metric=accuracy tunes on the task itself."
        ) from error
    return source, tasks
