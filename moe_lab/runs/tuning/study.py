"""A study of temperatures or settings: its search and documents, checked and identified without weights."""

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config, TaskConfig, TuningConfig
from moe_lab.errors import ConfigError, TaskError, reading
from moe_lab.methods import get_method
from moe_lab.methods.method import Method
from moe_lab.methods.profile import Profile, read_profile
from moe_lab.models.facts import ModelFacts
from moe_lab.results.identity import folder_name, run_id, task_label
from moe_lab.results.stored_files import whole_mapping
from moe_lab.runs.prepare import facts_of, identity, prepare
from moe_lab.runs.tuning.search import Search, resolve, resolve_grid, resolve_scale
from moe_lab.tasks.documents import Holdout, document_hashes, select_documents
from moe_lab.tasks.loading import load_tasks


@dataclass(frozen=True, kw_only=True)
class Study:
    """A search over temperatures or settings, before anything is computed."""

    config: Config
    """With the preset's n and the task of the tuning documents. Its temperature, or the settings of a grid, are
    placeholders."""
    evaluated: Config
    """The configuration that is evaluated with the profile. With tuning.text=gsm8k its task differs from `config`."""
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
    text: str | None = None
    """The scored answers: the resolved `tuning.text`, and "data" for GSM8K's own. None if the metric is accuracy."""

    @property
    def task(self) -> Any:
        """lm-eval's task over the tuning documents."""
        return next(iter(self.tasks["tasks"].values()))

    def finished(self) -> int:
        """The number of finished trials, as trials.csv has it; 0 without one that can be read."""
        try:
            with (self.folder / "trials.csv").open(encoding="utf-8", newline="") as file:
                return sum(row["state"] in ("COMPLETE", "PRUNED") for row in csv.DictReader(file))
        except (OSError, ValueError, KeyError, csv.Error):
            return 0

    def profile(self) -> Profile | None:
        """The temperature profile; None before the study and its figures are finished."""
        finished = (whole_mapping(self.folder / "study.json") or {}).get("finished")
        if not isinstance(finished, int) or finished < self.search.n_trials:
            return None
        try:
            return read_profile(self.folder / "best.yaml")
        except ConfigError:
            return None  # absent or damaged; it is written again from the storage

    def tuned_config(self) -> Config:
        """The configuration of the evaluation with the profile's path as temperature."""
        method: Any = self.method
        tuned = method.with_profile(str(self.folder / "best.yaml"))
        seeds = 1 if self.config.num_studies > 1 else self.config.num_seeds
        return replace(self.evaluated, method=tuned, tuning=TuningConfig(), seeds=seeds)


def prepare_study(config: Config, trained: ModelFacts | None = None) -> Study:
    """The study of a configuration. Checks it and the following evaluation without weights. Creates no folder.

    Args:
        trained: the facts of a model that is yet to be trained, as in `moe_lab.runs.prepare.prepare`.

    Raises the errors of `moe_lab.runs.prepare.prepare`, and ConfigError for an impossible search.
    """
    tunings = get_method(config.method.name).tunings
    if config.tuning.name not in tunings:
        instead = f"Use tuning={' or '.join(tunings)}, or none." if tunings else "Leave it out."
        raise ConfigError(
            f"tuning={config.tuning.name} has nothing to search in method={config.method.name}. {instead}"
        )
    if config.tuning.storage is not None:
        check_url(config.tuning.storage)
    if config.predict_only:
        raise ConfigError(f"predict_only computes no metric: leave it or tuning={config.tuning.name} out.")
    facts = trained or facts_of(config)
    if config.tuning.name == "scale":
        search = resolve_scale(config, facts, get_method(config.method.name)(config.method))
    elif "grid" in get_method(config.method.name).tunings and facts.moe_layers:
        tuned: Any = get_method(config.method.name)(config.method)
        search = resolve_grid(config, facts, tuned)
    elif facts.moe_layers:  # prepare refuses a model without routers in its own words
        config, search = resolve(config, facts)
    evaluation = prepare(replace(config, tuning=TuningConfig(), baseline=False), trained)
    holdout = Holdout(num_samples=search.num_samples, seed=config.sample_seed)
    tasks = load_tasks(config, holdout)
    name, task = _only(tasks)
    if search.metric == "accuracy" and task.get_config("output_type") == "loglikelihood_rolling":
        raise ConfigError(f"{name} has no accuracy: tuning.metric=perplexity.")
    if search.metric == "perplexity" and task.get_config("unsafe_code"):
        raise ConfigError(f"{name} has no reference answers to score: tuning.metric=accuracy.")
    text = text_of(config, search.metric, task)
    evaluated = config
    if text == GSM8K:
        config, tasks = on_gsm8k(config, holdout)
        text, (name, task) = DATA, _only(tasks)
    documents = sorted(frozenset[str]().union(*document_hashes(task)))
    select_documents(evaluated, evaluation.tasks, frozenset(documents))
    dataset = task.config.custom_dataset
    samples = {name: dataset.numbers}
    held_out = {name: list(range(len(task.task_docs)))}
    content = identity(config, evaluation.method, facts, tasks, samples, held_out)
    headline = config.task.metric if search.metric == "accuracy" else None
    content["search"] = search.identity | {"headline": headline}
    if facts.commit is not None:  # trials of another state of the model are another study
        content["commit"] = facts.commit
    if text == EQUATIONS:
        content["references"] = EQUATIONS
    digest = run_id(content)
    return Study(
        config=config,
        evaluated=evaluated,
        search=search,
        study_id=digest,
        folder=Path(config.output_dir)
        / "studies"
        / folder_name(config.model.name, task_label(name), search.metric, digest=digest),
        facts=facts,
        method=evaluation.method,
        tasks=tasks,
        split=dataset.source,
        samples=samples,
        documents=documents,
        text=text,
    )


def _only(tasks: TaskDict) -> tuple[str, Any]:
    if len(tasks["tasks"]) > 1:
        raise ConfigError(
            f"A study tunes on one task, not on {', '.join(tasks['tasks'])}. Tune each: -m task=<one>,<other>."
        )
    return next(iter(tasks["tasks"].items()))


# The answers whose perplexity a study minimizes (`tuning.text`)

TRIMMING = frozenset({"take_first", "take_first_k", "remove_whitespace", "lowercase", "uppercase"})
"""lm-eval's filters that keep the whole answer; any other extracts it from a longer text."""


def has_bare_answers(task: Any) -> bool:
    """Whether a generation task's data has final answers without steps, which filters extract from the output."""
    if task.get_config("output_type") != "generate_until":
        return False
    filters = [one["function"] for each in task.config.filter_list or [] for one in each["filter"]]
    targets = map(task.doc_to_target, () if TRIMMING.issuperset(filters) else task.task_docs)
    answers = [str(one) for target in targets for one in (target if isinstance(target, list) else [target])]
    # bare: one word, apart from marks such as `####`
    return bool(answers) and all(
        sum(any(map(str.isalnum, word)) for word in answer.split()) <= 1 for answer in answers
    )


# | text | answers | written by |
# |---|---|---|
# | data | the data's own (GSM8K, toy_math, right choices, running text) | others |
# | gsm8k | GSM8K's worked answers: GSM8K is tuned, and its profile is used for the task | others |
# | equations | the equation of each row, then the bare answer | others |

DATA, GSM8K, EQUATIONS = "data", "gsm8k", "equations"
EQUATION_COLUMNS = ("equation", "Equation", "lEquations")
"""Columns with a row's equation. SVAMP.json has `Equation`; AddSub, MultiArith and SingleEq have `lEquations`."""
SOURCE = TaskConfig(name="gsm8k", metric="exact_match,strict-match", category="math")
"""`conf/task/gsm8k.yaml`."""
_CHOICES = "Choose tuning.text=equations (rows with an equation), or tuning.metric=accuracy."


def text_of(config: Config, metric: str, task: Any) -> str | None:
    """The answers that a study of `task` scores: `tuning.text`, by default written by others. None: by accuracy.

    Raises ConfigError for answers that the task does not have.
    """
    given, name = config.tuning.text, task.task_name
    if metric != "perplexity":
        if given is not None:
            raise ConfigError(
                f"tuning.text={given} says whose answers' perplexity is tuned, and tuning.metric={metric} scores none. "
                "Leave one of them out."
            )
        return None
    if task.get_config("output_type") != "generate_until":
        if given not in (None, DATA):
            raise ConfigError(
                f"tuning.text={given}: {name} generates no answers; its data has the right ones. Leave it out."
            )
        return DATA
    bare = has_bare_answers(task)
    if given == DATA and bare:
        raise ConfigError(
            f"tuning.text=data: the answers of {name} are bare, without steps. Leave it out for GSM8K's profile.\n"
            f"{_CHOICES}"
        )
    text = given or (GSM8K if bare else DATA)
    if text == EQUATIONS and not all(map(equation, task.task_docs)):
        raise ConfigError(
            f"tuning.text=equations: not every row of {name} has an equation (column {', '.join(EQUATION_COLUMNS)}).\n"
            "Add the column to the data, or leave tuning.text out for GSM8K's profile."
        )
    return text


def on_gsm8k(config: Config, holdout: Holdout) -> tuple[Config, TaskDict]:
    """The configuration of GSM8K's own study with the settings of another task's, and its tuning documents.

    Settings of generation are left out: they do not change the perplexity of given answers. Raises TaskError if GSM8K's
    worked answers are not at hand.
    """
    source = replace(config, task=SOURCE, gen_kwargs=None, limit=None, samples=None)
    try:
        tasks = load_tasks(source, holdout)
    except TaskError as error:
        reason = str(error).splitlines()[0]
        raise TaskError(
            f"tuning.text=gsm8k, the default where a task's answers are bare, needs GSM8K's data. {reason}\n{_CHOICES}"
        ) from error
    if has_bare_answers(tasks["tasks"][GSM8K]):
        raise TaskError(
            f"tuning.text=gsm8k: GSM8K's answers in data_dir={config.data_dir} are bare, without steps.\n{_CHOICES}"
        )
    return source, tasks


def equation(document: dict[str, Any]) -> str | None:
    """The equation of a document, as its data has it; None if there is none."""
    for column in EQUATION_COLUMNS:
        found = document.get(column)
        text = ", ".join(map(str, found)) if isinstance(found, list) else str(found or "")
        if text.strip():
            return text.strip()
    return None


def with_equation(document: dict[str, Any], answer: str) -> str:
    """A bare answer after its equation, for example ` 8 - 3 = 5\\n#### 5` of ` #### 5`."""
    target = answer.lstrip()
    written = equation(document) or ""
    steps = written if "=" in written else f"{written} = {target.split()[-1]}"
    return f"{answer[: len(answer) - len(target)]}{steps}\n{target}"


# The URL in `tuning.storage`, which no message shows: any part of it may be a password

SECRET = re.compile("pass|pwd|secret|token", re.IGNORECASE)
"""In names of a URL's options: password, passwd, pwd, sslpassword."""


def check_url(storage: str) -> None:
    """Raise ConfigError for what is no URL of a database, a driver that is not installed, or a database in memory."""
    from sqlalchemy.engine import make_url

    remedy = "Use a URL as postgresql://host/optuna (docs/tuning.md)."
    with reading("tuning.storage", remedy, says="cannot be used"):
        url = make_url(storage)
        url.get_dialect().import_dbapi()
        if url.get_backend_name() == "sqlite" and "memory" in str((url.database or ":memory:", url.query)):
            raise ValueError("this database is in memory, and lost when the process ends")


def refuse_typed_password(storage: str) -> None:
    """Raise ConfigError for a password that was typed, because overrides are stored with every run."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(storage)
        secrets = [url.password, *map(url.query.get, filter(SECRET.search, url.query))]
    except (ArgumentError, ValueError):  # no URL
        secrets = [storage]
    if any(secret and not str(secret).startswith("${") for secret in secrets):
        raise ConfigError(
            "tuning.storage has a password or is no URL, and it would be stored with every run.\n"
            "Give the URL by an environment variable: 'tuning.storage=${oc.env:STORAGE}'."
        )
