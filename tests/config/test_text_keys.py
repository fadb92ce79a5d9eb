"""Keys of type text keep the characters that were typed, in every way to give a value.

Broken by: a text key whose value Hydra or YAML reads as a number or a switch.
"""

from pathlib import Path
from typing import get_origin

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
NAMES = {f"{group}.name" for group in (*GROUP_CONFIGS, "method")} - {"task.name"}
"""Which option it is."""


def text_keys() -> dict[str, dict[str, object]]:
    """The annotations of all text keys, by the method that has them; "base" for those of all methods."""
    keys = {"base": text_annotations(Config, "")}
    for group, cls in GROUP_CONFIGS.items():
        keys["base"] |= text_annotations(cls, f"{group}.")
    for method in method_names():
        keys.setdefault(method, {}).update(text_annotations(get_method(method).Config, "method."))
    recorded = {"overrides", "config_dirs"}
    return {
        method: {key: kind for key, kind in own.items() if key not in NAMES | recorded}
        for method, own in keys.items()
    }


KEYS = [(method, key, kind) for method, own in text_keys().items() for key, kind in own.items()]


def value_of(values: dict, key: str) -> object:
    for part in key.split("."):
        values = values[part]
    return values


def is_list(kind: object) -> bool:
    return any(get_origin(choice) is list for choice in alternatives(kind))


def texts_for(kind: object, texts: list[str]) -> list[str]:
    """Those that are texts for this key: one that is also a switch takes true and yes as that."""
    switches = {"true", "yes", "off"}
    return [
        text for text in texts if bool not in alternatives(kind) or text.lower() not in switches
    ]


def test_there_are_text_keys_in_every_group_and_method_with_one():
    keys = {key for _, key, _ in KEYS}
    assert {
        "model.revision",
        "output_dir",
        "logger.tags",
        "launcher.address",
        "method.dataset",
    } <= keys
    assert {
        "task.name",
        "method.reference",
        "apply_chat_template",
        "system_instruction",
        "a",
        "b",
    } <= keys
    assert not {"batch_size", "seed", "limit", "method.temperature"} & keys


@pytest.mark.parametrize("method", text_keys())
def test_an_override_keeps_its_characters(method):
    keys = text_keys()[method]
    expected, lists = {}, {}
    for number, (key, kind) in enumerate(keys.items()):
        texts = texts_for(kind, TEXTS)
        expected[key] = texts[number % len(texts)]
        if is_list(kind):
            lists[key] = [expected[key], "a,1.0", "b"]
    one_text = [f"++{key}={text}" for key, text in expected.items()]
    [cell] = compose_or_explain([f"method={method}", *one_text])
    assert {key: value_of(cell.values, key) for key in keys} == expected
    in_list = [f"++{key}=[{first}, 'a,1.0',b]" for key, (first, *_) in lists.items()]
    [cell] = compose_or_explain([f"method={method}", *in_list])
    assert {key: value_of(cell.values, key) for key in lists} == lists


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_look_like_something_else(text, capsys):
    shown = run_command(
        capsys, f"model.revision={text}", f"system_instruction={text}", "--cfg", "job"
    )
    values = yaml.safe_load(shown.out)
    assert values["model"]["revision"] == values["system_instruction"] == text
    cells = compose_or_explain(["-m", f"model.revision={text},main", f"logger.tags=[{text}],[b]"])
    assert [cell.values["model"]["revision"] for cell in cells] == [text, text, "main", "main"]
    assert [cell.values["logger"]["tags"] for cell in cells[:2]] == [[text], ["b"]]
    assert to_config(cells[0]).model.revision == text


@pytest.mark.parametrize("style", ["{}", "'{}'", '"{}"'])
@pytest.mark.parametrize("method", text_keys())
def test_a_yaml_keeps_its_characters_quoted_or_not(method, style, tmp_path):
    keys = text_keys()[method]
    options: dict[str, dict[str, object]] = {}
    expected = {}
    for number, (key, kind) in enumerate(keys.items()):
        texts = texts_for(kind, OF_YAML)
        group, _, name = key.rpartition(".")
        text = texts[number % len(texts)]
        lines = options.setdefault(group or "mine", {})
        expected[key] = [text, "b"] if is_list(kind) else text
        lines[name] = f"[{style.format(text)}, b]" if is_list(kind) else style.format(text)
    argv = ["--config-dir", str(tmp_path)]
    for group, lines in options.items():
        own = {} if group == "mine" else {"name": method if group == "method" else "lm_eval"}
        package = ["# @package _global_"] if group == "mine" else []
        text = "\n".join(
            [*package, *(f"{key}: {value}" for key, value in {**own, **lines}.items())]
        )
        (tmp_path / group).mkdir()
        (tmp_path / group / "my_option.yaml").write_text(text + "\n")
        argv.append(f"+{group}=my_option" if group == "mine" else f"{group}=my_option")
    [cell] = compose_or_explain(argv)
    for key, value in expected.items():
        assert value_of(cell.values, key) == value, key


def test_the_text_of_a_policys_function_keeps_its_characters(tmp_path):
    file = tmp_path / "idea.py"
    file.write_text("def f(router, routing, tag='a', scale=1.0):\n    return routing\n")
    policy = ["method=policy", f"method.policy={file}:f"]
    [cell] = compose_or_explain([*policy, "method.tag=5e2", "method.scale=5e2"])
    method = to_config(cell).method
    assert (method.tag, method.scale) == ("5e2", 500.0)
    (tmp_path / "method").mkdir()
    text = f"name: policy\npolicy: {file}:f\ntag: 1.10\nscale: 5e2\n"
    (tmp_path / "method" / "mine.yaml").write_text(text)
    [cell] = compose_or_explain(["--config-dir", str(tmp_path), "method=mine"])
    method = to_config(cell).method
    assert (method.tag, method.scale) == ("1.10", 500.0)


def test_a_recipe_keeps_its_characters():
    [cell] = compose_or_explain(
        ["model=toy-rules", "model.recipe.dataset=5e2", "model.recipe.steps=5"]
    )
    recipe = cell.values["model"]["recipe"]
    assert (recipe["dataset"], recipe["steps"]) == ("5e2", 5)


def test_numbers_stay_numbers():
    [cell] = compose_or_explain(
        ["method.temperature=1e-1", "limit=0.50", "batch_size=8", "seed=1_0"]
    )
    assert cell.values["method"]["temperature"] == 0.1
    assert (cell.values["limit"], cell.values["batch_size"], cell.values["seed"]) == (0.5, 8, 10)


def test_python_keeps_its_characters(monkeypatch, tmp_path):
    runs = install(monkeypatch, FakeRuns())
    monkeypatch.chdir(tmp_path)
    moe_lab.run(["model.revision=12345e7"], output_dir="5e2", system_instruction="1.10", quiet=True)
    [config] = {repr(asked): asked for asked in runs.asked}.values()
    assert (config.model.revision, config.output_dir) == ("12345e7", "5e2")
    assert config.system_instruction == "1.10"
    assert [path.name for path in Path().iterdir()] == ["5e2"]
