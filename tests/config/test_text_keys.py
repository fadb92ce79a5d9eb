"""Keys of type text keep the characters that were typed, in every way to give a value.

Broken by: a text key whose value Hydra or YAML reads as a number or a switch.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_origin

import pytest
import yaml

import moe_lab
from moe_lab.config.schema import GROUP_CONFIGS, Config
from moe_lab.config.text_keys import text_annotations
from moe_lab.config.validators import alternatives
from moe_lab.methods import get_method, method_names
from moe_lab.runs.config import compose_or_explain, to_config
from tests.support.command import FakeRuns, install, run_command

TEXTS = [
    "12345e7",
    "7e10123",
    "5e2",
    "1.10",
    "064",
    "1_000",
    "-0",
    "+1",
    ".5",
    "nan",
    "True",
    "1:30",
]
OF_YAML = [*TEXTS, "0x1F", "yes", "1.", "off"]


class TextKey(NamedTuple):
    name: str
    """With its group: `model.revision`."""
    annotation: object

    @property
    def is_list(self) -> bool:
        return any(get_origin(choice) is list for choice in alternatives(self.annotation))

    def texts(self, candidates: list[str]) -> list[str]:
        """The candidates that are texts for this key.

        A key that is also a switch takes true, yes and off as switches.
        """
        if bool not in alternatives(self.annotation):
            return candidates
        return [text for text in candidates if text.lower() not in ("true", "yes", "off")]


@cache
def text_keys() -> dict[str, list[TextKey]]:
    """All text keys by the method that has them; "base" has those of all methods."""
    common = text_annotations(Config, "")
    for group, cls in GROUP_CONFIGS.items():
        common |= text_annotations(cls, f"{group}.")
    annotations = {"base": common}
    for method in method_names():
        of_method = text_annotations(get_method(method).Config, "method.")
        annotations[method] = annotations.get(method, {}) | of_method

    keys = {}
    for method, annotation_of in annotations.items():
        keys[method] = [
            TextKey(name, annotation)
            for name, annotation in annotation_of.items()
            if not is_set_otherwise(name)
        ]
    return keys


def is_set_otherwise(name: str) -> bool:
    """A name says which option it is (but a task's is a text), and two keys are recorded."""
    group, _, key = name.rpartition(".")
    if key == "name":
        return group == "method" or (group in GROUP_CONFIGS and group != "task")
    return name in ("overrides", "config_dirs")


def value_of(values: dict, name: str) -> object:
    """The value of a key in the nested values of a cell."""
    value: Any = values
    for part in name.split("."):
        value = value[part]
    return value


def test_there_are_text_keys_in_every_group_and_method_with_one():
    names = set()
    for keys in text_keys().values():
        names |= {key.name for key in keys}
    for text_key in (
        "a",
        "b",
        "apply_chat_template",
        "launcher.address",
        "logger.tags",
        "method.dataset",
        "method.reference",
        "model.revision",
        "output_dir",
        "system_instruction",
        "task.name",
    ):
        assert text_key in names
    for number_key in ("batch_size", "seed", "limit", "method.temperature"):
        assert number_key not in names


# Overrides


@pytest.mark.parametrize("method", text_keys())
def test_an_override_keeps_its_characters(method):
    expected = {}
    for number, key in enumerate(text_keys()[method]):
        texts = key.texts(TEXTS)
        expected[key.name] = texts[number % len(texts)]
    overrides = [f"++{name}={text}" for name, text in expected.items()]

    [cell] = compose_or_explain([f"method={method}", *overrides])

    assert {name: value_of(cell.values, name) for name in expected} == expected


@pytest.mark.parametrize("method", text_keys())
def test_an_override_of_a_list_keeps_its_characters(method):
    expected = {}
    overrides = []
    for number, key in enumerate(text_keys()[method]):
        if key.is_list:
            texts = key.texts(TEXTS)
            text = texts[number % len(texts)]
            expected[key.name] = [text, "a,1.0", "b"]
            overrides.append(f"++{key.name}=[{text}, 'a,1.0',b]")

    [cell] = compose_or_explain([f"method={method}", *overrides])

    assert {name: value_of(cell.values, name) for name in expected} == expected


@pytest.mark.parametrize("text", TEXTS)
def test_cfg_shows_a_text_that_looks_like_something_else(text, capsys):
    ended = run_command(
        capsys, f"model.revision={text}", f"system_instruction={text}", "--cfg", "job"
    )
    values = yaml.safe_load(ended.out)
    assert values["model"]["revision"] == text
    assert values["system_instruction"] == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_sweep_keeps_a_text_that_looks_like_something_else(text):
    cells = compose_or_explain(["-m", f"model.revision={text},main", f"logger.tags=[{text}],[b]"])
    revisions = [cell.values["model"]["revision"] for cell in cells]
    tags = [cell.values["logger"]["tags"] for cell in cells]
    assert revisions == [text, text, "main", "main"]
    assert tags[:2] == [[text], ["b"]]
    assert to_config(cells[0]).model.revision == text


def test_a_recipe_keeps_its_characters():
    [cell] = compose_or_explain(
        ["model=toy-rules", "model.recipe.dataset=5e2", "model.recipe.steps=5"]
    )
    recipe = cell.values["model"]["recipe"]
    assert recipe["dataset"] == "5e2"
    assert recipe["steps"] == 5


def test_numbers_stay_numbers():
    [cell] = compose_or_explain(
        ["method.temperature=1e-1", "limit=0.50", "batch_size=8", "seed=1_0"]
    )
    assert cell.values["method"]["temperature"] == 0.1
    assert cell.values["limit"] == 0.5
    assert cell.values["batch_size"] == 8
    assert cell.values["seed"] == 10


# YAML


def write_option(folder: Path, group: str, lines: list[str]) -> None:
    (folder / group).mkdir()
    (folder / group / "my_option.yaml").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("style", ["{}", "'{}'", '"{}"'])
@pytest.mark.parametrize("method", text_keys())
def test_a_yaml_keeps_its_characters_quoted_or_not(method, style, tmp_path):
    expected: dict[str, object] = {}
    lines_of: dict[str, list[str]] = {}
    for number, key in enumerate(text_keys()[method]):
        texts = key.texts(OF_YAML)
        text = texts[number % len(texts)]
        written = style.format(text)
        group, _, option_key = key.name.rpartition(".")
        lines = lines_of.setdefault(group, [])
        if key.is_list:
            expected[key.name] = [text, "b"]
            lines.append(f"{option_key}: [{written}, b]")
        else:
            expected[key.name] = text
            lines.append(f"{option_key}: {written}")

    argv = ["--config-dir", str(tmp_path)]
    for group, lines in lines_of.items():
        if group == "":
            write_option(tmp_path, "mine", ["# @package _global_", *lines])
            argv.append("+mine=my_option")
            continue
        option_name = method if group == "method" else "lm_eval"
        if group != "task":
            lines = [f"name: {option_name}", *lines]
        write_option(tmp_path, group, lines)
        argv.append(f"{group}=my_option")

    [cell] = compose_or_explain(argv)
    assert {name: value_of(cell.values, name) for name in expected} == expected


@pytest.fixture
def policy(tmp_path) -> str:
    """`method.policy` of a function with a text and a number."""
    file = tmp_path / "idea.py"
    file.write_text("def f(router, routing, tag='a', scale=1.0):\n    return routing\n")
    return f"{file}:f"


def test_the_text_of_a_policys_function_keeps_its_characters(policy):
    [cell] = compose_or_explain(
        ["method=policy", f"method.policy={policy}", "method.tag=5e2", "method.scale=5e2"]
    )
    method = to_config(cell).method
    assert method.tag == "5e2"
    assert method.scale == 500.0


def test_the_text_of_a_policys_function_keeps_its_characters_in_a_yaml(policy, tmp_path):
    lines = ["name: policy", f"policy: {policy}", "tag: 1.10", "scale: 5e2"]
    write_option(tmp_path, "method", lines)
    [cell] = compose_or_explain(["--config-dir", str(tmp_path), "method=my_option"])
    method = to_config(cell).method
    assert method.tag == "1.10"
    assert method.scale == 500.0


# Python


def test_python_keeps_its_characters(monkeypatch, tmp_path):
    runs = install(monkeypatch, FakeRuns())
    monkeypatch.chdir(tmp_path)
    moe_lab.run(["model.revision=12345e7"], output_dir="5e2", system_instruction="1.10", quiet=True)
    configs = {repr(config): config for config in runs.asked}
    [config] = configs.values()
    assert config.model.revision == "12345e7"
    assert config.output_dir == "5e2"
    assert config.system_instruction == "1.10"
    assert [path.name for path in Path().iterdir()] == ["5e2"]
