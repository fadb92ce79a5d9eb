"""The files of `conf/` and `experiments/`, commented, composable and in step with the typed schema, and the values it takes.

Broken by: a key without a comment, an option that does not compose, a key that the schema does not have, a cell of one paper
on another one's checkpoint of OLMoE.
"""

import dataclasses
import re
from itertools import zip_longest

import pytest
import yaml

from moe_lab.cli.help import GROUPS
from moe_lab.config.catalog import about, option_files, resource_folder
from moe_lab.config.compose import compose, compose_cell
from moe_lab.config.overrides import quote
from moe_lab.config.schema import KEYS, Config, TaskConfig
from moe_lab.config.validators import build, coerce
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method, method_names
from moe_lab.reports.papers.experiment import LOADER
from moe_lab.runs.config import to_config

CONF = resource_folder("conf")
FILES = sorted([*CONF.rglob("*.yaml"), *resource_folder("experiments").rglob("*.yaml")])
OPTIONS = [
    " ".join(filter(None, options))
    for options in zip_longest(
        *([f"{group}={name}" for name in option_files(group, [CONF])] for group in GROUPS if group != "task")
    )
]
"""Options of different groups, composed together: Hydra takes as long for five as for one."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_is_short_and_a_comment_stands_above_every_key(file):
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert about(file), "the first comment is the option's line in --help"
    for number, line in enumerate(lines):
        if re.match(r"\s*(- )?[\w]+:( |$)", line) and not line.strip().startswith("- "):
            assert lines[number - 1].strip().startswith("#"), f"{file}, line {number + 1}: {line}"
    values = yaml.load(text, Loader=LOADER)
    keys = len(values) + sum(len(each) for each in values.values() if isinstance(each, dict))
    assert file.parent == CONF or len(lines) <= max(40, 2 * keys + 1), "a comment and a line for each key"


def unchanged(router, routing):
    """A policy."""
    return routing


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_composes(options):
    policy = f"method.policy={__file__}:unchanged"
    [cell] = compose([*options.split(), *([policy] if "method=policy" in options else [])])
    config = to_config(cell)
    assert all(
        getattr(config, group).name == name for group, name in (each.split("=") for each in options.split())
    )
    own = get_method(config.method.name).Config
    assert "policy" in options or config.method == own(name=config.method.name), "the defaults in Python"


@pytest.mark.parametrize("name", option_files("task", [CONF]))
def test_a_tasks_yaml_has_keys_of_the_schema(name):
    values = yaml.load((CONF / "task" / f"{name}.yaml").read_text(encoding="utf-8"), Loader=LOADER)
    build(TaskConfig, values | ({"name": "piqa"} if name == "lm_eval" else {}), "task.")


@pytest.mark.parametrize("name", option_files("method", [CONF]))
def test_a_methods_yaml_has_the_keys_of_its_config(name):
    keys = set(yaml.safe_load((CONF / "method" / f"{name}.yaml").read_text(encoding="utf-8")))
    assert keys == {field.name for field in dataclasses.fields(get_method(name).Config)}


def test_config_yaml_has_every_top_level_key_with_the_schemas_default():
    values = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    defaults = {key: values[key] for key in values if key not in ("defaults", "hydra")}
    assert sorted([*defaults, *GROUPS]) == sorted(KEYS)
    typed = {field.name: field.default for field in dataclasses.fields(Config)}
    assert defaults == {key: typed[key] for key in defaults}
    assert set(option_files("method", [CONF])) == set(method_names())


def config_of(*overrides: str) -> Config:
    return to_config(compose_cell(list(overrides), []))


def test_a_model_given_by_path_is_named_after_its_last_part():
    assert config_of("model.path=/some/where/my model").model.name == "my model"
    assert config_of("model.path=allenai/OLMoE").model.name == "OLMoE"
    assert config_of("model.path=allenai/OLMoE", "model.name=mine").model.name == "mine"
    assert config_of("model=olmoe").model.name == "olmoe"


def test_usual_values_need_no_quotes_and_are_recorded():
    assert config_of("experiment=roe/figure3,c3po/table1").experiment == "roe/figure3,c3po/table1"
    sampled = {"temperature": 0.7, "do_sample": True}
    assert config_of("gen_kwargs=temperature=0.7,do_sample=true").gen_kwargs == sampled
    assert config_of("gen_kwargs={temperature: 0.7}").gen_kwargs == {"temperature": 0.7}
    assert config_of("task=lm_eval", "task.name=[piqa,sciq]").task.name == ["piqa", "sciq"]
    assert config_of("data_dir=../shared/data").data_dir == "../shared/data"
    assert config_of("task.metric=exact_match,none").task.metric == "exact_match,none"
    assert config_of("limit=50").limit == 50
    assert config_of("limit=0.5").limit == 0.5
    assert config_of("batch_size=8").batch_size == 8
    assert config_of("model=tiny", "model.revision=main").model.revision == "main"
    assert config_of("task=toy_math", "task.fewshot_split=train").task.fewshot_split == "train"
    assert config_of("system_instruction=Grüße (kurz)").system_instruction == "Grüße (kurz)"
    assert config_of("seed=3", "limit=5").overrides == ["seed=3", "limit=5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/tmp/ü x/ö", "/a (b)/c=d", "it's here/ä", "模型/x", "C:/a b", "~/x#1;2", "/plain/a-b_c.d"]
)
def test_paths_need_no_quotes(path):
    for key in ("output_dir", "data_dir"):
        assert getattr(config_of(f"{key}={path}"), key) == path
    assert config_of(f"model.path={path}").model.path == path
    (cell,) = compose([f"model.tokenizer={path}"])
    assert to_config(cell).model.tokenizer == path
    again = to_config(compose_cell(cell.overrides, []))
    assert again.model.tokenizer == path, "recorded overrides can be given again"


def test_paths_that_are_quoted_or_for_hydra_stay_as_they_are():
    assert config_of("output_dir='/tmp/ü, x'").output_dir == "/tmp/ü, x"
    assert config_of("output_dir=${device}/ü x".replace("ü", "u")).output_dir == "auto/u x"
    cells = compose(["-m", "model.path=/a b/ü,/c"])
    assert [to_config(cell).model.path for cell in cells] == ["/a b/ü", "/c"]
    assert config_of("method=finetune-freeze", "method.dataset=/a b/ü").method.dataset == "/a b/ü"
    assert config_of("method.temperature=/a (b)/x.yaml").method.temperature == "/a (b)/x.yaml"
    assert quote("method.n= 4, 8") == "method.n=4,8"
    assert quote("method.layers=[1,2]") == "method.layers=[1,2]"


def test_a_config_dir_adds_options_and_experiments_see_it(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# mine\nname: mine\npath: my/model\n")
    (cell,) = compose(["--config-dir", str(tmp_path), "model=mine"])
    assert to_config(cell).model.path == "my/model"
    again = to_config(compose_cell(["model=mine"], cell.config_dirs))
    assert (again.model.path, again.config_dirs) == ("my/model", [str(tmp_path)])


@pytest.mark.parametrize(
    "value, annotation, expected",
    [
        (1, float, 1.0),
        (7, str, "7"),
        (None, int | None, None),
        ([1, 2], list[float], [1.0, 2.0]),
        (3, int | float, 3),
    ],
)
def test_values_are_taken_as_their_annotation_wants(value, annotation, expected):
    result = coerce(value, annotation, "key")
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(
    "value, annotation", [(True, int), (1.5, int), (None, int), ("1x", int), ([1, "a"], list[int])]
)
def test_other_types_are_refused(value, annotation):
    with pytest.raises(ConfigError, match="expected an integer"):
        coerce(value, annotation, "key")


# The checkpoint of OLMoE that the cells of each paper take

OF_PAPER = {
    "roe": ("olmoe", "OLMoE-1B-7B-0924-Instruct"),
    "moe_bench": ("olmoe-base", "OLMoE-1B-7B-0924"),
    "c3po": ("olmoe-0125-instruct", "OLMoE-1B-7B-0125-Instruct"),
}
"""Folder of experiments -> option, repository of allenai."""


def options_in(text: str) -> set[str]:
    text = re.sub(r"method\.backbone: \[.*?\]", "", text)  # an architecture, which bears the model's name
    return set(re.findall(r"(?<![\w/-])olmoe(?:-[a-z0-9]+)*(?![\w-])", text))


@pytest.mark.parametrize("paper", OF_PAPER)
def test_every_cell_takes_its_papers_checkpoint(paper):
    option, repository = OF_PAPER[paper]
    named = 0
    for file in sorted((resource_folder("experiments") / paper).glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        assert options_in(text) <= {option}, file
        if options_in(text) and f"{paper}/{file.stem}" != "roe/table1":
            assert re.search(rf"{repository}(?![\w-])", yaml.safe_load(text)["source"]), file
            named += 1
    assert named > 5


@pytest.mark.parametrize("option, repository", OF_PAPER.values())
def test_options_name_their_repositories(option, repository):
    conf = yaml.safe_load((resource_folder("conf") / "model" / f"{option}.yaml").read_text(encoding="utf-8"))
    assert (conf["name"], conf["path"]) == (option, f"allenai/{repository}")
