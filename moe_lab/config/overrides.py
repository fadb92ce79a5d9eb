"""Overrides as they are typed: which ones are refused, and how they are quoted for Hydra."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser

from moe_lab.config.doors import is_in_door
from moe_lab.config.schema import GROUP_CONFIGS, KEYS
from moe_lab.config.text_keys import NOTHING, SCHEMA_TEXT_KEYS, Chosen, TextKeys
from moe_lab.errors import ConfigError

GROUPS = (*GROUP_CONFIGS, "method")
SEVERAL = re.compile(r"^(experiment|gen_kwargs|task\.metric|b)=([^'\"\[{].*[,=].*)$")
"""Keys whose value has commas and equal signs of its own."""
FOR_HYDRA = re.compile(r"""^['"\[{]|^\w+\(|\\|\$\{|['"].*,|,.*['"]""")
"""A quoted, escaped or interpolated value, a list, or a function of Hydra."""
NOT_PLAIN = re.compile(r"[^\w./:%*@?|+$-]", re.ASCII)
"""A character that Hydra's grammar does not accept in a plain value."""
SEVERAL_ITEMS = re.compile(r"\[|choice\(")
"""The beginning of a list, or of the values of a grid."""
ITEM = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^,\[\]()'"]+""")
"""An item of a list, quoted or not."""
INDEX = re.compile(r"\.\d+$")
"""The end of a key that is one item of a list: logger.tags.0"""
EXPERIMENT = re.compile(r"experiment=(?!null$).")
"""The key. `+experiment=` adds an option of a group that a user has."""
METHOD_KEY = re.compile(r"\+*method\.")
LAUNCHER = ("launcher=", "launcher.", "+launcher.", "++launcher.")
"""The beginnings of overrides that say who runs a command."""
OWN_GRID = "experiment= brings its own grid. Leave out -m and name one value per key."

_STORED = "nothing, answers are stored as they come, and the same command continues"
_QUANTIZED = (
    "dtype=bfloat16, or a quantized checkpoint: experts are fused tensors (docs/hardware.md)"
)
INSTEAD = {
    "cache_requests": _STORED,
    "fewshot": "num_fewshot=<number of examples>",
    "load_in_4bit": _QUANTIZED,
    "load_in_8bit": _QUANTIZED,
    "log_samples": "nothing, samples_<task>.jsonl is always written",
    "lora": "model.peft=<adapter>, and method.peft.r=16 trains one (docs/doors.md)",
    "model_args": "model.path=<hub id or folder>, or an option that --help model= lists",
    "model_name_or_path": "model.path=<hub id or folder>",
    "output_path": "output_dir=<folder>",
    "parallelize": "model.device_map=auto",
    "pretrained": "model.path=<hub id or folder>",
    "tasks": "task=gsm8k, or task=lm_eval task.name=[piqa,sciq] for any tasks of lm-eval",
    "torch_dtype": "dtype=bfloat16",
    "trust_remote_code": "a model whose type transformers has: code from the hub is never run",
    "use_cache": _STORED,
    "wandb_args": "logger=wandb logger.project=<name> (docs/wandb.md)",
    "hydra/launcher": "launcher=local launcher.workers=4, which keeps one table for all runs "
    "(--help launcher=)",
    "hydra/sweeper": "-m with several values for a grid, or tuning=tpe for a search",
}
"""What to use instead of a flag or key of lm-eval, transformers or Hydra."""
OF_JOBS = re.compile(r"hydra\.(?!searchpath)")
"""Settings of Hydra's jobs. Hydra starts no jobs here."""


def refuse_overrides(overrides: list[str]) -> None:
    """Raise ConfigError for overrides that Hydra would accept without effect, or refuse without
    naming the remedy."""
    for override in overrides:
        _refuse(override)


def _refuse(override: str) -> None:
    """As `refuse_overrides`, for one override."""
    key, _, value = override.lstrip("+~-").partition("=")
    is_flag = override.startswith("--")
    name = key.replace("-", "_") if is_flag else key
    if override.startswith("~") and key.partition(".")[0] in KEYS and not is_in_door(key):
        raise ConfigError(
            f"{key!r} was removed, but a run needs it. Leave out the override ~{key}."
        )
    if OF_JOBS.match(key):
        raise ConfigError(
            f"{key}: Hydra only composes here, and starts no job. output_dir=<folder> says where "
            "results go."
        )
    if is_flag and name.partition(".")[0] in KEYS:
        other_ways = ""
        if name == "model":
            other_ways = " (see --help model=), or model.path=<hub id or folder>"
        raise ConfigError(f"{override}: keys have no dashes. Use {name}=<value>{other_ways}.")

    is_known = key in KEYS or key.startswith("method.")
    last_part = name if "/" in name else name.rpartition(".")[2]
    if last_part in INSTEAD and not is_known:
        raise ConfigError(f"{override}: not here. Instead: {INSTEAD[last_part]}.")

    if key in GROUPS and (value == "null" or value.startswith("[")):
        several_tasks = ""
        if key == "task":
            several_tasks = " Several tasks in one run: task=lm_eval task.name=[piqa,sciq]."
        raise ConfigError(
            f"{key}={value}: a run has one {key}, which --help {key}= lists. A grid: -m {key}=a,b."
            f"{several_tasks}"
        )
    if key == "model" and "/" in value:
        raise ConfigError(
            f"model={value} is no option. A hub id or a folder is model.path={value}."
        )


class SplitArguments(NamedTuple):
    """A command line, split by `without_method_keys`."""

    others: list[str]
    method_keys: list[str]
    """`method.<key>=`; empty without experiment=."""


def without_method_keys(argv: list[str], texts: TextKeys = SCHEMA_TEXT_KEYS) -> SplitArguments:
    """Split the `method.<key>=` off a command line with experiment=, whose cells have different
    methods. Without experiment= nothing is split off.

    Raises Hydra's error for a key that does not parse, and ConfigError for several values.
    """
    if not any(EXPERIMENT.match(argument) for argument in argv):
        return SplitArguments(argv, [])
    method_keys = []
    others = []
    for argument in argv:
        if METHOD_KEY.match(argument):
            method_keys.append(argument)
        else:
            others.append(argument)
    for override in OverridesParser.create().parse_overrides(quoted(method_keys, texts)):
        if override.is_sweep_override():
            raise ConfigError(OWN_GRID)
    return SplitArguments(others, method_keys)


def with_free_keys(overrides: list[str]) -> list[str]:
    """The overrides, with `++` before keys that no YAML has, which Hydra would refuse otherwise.

    They are the keys of a library (`doors.py`), and with method=policy those of the user's
    function: `method.<key>=` becomes `++method.<key>=`.
    """
    has_function = "method=policy" in overrides
    forced = []
    for override in overrides:
        key = override.partition("=")[0]
        is_of_function = has_function and key.startswith("method.")
        if is_of_function or is_in_door(key):
            forced.append(f"++{override}")
        else:
            forced.append(override)
    return forced


def as_typed(override: str) -> str:
    """The override as the user typed it: without the "++" of `with_free_keys`, and without Hydra's
    escapes in the paths of a grid."""
    key = override.partition("=")[0].lstrip("+")
    if key.startswith("method.") or is_in_door(key):
        override = override.removeprefix("++")
    return override.replace("\\:", ":")


def quoted(arguments: Sequence[str], texts: TextKeys) -> list[str]:
    """The arguments of a command line as Hydra takes them. `texts`: the keys that keep the
    characters typed."""
    methods: tuple[str, ...] = ()
    policy = None
    for argument in arguments:
        key, _, value = argument.lstrip("+").partition("=")
        if key == "method":
            methods = tuple(value.split(","))
        elif key == "method.policy" and "method=policy" in arguments:
            policy = value
    chosen = Chosen(methods, policy)
    return [quote(argument, texts, chosen) for argument in arguments]


def quote(argument: str, texts: TextKeys = SCHEMA_TEXT_KEYS, chosen: Chosen = NOTHING) -> str:
    """Quote a value that Hydra's grammar would misread: a path with blanks or letters beyond ASCII,
    a text that looks like a number.

    A comma separates the values of a grid, unless the key takes several itself: `experiment=a,b`,
    `gen_kwargs=x=1,y=2`, `task.metric=acc,none`, `b=x,y`.
    """
    several = SEVERAL.match(argument)
    if several is not None:
        return f"{several[1]}={_quoted(several[2])}"
    name, _, value = argument.partition("=")
    if argument.startswith("-") or not value:
        return argument
    key = INDEX.sub("", name.lstrip("+"))

    def quoted_item(item: re.Match[str]) -> str:
        """The item of a list, quoted if Hydra would misread it."""
        text = item[0].strip()
        return _quoted(text) if texts.is_misread(key, text, chosen) else item[0]

    if SEVERAL_ITEMS.match(value):
        return f"{name}={ITEM.sub(quoted_item, value)}"
    if FOR_HYDRA.search(value):
        return argument
    parts = []
    for part in map(str.strip, value.split(",")):
        is_misread = NOT_PLAIN.search(part) or texts.is_misread(key, part, chosen)
        parts.append(_quoted(part) if is_misread else part)
    return f"{name}={','.join(parts)}"


def _quoted(value: str) -> str:
    """The value in single quotes, as Hydra's grammar takes it."""
    # backslashes before a quote are halved by Hydra, others are not
    escaped = re.sub(r"(\\*)(?='|$)", r"\1\1", value).replace("'", "\\'")
    return f"'{escaped}'"
