"""`--help`, read from the YAML files in `conf/` without Hydra and torch: the overview, or what a
word names."""

import re
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from textwrap import indent

from moe_lab.config.catalog import (
    about,
    experiment_files,
    option_files,
    option_text,
    plugin_folders,
    resource_folder,
    top_level_keys,
    unknown_option,
)
from moe_lab.config.schema import GROUP_CONFIGS
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ConfigError

GROUPS = ("method", "model", "task", "tuning", "logger", "launcher")

MODES = {
    "run": "compute what is not stored, print the table, write the page (the default)",
    "plan": (
        "lists the runs, whether each is stored, and their cost; loads no weights and writes "
        "nothing\n"
        "  It also says what the command lacks (packages, data, memory), and ends with exit code 2 "
        "if nothing can run."
    ),
    "report": (
        "writes the table and page of stored results again\n"
        "  The same overrides with mode=report show what of the command is stored, and name the "
        "runs that are missing."
    ),
    "compare": (
        "differences between stored results of the same documents, of lm-eval or moe_lab\n"
        "  mode=compare a=<file or folder> b=<file or folder>[,<more>] prints differences, paired "
        "tests (corrected for their\n"
        "  number) and the changed answers (docs/results.md)."
    ),
    "prefetch": (
        "fetches what a command needs, for a machine without network\n"
        "  The same overrides with mode=prefetch fetch weights, tokenizers and data sets; "
        "offline=true then runs them."
    ),
}
"""What each `mode=` does: a line, and below it more."""

HEAD = """\
moe_lab: do Mixture-of-Experts language models get better with other routings, and at what cost?

Usage: python -m moe_lab [flags] [group=option] [key=value] ...        (moe-lab does the same)

  python -m moe_lab                                       \
method=roe model=tiny task=toy_math: no network, no GPU
  python -m moe_lab method=roe model=olmoe task=gsm8k limit=50               \
a model of the hub on 50 documents
  python -m moe_lab method=roe model=tiny task=toy_math tuning=tpe           \
temperatures tuned on other documents
  python -m moe_lab -m method=roe,c3po task=gsm8k,arc_challenge              \
a grid, one table at the end
  python -m moe_lab experiment=roe/figure3 scale=tiny                        \
a table or figure of a paper
"""

MORE = """\
More: python -m moe_lab --help <word>
  roe, task=gsm8k       an option: what it is, and all its keys
  method=               the options of a group
  num_fewshot           a key;  keys: every key and its default
  mode=compare          a command
  flags                 -m, --config-dir and others, workers, exit codes"""

FLAGS = """\
Flags (before the overrides):
  -m, --multirun        a grid: one run for each of the values that commas separate
  --cfg job             print the composed configuration and stop
  --info defaults       how the configuration was composed (also: config, searchpath, plugins)
  --config-dir FOLDER   options of your own: FOLDER/model/mine.yaml is model=mine,
                        FOLDER/experiments/own/table.yaml is experiment=own/table
  --hydra-help          Hydra's own flags
  --version             the version of moe_lab

Several processes: launcher=local launcher.workers=4 shares the runs of a grid or experiment \
among workers (also
  submitit for SLURM, and ray). The same command in two terminals does the same (docs/workers.md).
  torchrun --nproc-per-node 2 -m moe_lab ... divides the requests of one run, or the model with \
model.load.tp_plan=auto.

Exit codes: 0 done; 1 a run failed; 2 the request is wrong; 3 another process holds the run, \
wait=false;
130 and 143 interrupted.
HYDRA_FULL_ERROR=1 shows the traceback of an error."""

FOOT = "python -m moe_lab --help alone is the overview; --help keys lists every key."


Files = dict[str, dict[str, Path]]
"""The YAML of each option by group, and of each experiment."""


def help_text(argv: list[str]) -> str:
    """The text for the named options, keys and commands, else the overview, also of the folders of
    `--config-dir`.

    Raises ConfigError for a name that is unknown.
    """
    folder_arguments = _folder_arguments(argv)
    config_dirs = [Path(folder) for folder in folder_arguments]
    folders = [resource_folder("conf"), *config_dirs, *plugin_folders()]
    files: Files = {group: option_files(group, folders) for group in GROUPS}
    files["experiment"] = experiment_files(config_dirs)

    texts = []
    for argument in argv:
        if not argument.startswith("-") and argument not in folder_arguments:
            texts.extend(_texts_of(argument, files, config_dirs))
    if not texts:
        return _overview(files)
    each_once = list(dict.fromkeys(texts))
    return "\n\n".join([*each_once, FOOT])


def _folder_arguments(argv: list[str]) -> list[str]:
    """The folders of `--config-dir=FOLDER` and `--config-dir FOLDER`."""
    folders = []
    for argument in argv:
        if argument.startswith("--config-dir="):
            folders.append(argument.removeprefix("--config-dir="))
    for flag, value in pairwise(argv):
        if flag in ("--config-dir", "-cd"):
            folders.append(value)
    return folders


def _texts_of(argument: str, files: Files, config_dirs: list[Path]) -> list[str]:
    """The texts for what an argument names: a word, `mode=...`, or options `group=...`; none for
    any other `key=value`."""
    name, sign, values = argument.lstrip("+").partition("=")
    if not sign:
        return _word(name, files, config_dirs)
    if name == "mode":
        return [_mode(value) for value in values.split(",")]
    if name in files:
        return [_option(name, value, files, config_dirs) for value in values.split(",")]
    return []


def _word(word: str, files: Files, config_dirs: list[Path]) -> list[str]:
    """The texts for what a single word names: a command, a topic, a group, options, an experiment,
    or a key. Raises ConfigError if nothing has this name."""
    topics: dict[str, Callable[[], str]] = {"keys": _keys, "flags": lambda: FLAGS}
    if word in MODES:
        return [_mode(word)]
    if word in topics:
        return [topics[word]()]
    if word in files:
        return [_option(word, "", files, config_dirs)]

    texts = []
    for group, options in files.items():
        if word in options:
            texts.append(_option(group, word, files, config_dirs))
    keys = []
    for top_level in top_level_keys():
        keys.append(top_level.key)
        if top_level.key == word:
            texts.append(f"{word}={top_level.default}\n  {top_level.comment}")
    if not texts:
        texts = _key_of_group(word, files)
    if not texts:
        known = [*MODES, *topics, *keys]
        for options in files.values():
            known.extend(options)
        raise ConfigError(
            f"--help {word}: nothing has this name.{did_you_mean(word, known)} See --help."
        )
    return texts


def _key_of_group(word: str, files: Files) -> list[str]:
    """The texts for a key such as `method.n` or `n`: its comment in each option that has it, each
    text once. Empty if no option has it."""
    wanted_group, _, key = word.rpartition(".")
    key_line = re.compile(rf"((?:^ *#.*\n)*)^{re.escape(key)}:(.*)$", re.MULTILINE)
    options_by_text: dict[str, list[str]] = {}
    for group in GROUPS:
        if wanted_group not in ("", group):
            continue
        for option, file in files[group].items():
            line = key_line.search(option_text(file))
            if line is None:
                continue
            comment, default = line.groups()
            comment = comment.replace("# ", "  ").rstrip()
            text = f"{group}.{key}={default.strip()}\n{comment}"
            options_by_text.setdefault(text, []).append(f"{group}={option}")
    return [f"{text}\n  ({', '.join(options)})" for text, options in options_by_text.items()]


def _mode(mode: str) -> str:
    """What a mode does. Raises ConfigError for an unknown one."""
    if mode not in MODES:
        raise ConfigError(
            f"mode={mode} is unknown.{did_you_mean(mode, MODES)} Choices: {', '.join(MODES)}."
        )
    return f"mode={mode}: {MODES[mode]}"


def _option(group: str, option: str, files: Files, config_dirs: list[Path]) -> str:
    """An option's YAML, whose comments explain its keys; for `group=` the list of its options."""
    options = files[group]
    if not option:
        lines = [f"{group}="]
        width = max(len(name) for name in options)
        for name, file in options.items():
            lines.append(f"  {name:<{width}}  {about(file)}")
        return "\n".join(lines)
    if group == "experiment":
        return _experiments(option, config_dirs)
    if option not in options:
        raise ConfigError(unknown_option(group, option, sorted(options)))
    return f"{group}={option}\n\n{indent(option_text(options[option]).rstrip(), '  ')}"


def _experiments(name: str, config_dirs: list[Path]) -> str:
    """The titles of experiments, and the number of cells of each scale."""
    from moe_lab.reports.papers.experiment import find_experiments

    texts = []
    for experiment in find_experiments(name, config_dirs):
        lines = [
            f"experiment={experiment.name}",
            f"  {experiment.title}",
            f"  {experiment.source}",
            "",
        ]
        for scale, cells in experiment.scales.items():
            lines.append(f"  scale={scale:<8} {len(cells.overrides())} cells")
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def _overview(files: Files) -> str:
    """The text of `--help` alone."""
    lines = [HEAD, "Commands:"]
    for mode, text in MODES.items():
        lines.append(f"  mode={mode:<9} {text.splitlines()[0]}")
    lines += ["", "Groups:"]
    for group, options in files.items():
        examples = ", ".join(list(options)[:3])
        lines.append(f"  {group + '=':<12} {len(options):>3} options, such as {examples}")
    return "\n".join([*lines, "", MORE])


def _keys() -> str:
    """Every key with its default; those of options by name."""
    lines = ["Keys and defaults (of a method: --help <method>; of a command: --cfg job):"]
    for top_level in top_level_keys():
        key_with_default = f"{top_level.key}={top_level.default}"
        lines.append(f"  {key_with_default:<28} {top_level.comment}")
    for group, group_config in GROUP_CONFIGS.items():
        names = []
        for field in fields(group_config):
            # the name of any other option is the option's own
            if group == "task" or field.name != "name":
                names.append(f"{group}.{field.name}")
        lines.append(f"  {', '.join(names)}")
    return "\n".join(lines)
