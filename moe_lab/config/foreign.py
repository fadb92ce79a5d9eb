"""Names that users of other tools type: what to type here instead, or why there is nothing."""

import json
import re
import shlex
from dataclasses import fields

from moe_lab.config.catalog import option_files, resource_folder
from moe_lab.config.schema import GROUP_CONFIGS, KEYS
from moe_lab.errors import ConfigError

_ADAPTER = (
    "Use model.peft=<adapter folder or hub id>: base and methods on the merged adapter (docs/models.md)."
)
_LORA = f"To train one: method=finetune-freeze method.lora.r=8 (docs/finetuning.md).\n{_ADAPTER}"
_FUSED = (
    "bitsandbytes quantizes linear layers, and the experts of transformers 5 are fused tensors.\n"
    "Use dtype=bfloat16, an MXFP4 or FP8 checkpoint, or for a dense model a checkpoint that is stored quantized "
    "(docs/hardware.md)."
)
_SHOTS = "Use num_fewshot=<number of examples>."
_FOLDER = "Hydra writes no folder here.\noutput_dir=<folder> says where results go."
_PROCESS = "Hydra only composes here, and starts no job. Leave it out."
OF_HYDRA = {
    "hydra.run": _FOLDER,
    "hydra.sweep": _FOLDER,
    "hydra.output_subdir": _FOLDER,
    "hydra.callbacks": _PROCESS,
    "hydra.job.chdir": _PROCESS,
    "hydra.job.env_set": _PROCESS,
    "hydra.job.env_copy": _PROCESS,
}
"""Settings of Hydra that have no effect here, and what to do instead."""
_STORED = "Nothing to set: answers are stored as they come, and the same command continues."
INSTEAD = {
    "adapter": _ADAPTER,
    "attn_implementation": "Use model.attn_implementation=sdpa or eager.",
    "cache_requests": _STORED,
    "confirm_run_unsafe_code": "task.confirm_run_unsafe_code=true, where bubblewrap does not work (docs/tasks.md).",
    "dtype": "The dtype is a key of its own: dtype=bfloat16.",
    "hydra/launcher": (
        "The runs of a grid share a model, one table and one family of tests; Hydra's launchers run them apart.\n"
        "launcher=local launcher.workers=4 runs a grid in 4 processes (--help launcher=)."
    ),
    "hydra/sweeper": (
        "The runs of a grid share one table and one family of tests, and Hydra's Optuna sweeper needs optuna<3.\n"
        "Use -m with several values for a grid, or tuning=tpe for a search."
    ),
    "include_path": "Use task.include_path=<folder>.",
    "load_in_4bit": _FUSED,
    "load_in_8bit": _FUSED,
    "log_samples": "Nothing to set: samples_<task>.jsonl is always written, next to results.json.",
    "lora": _LORA,
    "model_args": "Use model.path=<hub id or folder>, dtype= and the other keys of --help model=.",
    "model_name_or_path": "Use model.path=<hub id or folder>.",
    "output_path": "Use output_dir=<folder>.",
    "parallelize": "Use model.device_map=auto.",
    "peft": _ADAPTER,
    "policy": "Use method=policy method.policy=<file>.py:<function>.",
    "pretrained": "Use model.path=<hub id or folder>.",
    "fewshot": _SHOTS,
    "n_shot": _SHOTS,
    "nshot": _SHOTS,
    "shots": _SHOTS,
    "samples": "Use samples=[1,2], the numbers of the documents.",
    "sampler": "The tuning is named by its sampler: tuning=tpe, tuning=gp or tuning=random (docs/tuning.md).",
    "tasks": "Use task=gsm8k, or task=lm_eval task.name=[piqa,sciq] for any tasks of lm-eval.",
    "torch_dtype": "Use dtype=bfloat16.",
    "trust_remote_code": "Code from the hub is never run. Use a model whose type transformers has.",
    "use_cache": _STORED,
    "write_out": "Nothing to set: samples_<task>.jsonl has every prompt.",
    "wandb_args": "Use logger=wandb logger.project=<name> (docs/wandb.md).",
}
"""By flag, key or last part of a key."""

# A command of lm-eval in the words of this one

JOINED = ("tasks", "model_args", "gen_kwargs")
"""Flags with several values. Of others the last one counts."""
TYPICAL = ("model_args", "tasks")
"""Flags by which a command of lm-eval is recognized. Its other flags alone may be keys that were typed with dashes."""
SHORT = {
    "-M": "--model",
    "-a": "--model_args",
    "-b": "--batch_size",
    "-f": "--num_fewshot",
    "-L": "--limit",
    "-o": "--output_path",
    "-s": "--log_samples",
    "-t": "--tasks",
}
RENAMED = {
    "add_bos_token": "model.add_bos_token",
    "attn_implementation": "model.attn_implementation",
    "include_path": "task.include_path",
    "output_path": "output_dir",
    "peft": "model.peft",
    "pretrained": "model.path",
    "revision": "model.revision",
    "seed": "fewshot_seed",
    "think_end_token": "model.think_end_token",
    "tokenizer": "model.tokenizer",
}
"""The key for a flag of lm-eval, or for a name in its --model_args. Others: the key of the same name, if any."""


def refuse_lm_eval_command(argv: list[str]) -> None:
    """Raise ConfigError with the whole translated command for a command of lm-eval."""
    flags: dict[str, list[str]] = {}
    ours: list[str] = []
    name = ""
    for word in argv:
        if re.match(r"-\d", word):
            flags.setdefault(name, []).append(word)
        elif word.startswith("--") or word in SHORT:
            flag, sign, value = SHORT.get(word, word).partition("=")
            name = flag[2:].replace("-", "_")
            flags.setdefault(name, []).extend([value] if sign else [])
        elif word.startswith("-") or (re.match(r"\+*[\w./]+=", word) and not name.endswith("args")):
            ours.append(word)
        elif name:
            flags[name].append(word)
    if not any(flag in flags for flag in TYPICAL):
        return
    keys, notes = _translated(flags)
    method = [] if any(key.startswith("method=") for key in [*ours, *keys]) else ["method=base"]
    command = shlex.join(["python", "-m", "moe_lab", *ours, *method, *keys])
    raise ConfigError(
        f"These are flags of lm-eval. Here the command is:\n{command}\n{' '.join(notes)}".rstrip()
    )


def _translated(flags: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """The overrides for flags of lm-eval, and sentences about what differs."""
    keys: list[str] = []
    notes: list[str] = []
    given = {
        name: ",".join(values) if name in JOINED else "".join(values[-1:]) for name, values in flags.items()
    }
    backend, tasks = given.pop("model", "hf"), given.pop("tasks", "")
    given = _pairs(given.pop("model_args", "")) | given
    if backend not in ("hf", "hf-auto", "huggingface"):
        notes.append(f"--model {backend}: here transformers computes every model.")
    for name, value in given.items():
        key = RENAMED.get(name, name)
        if name == "seed":
            value = value.rpartition(",")[2]  # Python's, NumPy's, torch's, and that of few-shot examples
        if name == "dtype":
            value = value.removeprefix("torch.")
            value = {"float": "float32", "half": "float16"}.get(value, value)
        if name == "gen_kwargs" and value.startswith("{"):
            value = ",".join(f"{key}={one}" for key, one in _pairs(value).items())
        if name in ("system_instruction", "think_end_token"):
            value = json.dumps(value, ensure_ascii=False)  # in Hydra's quotes
        if name in RENAMED or (name in KEYS and name != "samples"):  # lm-eval's samples are by task
            keys.append(f"{key}={value or 'true'}")
        else:
            notes.append(f"{name}: {INSTEAD.get(name, 'no counterpart here.')}".replace("\n", " "))
        if name == "limit":
            first = f': "samples=[$(seq -s, 0 {int(value) - 1})]"' if value.isdigit() else ""
            notes.append(f"limit={value} draws examples at random, lm-eval takes the first ones{first}.")
    if tasks in option_files("task", [resource_folder("conf")]):
        keys.insert(0, f"task={tasks}")
    elif tasks:
        keys[:0] = ["task=lm_eval", f"task.name={f'[{tasks}]' if ',' in tasks else tasks}"]
    return keys, notes


def _pairs(text: str) -> dict[str, str]:
    """The pairs of `a=1,b=2`, or of JSON."""
    if text.startswith("{"):
        try:
            return {str(name): json.dumps(value).strip('"') for name, value in json.loads(text).items()}
        except json.JSONDecodeError as error:
            raise ConfigError(f"{text}: this is no JSON: {error}") from error
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: value.strip("'\"") for name, _, value in pairs}


# One flag or key


def refuse_foreign(argument: str) -> None:
    """Raise ConfigError for a flag or key of lm-eval, transformers or Hydra that this command does not have."""
    name = argument.lstrip("-+").partition("=")[0]
    own = {f"{group}.{one.name}" for group, cls in GROUP_CONFIGS.items() for one in fields(cls)}
    for key, instead in OF_HYDRA.items():
        if f"{name}.".startswith(f"{key}."):
            raise ConfigError(f"{name}: {instead}")
    if argument.startswith("--"):
        name = name.replace("-", "_")
        if name in INSTEAD:
            raise ConfigError(f"{argument}: no flag here. {INSTEAD[name]}")
        if name.partition(".")[0] in KEYS:
            raise ConfigError(f"{argument}: keys have no dashes. Use {name}=<value>.")
    elif name not in (*KEYS, *own) and not name.startswith("method."):
        leaf = name if "/" in name else name.rpartition(".")[2]
        if leaf in INSTEAD:
            raise ConfigError(f"{name}: {'' if '/' in name else 'no key here. '}{INSTEAD[leaf]}")
