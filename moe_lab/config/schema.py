"""The typed schema of `conf/config.yaml` and its groups.

The keys of `method` belong to the method's own `Config` (`moe_lab.methods`); all other groups are
here. This module does not import torch, which would slow down `--help`.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from moe_lab.config.validators import (
    MAX_SEED,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    UserPath,
    at_least,
    check_limits,
    one_of,
)
from moe_lab.errors import ConfigError, need_package

SEEDS_WITH_TUNING = 5
"""The default of `seeds` where temperatures or settings are tuned."""

EMBEDDED_MODELS = ("tiny", "tiny-noisy")
"""Models whose folders come with the package, in `moe_lab/models/`."""
ExpertsImplementation = Literal["eager", "grouped_mm", "batched_mm", "weights_first"]


@dataclass(kw_only=True)
class ModelConfig:
    """The model and the options of loading it."""

    name: str = "tiny"
    path: UserPath | None = None
    revision: str | None = None
    tokenizer: UserPath | None = None
    peft: UserPath | None = None
    """Folder or hub id of an adapter in peft's format."""
    merge_adapter: bool = True
    """Whether the adapter is merged into the weights; else peft computes it next to them."""
    experts_implementation: ExpertsImplementation | None = None
    attn_implementation: str | None = None
    """transformers' attention function; null: the model's own choice, which is sdpa where the model
    has it."""
    experts_per_token: PositiveInt | None = None
    add_bos_token: bool | None = None
    think_end_token: str | None = None
    """With a chat template: the text that ends a reply's reasoning; null: the whole reply is the
    answer."""
    max_gen_toks: PositiveInt | None = None
    """With `think_end_token`: new tokens of a reply where a task allows fewer; null: the task's
    number."""
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = None
    """transformers' placement of the layers on devices; null: all on `device`."""
    load: dict[str, Any] = field(default_factory=dict)
    """Keywords of `from_pretrained` (`moe_lab/models/load_options.py`)."""
    recipe: dict[str, bool | int | float | str | None] | None = None
    """Keys of method=pretrain: the model is trained on first use, one for each seed
    (`moe_lab/runs/trainings.py`)."""

    def __post_init__(self) -> None:
        if self.peft:
            need_package("peft", "peft", f"model.peft={self.peft}")
        check_limits(self, "model.")
        if not self.merge_adapter and not self.peft:
            raise ConfigError("model.merge_adapter=false has no effect without model.peft=.")
        if self.max_gen_toks is not None and self.think_end_token is None:
            raise ConfigError(
                f"model.max_gen_toks={self.max_gen_toks} has no effect without "
                "model.think_end_token: it is the length of replies that reason. The length of "
                "answers is gen_kwargs=max_gen_toks=<n>."
            )
        if self.recipe is not None and self.path is not None:
            raise ConfigError(
                "model.path and model.recipe both say what the model is. Leave one out."
            )
        if self.attn_implementation not in (None, "eager", "sdpa"):
            raise ConfigError(
                f"model.attn_implementation={self.attn_implementation}: routing samples and answer "
                "choices need masks, which flash and flex kernels do not take.\nChoices: eager, "
                "sdpa."
            )


@dataclass(kw_only=True)
class TaskConfig:
    """The lm-eval task and its headline metric."""

    name: str | list[str] = "toy_math"
    """lm-eval's name of a task or group, or a list of them."""
    metric: str | None = None
    """Headline metric in lm-eval's notation `metric,filter`; null: the first that lm-eval
    reports."""
    data_folder: str | None = None
    """Folder under `data_dir`; null: the task's name."""
    data_filter: str | None = None
    """Column with each row's `dataset_name`, in a file that the tasks of a group share."""
    include_path: UserPath | None = None
    fewshot_split: str | None = None
    category: Literal["math", "commonsense", "code"] | None = None
    """Row of the RoE paper's Table 1 with the defaults of tuning; null: none."""
    confirm_run_unsafe_code: bool = False
    """Whether programs that the model wrote may be executed without a sandbox where bubblewrap does
    not work."""
    answer: Literal["text", "letters"] | None = None
    """The form of multiple-choice answers: "text" as in lm-eval, or "letters" (`tasks/letters.py`);
    null: text."""
    self_consistency: int | None = None
    """Number of sampled answers to each document. Their majority is evaluated
    (`tasks/self_consistency.py`). Null: one answer, no vote."""
    chat_template: bool = False
    """Whether prompts get a chat template, a plain one if the tokenizer has none, if
    `apply_chat_template` is null."""
    judges: list[str] | None = None
    """The judges of a safety task (`moe_lab.tasks.judges`); null: toy for the embedded model, else
    reward and llama_guard."""
    reward_model: UserPath | None = None
    """Folder, or hub id with an optional `@revision`; null: the judge's default. The same holds for
    the next two."""
    guard_model: UserPath | None = None
    moderation_model: UserPath | None = None

    def __post_init__(self) -> None:
        if self.answer == "letters" and self.metric == "acc_norm,none":
            self.metric = "acc,none"  # letters are equally long
        at_least("task.self_consistency", self.self_consistency, 2)


@dataclass(kw_only=True)
class TuningConfig:
    """The search of temperatures, of a logit scale or of other settings; null: the preset of task
    category and model (`moe_lab/runs/tuning/presets.py`)."""

    name: Literal["none", "tpe", "random", "uniform", "scale", "grid"] = "none"
    n_trials: PositiveInt | None = None
    """Number of trials of a study, including those of earlier commands."""
    metric: Literal["perplexity", "accuracy"] | None = None
    """Objective on the tuning documents."""
    num_samples: PositiveInt | None = None
    max_temperature: PositiveFloat | None = None
    step: PositiveFloat = 0.05
    """The difference between two temperatures of tuning=uniform."""
    logit_scale: bool = False
    """Whether each trial's value is its perplexity at the best logit scale. tuning=scale searches
    nothing else."""
    seeds: PositiveInt = 1
    """Number of studies, with seed, seed+1, ..., each followed by one run with its seed; 1: one
    study for all runs."""
    sampler: dict[str, Any] = field(default_factory=dict)
    """A sampler of Optuna: `_target_` and its arguments (`runs/tuning/optuna_objects.py`)."""
    pruner: dict[str, Any] = field(default_factory=dict)
    """A pruner of Optuna, likewise."""
    storage: str | dict[str, Any] | None = None
    """URL of a database for the trials, or a storage of Optuna: `_target_` and its arguments
    (`runs/tuning/shared_storage.py`); null: a file in the study's folder."""
    timeout: PositiveFloat | None = None
    """Seconds after which no further trial begins."""

    def __post_init__(self) -> None:
        check_limits(self, "tuning.")
        if self.sampler and self.name != "tpe":
            raise ConfigError(
                f"tuning.sampler has no effect with tuning={self.name}. Use tuning=tpe, whose "
                "sampler it replaces."
            )
        if self.pruner and self.name not in ("tpe", "random"):
            raise ConfigError(
                f"tuning.pruner has no effect with tuning={self.name}, which prunes no trial. "
                "Use tuning=tpe or tuning=random."
            )
        if self.name == "none" and (self.storage is not None or self.timeout is not None):
            raise ConfigError(
                "tuning.storage and tuning.timeout have no effect without a study. Use tuning=tpe."
            )


@dataclass(kw_only=True)
class LoggerConfig:
    """The logger that gets the results in addition to the output folder. It changes no number."""

    name: Literal["none", "wandb"] = "none"
    project: str | None = None
    """W&B project; null: WANDB_PROJECT, else moe_lab."""
    entity: str | None = None
    group: str | None = None
    """Null: WANDB_RUN_GROUP, else the experiment's or the command's name."""
    tags: list[str] = field(default_factory=list)
    mode: Literal["online", "offline", "disabled"] | None = None
    """Null: WANDB_MODE, else online with an API key, else offline."""
    init: dict[str, Any] = field(default_factory=dict)
    """Arguments of `wandb.init` (`moe_lab/reports/wandb_init.py`). Those that are keys here become
    these."""

    def __post_init__(self) -> None:
        if not self.init:
            return
        if self.name == "none":
            raise ConfigError("logger.init has no effect with logger=none. Use logger=wandb.")
        self.init = dict(self.init)
        for key in ("project", "entity", "group", "tags", "mode"):
            if key not in self.init:
                continue
            value = self.init.pop(key)
            if getattr(self, key) not in (None, [], value):
                raise ConfigError(
                    f"logger.init.{key}={value} and logger.{key}={getattr(self, key)} are the same "
                    "setting. Give one of them."
                )
            setattr(self, key, value)
        check_limits(self, "logger.")


@dataclass(kw_only=True)
class LauncherConfig:
    """The processes that share the runs of a grid or an experiment. It changes no number."""

    name: Literal["none", "local", "submitit", "ray"] = "none"
    workers: PositiveInt | None = None
    """Number of processes; null: as many as GPUs are there for, 2 without GPUs."""
    gpus_per_worker: PositiveInt = 1
    """Of launcher=local. With ray and submitit `parameters` say it."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Resources of each worker: arguments of submitit's `update_parameters` or of Ray's
    `remote`."""
    cluster: str | None = None
    """submitit's executor: slurm or local; null: SLURM where it is there."""
    address: str | None = None
    """The address of a Ray cluster, or auto; null: a new cluster on this machine."""

    def __post_init__(self) -> None:
        check_limits(self, "launcher.")
        if self.name == "none" and self.workers is not None:
            raise ConfigError(
                f"launcher.workers={self.workers} starts nothing. Add launcher=local."
            )
        if self.name in ("none", "local") and self.parameters:
            raise ConfigError(
                f"launcher.parameters has no effect with launcher={self.name}. Use "
                "launcher=submitit or launcher=ray."
            )


@dataclass(kw_only=True)
class DistributedConfig:
    """The processes of torchrun."""

    timeout: PositiveInt = 600
    """Seconds to wait until all of them have begun."""

    def __post_init__(self) -> None:
        check_limits(self, "distributed.")


GROUP_CONFIGS = {
    "model": ModelConfig,
    "task": TaskConfig,
    "tuning": TuningConfig,
    "logger": LoggerConfig,
    "launcher": LauncherConfig,
}
"""Groups whose options may leave keys out. The options of `method` have all keys."""


@dataclass(kw_only=True)
class Config:
    """The configuration of a run. Raises ConfigError for impossible values."""

    model: ModelConfig = field(default_factory=ModelConfig)
    method: Any = None
    """An instance of the method's `Config`; its field `name` is the method's name."""
    task: TaskConfig = field(default_factory=TaskConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    mode: Literal["run", "plan", "prefetch", "report", "compare"] = "run"
    seed: Seed = 0
    seeds: PositiveInt | None = None
    """Number of runs, with seed, seed+1, ...; None: 1, with tuning 5, or `tuning.seeds` above 1."""
    sample_seed: Seed = 1234
    fewshot_seed: Seed = 1234
    limit: int | float | None = None
    samples: list[int] | None = None
    num_fewshot: NonNegativeInt | None = None
    batch_size: int | str = "auto"
    max_batch_size: PositiveInt | None = None
    max_length: PositiveInt | None = None
    gen_kwargs: dict[str, bool | int | float | str | list[str] | None] | None = None
    apply_chat_template: bool | str | None = None
    """Null: `task.chat_template`, which replaces null in a `Config`."""
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = True
    predict_only: bool = False
    samples_per_document: int | None = None
    """Number of answers to each document (`tasks/several_answers.py`); null: one."""
    device: str = "auto"
    dtype: str = "auto"
    output_dir: UserPath = "outputs"
    data_dir: UserPath | None = None
    offline: bool = False
    baseline: bool = True
    rerun: bool = False
    wait: bool = True
    metrics: Literal["none", "expert", "confidence"] = "none"
    experiment: str | None = None
    scale: Literal["tiny", "small", "paper"] = "tiny"
    a: UserPath | None = None
    """With mode=compare: a results file or its folder."""
    b: str | None = None
    """With mode=compare: what is compared with `a`; several separated by commas."""

    overrides: list[str] = field(default_factory=list)
    """The overrides of the command line, for the record; not a key of `conf/`."""
    config_dirs: list[str] = field(default_factory=list)
    """The folder of `--config-dir`, for the record; not a key of `conf/`."""

    def __post_init__(self) -> None:
        if self.apply_chat_template is None:
            self.apply_chat_template = self.task.chat_template
        self._take_bf16()
        check_limits(self, "")
        one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        self._check_seeds()
        is_comparison = self.mode == "compare"
        if (self.a is not None) != is_comparison or (self.b is not None) != is_comparison:
            raise ConfigError(
                "mode=compare, a=<file or folder> and b=<file or folder>[,<more>] go together."
            )
        self._check_documents()
        self._check_answers()
        self._check_device()
        if isinstance(self.batch_size, int):
            at_least("batch_size", self.batch_size, 1)
        elif not re.fullmatch(r"auto(:\d+)?", self.batch_size):
            raise ConfigError(f"batch_size={self.batch_size}: use a positive integer or auto.")

    def _check_seeds(self) -> None:
        """Raise ConfigError for numbers of runs and studies that contradict each other, and for
        seeds above the largest."""
        if self.num_studies > 1 and self.seeds not in (None, self.num_studies):
            raise ConfigError(
                f"tuning.seeds={self.num_studies} evaluates each of its studies once, with the "
                f"study's own seed, and seeds={self.seeds} asks for another number of runs. Leave "
                "seeds out (seeds=null)."
            )
        last_seed = self.seed + self.num_seeds - 1
        if last_seed > MAX_SEED:
            raise ConfigError(
                f"seed={self.seed}: {self.num_seeds} runs end with seed {last_seed}, and the "
                f"largest is {MAX_SEED}. Give a smaller one."
            )

    def _check_documents(self) -> None:
        """Raise ConfigError for impossible `limit` and `samples`, and for both."""
        if self.limit is not None and not _is_limit(self.limit):
            raise ConfigError(
                f"limit={self.limit}: use a number of documents, or a fraction below 1."
            )
        if self.samples is not None and self.limit is not None:
            raise ConfigError("limit= and samples= both choose documents. Give one of them.")
        if self.samples is not None and (not self.samples or min(self.samples) < 0):
            raise ConfigError(f"samples={self.samples} must list document numbers from 0 on.")

    def _check_answers(self) -> None:
        """Raise ConfigError for one answer to a document, for a vote over several ones that are
        scored, and for several ones without scores. The headline metric becomes their mean."""
        count = self.samples_per_document
        if count is None:
            return
        at_least("samples_per_document", count, 2)
        if self.task.self_consistency is not None:
            raise ConfigError(
                f"samples_per_document={count} reports the vote, too (maj@{count}). "
                "Leave task.self_consistency out."
            )
        if self.predict_only:
            raise ConfigError(
                f"samples_per_document={count} scores each answer, and predict_only=true computes "
                "no score. Leave one out."
            )
        metric, _, filter_name = (self.task.metric or "").partition(",")
        if metric and not re.fullmatch(r"(avg|pass|maj)@\d+", metric):
            # the task's metric scores each answer
            self.task = replace(self.task, metric=f"avg@{count},{filter_name}")

    def _check_device(self) -> None:
        """Raise ConfigError for a device that torch does not have, and for two places of the
        model."""
        if not re.fullmatch(r"[a-z]+(:\d+)?", self.device):
            raise ConfigError(
                f"device={self.device} is not a device. Use auto, cpu, cuda, cuda:<index> or "
                "another one that torch has (mps, xpu, npu)."
            )
        if self.model.device_map is not None and self.device != "auto":
            raise ConfigError(f"Give device={self.device} or model.device_map, not both.")

    def _take_bf16(self) -> None:
        """Give `bf16` of `method.trainer`, which is transformers' name for it, to `dtype`.

        Raises ConfigError if that says something else.
        """
        fields = getattr(self.method, "trainer", {})
        if "bf16" not in fields:
            return
        bf16 = fields.pop("bf16")
        dtype = "bfloat16" if bf16 else "float32"
        if self.dtype not in ("auto", dtype):
            raise ConfigError(
                f"method.trainer.bf16={str(bf16).lower()} and dtype={self.dtype} are the same "
                "setting. Give one of them."
            )
        self.dtype = dtype

    @property
    def think_end_token(self) -> str | None:
        """`model.think_end_token`; None without a chat template, with which alone a model
        reasons."""
        return self.model.think_end_token if self.apply_chat_template else None

    @property
    def num_studies(self) -> int:
        """Number of studies with consecutive seeds; 0 without tuning."""
        return 0 if self.tuning.name == "none" else self.tuning.seeds

    @property
    def num_seeds(self) -> int:
        """Number of runs with consecutive seeds."""
        if self.num_studies > 1:
            return self.num_studies
        if self.seeds is not None:
            return self.seeds
        return 1 if self.tuning.name == "none" else SEEDS_WITH_TUNING


def _is_limit(limit: float) -> bool:
    """Whether it is a fraction below 1, or a number of documents."""
    if limit < 1:
        return limit > 0
    return float(limit).is_integer()


RECORDED = ("overrides", "config_dirs")
KEYS = [name for name in Config.__dataclass_fields__ if name not in RECORDED]
"""The keys of a composed configuration."""
