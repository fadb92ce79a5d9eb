"""Names that users of other tools type: what to type here instead, or why there is nothing."""

import json
import re
import shlex
from dataclasses import fields
from functools import cache
from pathlib import Path

import yaml

from moe_lab.config.catalog import option_files, resource_folder
from moe_lab.config.schema import GROUP_CONFIGS, KEYS
from moe_lab.errors import ConfigError


@cache
def texts() -> dict[str, dict[str, str]]:
    """The content of foreign.yaml."""
    file = Path(__file__).with_suffix(".yaml")
    content: dict[str, dict[str, str]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


# A command of lm-eval in the words of this one

JOINED = ("tasks", "model_args", "gen_kwargs")
"""Flags with several values. Of others the last one counts."""
TYPICAL = re.compile(r"--(tasks|model[-_]args)(=|$)|-[at]$")
"""Flags by which a command of lm-eval is recognized. Its other flags alone may be keys that were typed with dashes."""


def refuse_lm_eval_command(argv: list[str]) -> None:
    """Raise ConfigError with the whole translated command for a command of lm-eval."""
    if not any(map(TYPICAL.match, argv)):
        return
    short = texts()["short"]
    flags: dict[str, list[str]] = {}
    ours: list[str] = []
    name = ""
    for word in argv:
        if re.match(r"-\d", word):
            flags.setdefault(name, []).append(word)
        elif word.startswith("--") or word in short:
            flag, sign, value = short.get(word, word).partition("=")
            name = flag[2:].replace("-", "_")
            flags.setdefault(name, []).extend([value] if sign else [])
        elif word.startswith("-") or (re.match(r"\+*[\w./]+=", word) and not name.endswith("args")):
            ours.append(word)
        elif name:
            flags[name].append(word)
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
    instead, renamed = texts()["instead"], texts()["renamed"]
    given = {
        name: ",".join(values) if name in JOINED else "".join(values[-1:]) for name, values in flags.items()
    }
    backend, tasks = given.pop("model", "hf"), given.pop("tasks", "")
    given = _pairs(given.pop("model_args", "")) | given
    if backend not in ("hf", "hf-auto", "huggingface"):
        notes.append(f"--model {backend}: here transformers computes every model.")
    for name, value in given.items():
        key = renamed.get(name, name)
        if name == "seed":
            value = value.rpartition(",")[2]  # Python's, NumPy's, torch's, and that of few-shot examples
        if name == "dtype":
            value = value.removeprefix("torch.")
            value = {"float": "float32", "half": "float16"}.get(value, value)
        if name == "gen_kwargs" and value.startswith("{"):
            value = ",".join(f"{key}={one}" for key, one in _pairs(value).items())
        if name in ("system_instruction", "think_end_token"):
            value = json.dumps(value, ensure_ascii=False)  # in Hydra's quotes
        if name in renamed or (name in KEYS and name != "samples"):  # lm-eval's samples are by task
            keys.append(f"{key}={value or 'true'}")
        else:
            notes.append(f"{name}: {instead.get(name, 'no counterpart here.')}".replace("\n", " "))
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
    name, is_flag = argument.lstrip("-+").partition("=")[0], argument.startswith("--")
    own = {f"{group}.{one.name}" for group, cls in GROUP_CONFIGS.items() for one in fields(cls)}
    if not is_flag and (name in (*KEYS, *own) or name.startswith("method.")):
        return
    instead = texts()["instead"]
    if name.startswith("hydra."):
        for key, text in instead.items():
            if f"{name}.".startswith(f"{key}."):
                raise ConfigError(f"{name}: {text}")
    if is_flag:
        name = name.replace("-", "_")
        if name in instead:
            raise ConfigError(f"{argument}: no flag here. {instead[name]}")
        if name.partition(".")[0] in KEYS:
            raise ConfigError(f"{argument}: keys have no dashes. Use {name}=<value>.")
    elif (leaf := name if "/" in name else name.rpartition(".")[2]) in instead:
        raise ConfigError(f"{name}: {'' if '/' in name else 'no key here. '}{instead[leaf]}")
