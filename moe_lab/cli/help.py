"""`--help`, read from the YAML files in `conf/` without Hydra and torch: the overview, or the keys of named options."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from textwrap import indent

from moe_lab.config.catalog import (
    about,
    experiment_files,
    option_files,
    plugin_folders,
    resource_folder,
    top_level_keys,
    unknown_option,
)
from moe_lab.config.schema import GROUP_CONFIGS
from moe_lab.errors import ConfigError

GROUPS = ("method", "model", "task", "tuning", "logger", "launcher")

HEAD = """\
moe_lab: do Mixture-of-Experts language models get better with other routings, and at what cost?

Usage: python -m moe_lab [flags] [group=option] [key=value] ...        (moe-lab does the same)

python -m moe_lab --help method=<option> explains an option's keys; so with any group, or several at once.
python -m moe_lab --help model= lists the options of a group.

Seven commands:
  python -m moe_lab
      method=roe model=tiny task=toy_math: no network, no GPU, no data set
  python -m moe_lab method=roe model=olmoe task=gsm8k limit=50 data_dir=my/data
      a model of the hub on 50 documents of a local copy of GSM8K; such numbers are shown as PARTIAL
  python -m moe_lab method=roe model=tiny task=toy_math tuning=tpe
      tunes the temperatures on documents outside of the test set, then evaluates five seeds
  python -m moe_lab method=finetune-freeze model=tiny task=toy_choice method.schedule=none-router
      fine-tunes a copy of the model, its routers frozen in the second half, and evaluates it next to the base model
  python -m moe_lab -m method=base,roe model=olmoe,mixtral task=gsm8k,arc_challenge
      a grid: every combination, each model loaded once, one table at the end
  python -m moe_lab mode=plan method=roe model=tiny task=toy_math,toy_choice -m
      lists the runs, whether each is stored, and their cost; loads no weights and writes nothing
  python -m moe_lab experiment=roe/figure3 scale=tiny
      a table or figure of a paper: computes the missing runs, then writes it to outputs/tables/
"""

TAIL = """\
Where results go:
  outputs/runs/<model>-<method>-<task>-<id>/results.json   lm-eval's results, cost, comparison with base
  outputs/studies/<model>-<task>-<metric>-<id>/best.yaml   tuned temperatures, for method.temperature=
  outputs/tables/                                          tables of experiments
  outputs/comparisons/<names>-<id>/comparison.json         differences that mode=compare computes
  The same command again continues an interrupted run, or shows the stored result. The path of
  results.json is the last line on stdout. output_dir=elsewhere moves all of it.

Two or more results of the same documents, of lm-eval or moe_lab: mode=compare a=<file or folder>
  b=<file or folder>[,<another>] prints differences, paired tests (corrected for their number) and changed answers.

Several processes: launcher=local launcher.workers=4 shares the runs of a grid or experiment among workers (also
  submitit for SLURM, and ray). The same command in two terminals does the same (docs/workers.md).
  torchrun --nproc-per-node 2 -m moe_lab ... divides the requests of one run.

A machine without network: mode=prefetch with the same overrides, on a machine with network, fetches what the
  command needs (weights, tokenizers, data sets). Then offline=true runs it. mode=plan offline=true says what the
  command lacks, and ends with exit code 2 if it lacks anything.

Flags (before the overrides):
  -m, --multirun        a grid: one run for each of the values that commas separate
  --cfg job             print the composed configuration and stop
  --info defaults       how the configuration was composed (also: config, searchpath, plugins)
  --config-dir FOLDER   options of your own: FOLDER/model/mine.yaml is model=mine,
                        FOLDER/experiments/own/table.yaml is experiment=own/table
  --hydra-help          Hydra's own flags
  --version             the version of moe_lab

Exit codes: 0 done; 1 a run failed; 2 the request is wrong; 3 another process holds the run, wait=false;
130 and 143 interrupted.
HYDRA_FULL_ERROR=1 shows the traceback of an error."""


def help_text(argv: list[str]) -> str:
    """The text for the named options, else the overview. It includes the options in folders of `--config-dir`.

    Raises ConfigError for an unknown option.
    """
    joined = [argument.partition("=")[2] for argument in argv if argument.startswith("--config-dir=")]
    apart = [value for flag, value in pairwise(argv) if flag in ("--config-dir", "-cd")]
    config_dirs = list(map(Path, joined + apart))
    overrides = [argument.lstrip("+").partition("=") for argument in argv]
    named = [(group, name) for group, sign, names in overrides if sign for name in names.split(",")]
    known = [one for one in dict.fromkeys(named) if one[0] in (*GROUPS, "experiment")]
    texts = [_explained(group, option, config_dirs) for group, option in known]
    return "\n\n".join([*texts, FOOT]) if texts else _overview(config_dirs)


def _explained(group: str, option: str, config_dirs: list[Path]) -> str:
    """An option's YAML, whose comments explain its keys; for `group=` the list of its options.

    Of experiments it is their titles and the number of cells of each scale.
    """
    if not option:
        return _group(group, config_dirs)
    if group != "experiment":
        files = _files(group, config_dirs)
        if option not in files:
            raise ConfigError(unknown_option(group, option, sorted(files)))
        return f"{group}={option}\n\n{indent(files[option].read_text(encoding='utf-8').rstrip(), '  ')}"
    from moe_lab.reports.papers.experiment import find_experiments

    texts = []
    for one in find_experiments(option, config_dirs):
        scales = [f"  scale={name:<8} {len(cells.overrides())} cells" for name, cells in one.scales.items()]
        texts.append("\n".join([f"experiment={one.name}", f"  {one.title}", f"  {one.source}", "", *scales]))
    return "\n\n".join(texts)


def _overview(config_dirs: list[Path]) -> str:
    groups = [f"{_group(group, config_dirs)}\n" for group in (*GROUPS, "experiment")]
    keys = [f"  {f'{key}={default}':<28} {comment}" for key, default, comment in top_level_keys()]
    for group, cls in GROUP_CONFIGS.items():
        names = [f"{group}.{one.name}" for one in fields(cls) if group == "task" or one.name != "name"]
        keys.append(f"  {', '.join(names)}")
    about_groups = "Groups (the first line of each option's YAML says what it is):"
    about_keys = "Keys and defaults (of a method: --help method=<method>; of a command: --cfg job):"
    return "\n".join([HEAD, about_groups, *groups, about_keys, *keys, "", TAIL])


def _group(group: str, config_dirs: list[Path]) -> str:
    files = _files(group, config_dirs)
    return "\n".join([f"{group}=", *(f"  {name:<16} {about(file)}" for name, file in files.items())])


def _files(group: str, config_dirs: list[Path]) -> dict[str, Path]:
    if group == "experiment":
        return experiment_files(config_dirs)
    return option_files(group, [resource_folder("conf"), *config_dirs, *plugin_folders()])


FOOT = "python -m moe_lab --help alone is the overview: all groups, their options, and every other key."
