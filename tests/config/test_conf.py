"""The files of `conf/` and `experiments/`, and how overrides are composed.

Each file is commented, composes, and is in step with the typed schema and its values.

Broken by: a key without a comment, an option that does not compose, a key that the schema does not
have, a cell of one paper on another one's checkpoint of OLMoE; a cell that differs from what Hydra
composes of its overrides, composing that changes what other threads read, an option of an installed
plug-in that is not found.
"""

import dataclasses
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import hydra
import pytest
import yaml
from hydra import initialize_config_dir
from hydra.errors import HydraException, MissingConfigException

import moe_lab
from moe_lab.cli.help import GROUPS
from moe_lab.config import cells as cells_module
from moe_lab.config.catalog import about, option_files, plugin_folders, resource_folder
from moe_lab.config.compose import compose, compose_cell
from moe_lab.config.hydra_source import Source
from moe_lab.config.overrides import quote
from moe_lab.config.schema import KEYS, Config, DistributedConfig, TaskConfig
from moe_lab.config.validators import build, coerce
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method, method_names
from moe_lab.reports.papers.experiment import LOADER, find_experiments
from moe_lab.runs.config import compose_or_explain, to_config
from moe_lab.runs.experiments.composing import compose_experiments
from tests.support.tiers import first_fast

CONF = resource_folder("conf")
EXAMPLES = CONF.parent / "examples" / "extending"
FILES = sorted(CONF.rglob("*.yaml"))
for group in ("model", "task", "method"):
    FILES += sorted(EXAMPLES.rglob(f"conf/{group}/*.yaml"))
EXPERIMENTS = sorted(resource_folder("experiments").rglob("*.yaml"))
EXPERIMENTS += sorted(EXAMPLES.rglob("conf/experiments/*.yaml"))


def options_together() -> list[str]:
    """Every option of every group but task; the first of each group together, and so on.

    Hydra takes as long for five options of different groups as for one.
    """
    by_group = []
    for group in GROUPS:
        if group != "task":
            by_group.append([f"{group}={name}" for name in option_files(group, [CONF])])
    together = []
    for options in zip_longest(*by_group):
        together.append(" ".join(option for option in options if option is not None))
    return together


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_is_short_and_a_comment_stands_above_every_key(file):
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert about(file), "the first comment is the option's line in --help"
    for number, line in enumerate(lines):
        if re.match(r"\s*(- )?[\w]+:( |$)", line) and not line.strip().startswith("- "):
            assert lines[number - 1].strip().startswith("#"), f"{file}, line {number + 1}: {line}"
    if file.parent == CONF:
        return
    values = yaml.load(text, Loader=LOADER)
    keys = len(values)
    for value in values.values():
        if isinstance(value, dict):
            keys += len(value)
    assert len(lines) <= max(40, 2 * keys + 1), "a comment and a line for each key"


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_an_experiment_says_what_it_is_and_what_each_scale_stands_for(file):
    """Its keys are explained in docs/extending.md."""
    assert about(file), "the first comment is its line in --help"
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.match(r"  (tiny|small|paper):( |$)", line):
            assert lines[number - 1].strip().startswith("#"), f"{file}, line {number + 1}: {line}"


def unchanged(router, routing):
    """A policy."""
    return routing


@pytest.mark.parametrize("options", options_together())
def test_every_option_composes(options):
    overrides = options.split()
    is_policy = "method=policy" in overrides
    if is_policy:
        overrides.append(f"method.policy={__file__}:unchanged")
    [cell] = compose(overrides)
    config = to_config(cell)
    for option in options.split():
        group, name = option.split("=")
        assert getattr(config, group).name == name
    if not is_policy:
        name = config.method.name
        defaults_in_python = get_method(name).Config(name=name)
        assert config.method == defaults_in_python


@pytest.mark.parametrize("name", option_files("task", [CONF]))
def test_a_tasks_yaml_has_keys_of_the_schema(name):
    values = yaml.load((CONF / "task" / f"{name}.yaml").read_text(encoding="utf-8"), Loader=LOADER)
    if name == "lm_eval":
        values["name"] = "piqa"
    build(TaskConfig, values, "task.")


@pytest.mark.parametrize("name", option_files("method", [CONF]))
def test_a_methods_yaml_has_the_keys_of_its_config(name):
    keys = set(yaml.safe_load((CONF / "method" / f"{name}.yaml").read_text(encoding="utf-8")))
    assert keys == {field.name for field in dataclasses.fields(get_method(name).Config)}


def test_config_yaml_has_every_top_level_key_with_the_schemas_default():
    values = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    defaults = {key: values[key] for key in values if key not in ("defaults", "hydra")}
    assert sorted([*defaults, *GROUPS]) == sorted(KEYS)
    typed = {field.name: field.default for field in dataclasses.fields(Config)}
    typed["distributed"] = dataclasses.asdict(DistributedConfig())
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
    "path",
    [
        "/tmp/ü x/ö",
        "/a (b)/c=d",
        "it's here/ä",
        "模型/x",
        "C:/a b",
        "~/x#1;2",
        "/plain/a-b_c.d",
    ],
)
def test_paths_need_no_quotes(path):
    home = os.path.expanduser
    for key in ("output_dir", "data_dir"):
        assert getattr(config_of(f"{key}={path}"), key) == home(path)
    assert config_of(f"model.path={path}").model.path == home(path)
    (cell,) = compose([f"model.tokenizer={path}"])
    assert to_config(cell).model.tokenizer == home(path)
    again = to_config(compose_cell(cell.overrides, []))
    assert again.model.tokenizer == home(path), "recorded overrides can be given again"


def test_paths_that_are_quoted_or_for_hydra_stay_as_they_are():
    assert config_of("output_dir='/tmp/ü, x'").output_dir == "/tmp/ü, x"
    assert config_of("output_dir=${device}/u x").output_dir == "auto/u x"
    cells = compose(["-m", "model.path=/a b/ü,/c"])
    assert [to_config(cell).model.path for cell in cells] == ["/a b/ü", "/c"]
    assert config_of("method=finetune-freeze", "method.dataset=/a b/ü").method.dataset == "/a b/ü"
    assert config_of("method.temperature=/a (b)/x.yaml").method.temperature == "/a (b)/x.yaml"
    assert quote("method.n= 4, 8") == "method.n=4,8"
    assert quote("method.layers=[1,2]") == "method.layers=[1,2]"


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
    assert result == expected
    assert type(result) is type(expected)


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
    # an architecture, which bears the model's name
    text = re.sub(r"method\.backbone: \[.*?\]", "", text)
    return set(re.findall(r"(?<![\w/-])olmoe(?:-[a-z0-9]+)*(?![\w-])", text))


@pytest.mark.parametrize("paper", OF_PAPER)
def test_every_cell_takes_its_papers_checkpoint(paper):
    option, repository = OF_PAPER[paper]
    conf = yaml.safe_load((CONF / "model" / f"{option}.yaml").read_text(encoding="utf-8"))
    assert conf["name"] == option
    assert conf["path"] == f"allenai/{repository}"
    named = 0
    for file in sorted((resource_folder("experiments") / paper).glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        assert options_in(text) <= {option}, file
        if options_in(text) and f"{paper}/{file.stem}" != "roe/table1":
            assert re.search(rf"{repository}(?![\w-])", yaml.safe_load(text)["source"]), file
            named += 1
    assert named > 5


def cells_at_paper_scale(name: str) -> list[dict]:
    base = compose_cell([f"experiment={name}", "scale=paper"], [])
    [composed] = compose_experiments(to_config(base), base)
    return [cell.values for cell, _ in composed.cells]


def test_figure_5_of_roe_tunes_all_layers():
    """Section 3.4 of the paper: "across all layers"."""
    cells = cells_at_paper_scale("roe/figure5")
    assert {cell["method"]["skip_layers"] for cell in cells} == {0}


def test_fine_tuning_at_paper_scale_keeps_its_moments_in_float32():
    """MoE-Bench's appendix B.4 names bf16 and ZeRO-3, and no optimizer with other roundings."""
    for name in ("table4", "table9", "figure6", "c2r_finetuning"):
        methods = [cell["method"] for cell in cells_at_paper_scale(f"moe_bench/{name}")]
        optimizers = set()
        for method in methods:
            if method["name"] == "finetune-freeze":
                optimizers.add(method["optimizer"])
        assert optimizers == {"adamw_torch"}, name


# Composing


OVERRIDES = [
    [],
    ["seed=3", "model=olmoe", "limit=5", "task=gsm8k", "method.n=4"],
    ["method=c3po", "method.layers=[1,2]", "gen_kwargs={temperature: 0.5}", "task.metric=acc,none"],
    ["system_instruction=${oc.env:HOME}", "output_dir=${device}/x", "logger.tags=['a,b',c]"],
    ["+method.phases=2", "model.recipe={dataset: toy, tokens: 5}", "model.path=/a b/c"],
    ["model=olmoe", "model=mixtral", "seed=1", "seed=2"],
    ["task=mmlu", "task.metric=null", "model.path=${oc.env:HOME}", "method.n=4", "method=roe"],
    ["+method.more={a: 1}", "hydra.searchpath=[]", "tuning=tpe"],
    ["launcher=ray", "launcher.parameters={num_gpus: 1, resources: {a.b: 2}}", "seed=3"],
    ["launcher=ray", "launcher.parameters.num_cpus=8", "launcher.parameters={num_gpus: 1}"],
    ["method=finetune-freeze", "method.trainer.optim_args=a=1", "method.trainer.accelerator.x=1"],
]


def by_hydra(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> cells_module.Cell:
    with monkeypatch.context() as patch:
        patch.setattr(cells_module, "_put_together", lambda source, parsed: None)
        return compose_cell(overrides, [])


@pytest.mark.parametrize("overrides", first_fast(OVERRIDES, 3), ids=" ".join)
def test_a_cell_is_what_hydra_composes(overrides, monkeypatch):
    expected = by_hydra(overrides, monkeypatch)
    assert compose_cell(overrides, []) == expected
    cells_module._with_option.cache_clear()
    for command in ("first", "second"):
        assert compose(overrides) == [expected], f"the {command} command of a process"


@pytest.mark.slow
def test_the_cells_of_all_experiments_are_what_hydra_composes(monkeypatch):
    distinct_cells = set()
    for experiment in find_experiments("all", []):
        for scale in experiment.scales.values():
            distinct_cells.update(tuple(cell) for cell in scale.overrides())
    for cell in sorted(distinct_cells)[::60]:
        overrides = list(cell)
        assert compose_cell(overrides, []) == by_hydra(overrides, monkeypatch), cell


def test_an_option_that_includes_another_is_composed_by_hydra(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("defaults: [gsm8k, _self_]\nmetric: acc,none\n")
    cell = compose_cell(["task=mine", "seed=2"], [str(tmp_path)])
    assert cell.values["task"]["name"] == "gsm8k"
    assert cell.values["task"]["metric"] == "acc,none"


@pytest.mark.parametrize("overrides", [["method.nn=3"], ["seed=1,2"], ["task=gsm"], ["seed={a: 1"]])
def test_errors_are_hydras(overrides, monkeypatch):
    with pytest.raises(Exception) as expected:
        by_hydra(overrides, monkeypatch)
    with pytest.raises(type(expected.value)) as raised:
        compose_cell(overrides, [])
    assert str(raised.value) == str(expected.value)
    with pytest.raises(type(expected.value)) as raised:
        compose(overrides)
    assert str(raised.value) == str(expected.value)


def test_hydra_composes_the_defaults_and_each_option_once(monkeypatch):
    """A paper's tables have thousands of cells, and Hydra takes a tenth of a second for each."""
    loaded: list[list[str]] = []
    load = Source.load

    def record(self: Source, names: list[str]):
        loaded.append(names)
        return load(self, names)

    cells_module._with_option.cache_clear()
    monkeypatch.setattr(Source, "load", record)
    for model in ("olmoe", "mixtral"):
        for seed in range(5):
            overrides = [f"model={model}", "task=gsm8k", f"seed={seed}", "method.n=2", "model=tiny"]
            compose_cell(overrides, [])
    assert loaded == [[], ["model=tiny"], ["task=gsm8k"]]


def test_a_config_dir_adds_options_which_are_read_again_where_they_changed_since_the_last_command(
    tmp_path,
):
    (tmp_path / "model").mkdir()
    for path in ("one", "two"):
        (tmp_path / "model" / "mine.yaml").write_text(f"name: mine\npath: {path}\n")
        grid = compose(["--config-dir", str(tmp_path), "-m", "model=mine", "seed=1,2"])
        assert [cell.values["model"]["path"] for cell in grid] == [path, path]
    # experiments see it, too
    config = to_config(compose_cell(["model=mine"], grid[0].config_dirs))
    assert config.model.path == "two"
    assert config.config_dirs == [str(tmp_path)]


def test_threads_compose_at_once_and_touch_neither_argv_nor_the_environment(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("the environment and the working folder are shared with other threads")

    def seeds_of_grid(seed: int) -> list[int]:
        cells = compose(["-m", f"seed={seed},7", "model=tiny"])
        return [cell.values["seed"] for cell in cells]

    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(sys, "argv", ("notebook",))
        for name in ("putenv", "unsetenv", "chdir"):
            patch.setattr(os, name, refuse)
        seeds = list(pool.map(seeds_of_grid, range(3)))
        assert sys.argv == ("notebook",)
    assert seeds == [[0, 7], [1, 7], [2, 7]]


@pytest.fixture
def config_dir(tmp_path):
    """The option for a folder with a group `experiment`."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "quick.yaml").write_text(
        "# @package _global_\nlimit: 2\nmethod: {n: 4}\n"
    )
    return ["--config-dir", str(tmp_path)]


def test_an_added_group_is_hydras_and_overrides_apply(config_dir):
    [cell] = compose([*config_dir, "+experiment=quick", "method.n=8"])
    assert cell.values["method"]["n"] == 8
    assert cell.values["limit"] == 2
    assert cell.method_keys == []
    with pytest.raises(HydraException, match="nonsense"):
        compose([*config_dir, "+experiment=quick", "method.nonsense=8"])


def test_the_cells_of_a_grid_are_in_order():
    cells = compose(["-m", "method=choice(base,icl)", "seed=0,1"])
    assert [cell.values["method"]["name"] for cell in cells] == ["base", "base", "icl", "icl"]
    assert [cell.overrides for cell in cells] == [
        ["method=base", "seed=0"],
        ["method=base", "seed=1"],
        ["method=icl", "seed=0"],
        ["method=icl", "seed=1"],
    ]
    cells = compose(["-m", "method=choice(c3po, icl)", "method.k=5"])
    methods = [cell.values["method"] for cell in cells]
    assert [(method["name"], method["k"]) for method in methods] == [("c3po", 5), ("icl", 5)]


def test_hydra_in_a_script_of_ones_own_composes_the_same():
    with initialize_config_dir(moe_lab.conf_dir, version_base="1.3"):
        config = hydra.compose("config", ["method=c3po", "method.k=5", "model.revision=main"])
    [cell] = compose(["method=c3po", "method.k=5", "model.revision=main"])
    assert {key: config[key] for key in cell.values} == cell.values


# Options of an installed plug-in, found without --config-dir and without importing it


def install(folder: Path) -> None:
    """A package with an option, registered as pip registers it."""
    options = folder / "warmer" / "conf" / "method"
    options.mkdir(parents=True)
    (folder / "warmer" / "__init__.py").write_text("raise ImportError\n")
    (options / "warmer.yaml").write_text("# Warmer.\nname: warmer\ndegrees: 3\n")
    about = folder / "warmer-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: warmer\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[moe_lab.methods]\nwarmer = warmer:Warmer\n")


def test_an_installed_option_is_composed(tmp_path, monkeypatch):
    assert plugin_folders() == []
    with pytest.raises(MissingConfigException):
        compose(["method=warmer"])
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert plugin_folders() == [tmp_path / "warmer" / "conf"]
    (cell,) = compose(["method=warmer", "method.degrees=4"])
    assert cell.values["method"] == {"name": "warmer", "degrees": 4}
    assert cell.config_dirs == []
    assert compose_cell(["method=warmer"], []).values["method"]["degrees"] == 3
    assert compose_cell(["method=warmer"], [str(tmp_path)]).values["method"]["degrees"] == 3
    typed = ["method=roe", "method.temperature=1e-2", "model.revision=5e2"]
    [cell] = compose_or_explain(typed)
    assert cell.values["method"]["temperature"] == 0.01, "a plug-in that is broken is left alone"
    assert "warmer" not in sys.modules
