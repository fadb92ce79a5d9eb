"""Breaks if a cell differs from what Hydra composes of its overrides, if composing changes what other threads read, or if an
option of an installed plug-in is not found.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hydra
import pytest
from hydra import initialize_config_dir
from hydra.errors import HydraException, MissingConfigException

import moe_lab
from moe_lab.config import compose as module
from moe_lab.config.catalog import plugin_folders
from moe_lab.config.compose import compose, compose_cell
from moe_lab.reports.papers.experiment import find_experiments
from tests.support.tiers import first_fast

OVERRIDES = [
    [],
    ["seed=3", "model=olmoe", "limit=5", "task=gsm8k", "method.n=4"],
    ["method=c3po", "method.layers=[1,2]", "gen_kwargs={temperature: 0.5}", "task.metric=acc,none"],
    ["system_instruction=${oc.env:HOME}", "output_dir=${device}/x", "logger.tags=['a,b',c]"],
    ["+method.phases=2", "model.recipe={dataset: toy, tokens: 5}", "model.path=/a b/c"],
    ["model=olmoe", "model=mixtral", "seed=1", "seed=2"],
    ["task=mmlu", "task.metric=null", "model.path=${oc.env:HOME}", "method.n=4", "method=roe"],
    ["+method.more={a: 1}", "hydra.searchpath=[]", "tuning=tpe"],
]


def by_hydra(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> module.Cell:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_put_together", lambda source, parsed: None)
        return compose_cell(overrides, [])


@pytest.mark.parametrize("overrides", first_fast(OVERRIDES, 3), ids=" ".join)
def test_a_cell_is_what_hydra_composes(overrides, monkeypatch):
    expected = by_hydra(overrides, monkeypatch)
    assert compose_cell(overrides, []) == expected
    module._base.cache_clear()
    assert compose(overrides) == compose(overrides) == [expected], "also the second command of a process"


@pytest.mark.slow
def test_the_cells_of_all_experiments_are_what_hydra_composes(monkeypatch):
    scales = [scale for one in find_experiments("all", []) for scale in one.scales.values()]
    cells = sorted({tuple(cell) for scale in scales for cell in scale.overrides()})[::60]
    for cell in map(list, cells):
        assert compose_cell(cell, []) == by_hydra(cell, monkeypatch), cell


def test_an_option_that_includes_another_is_composed_by_hydra(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("defaults: [gsm8k, _self_]\nmetric: acc,none\n")
    cell = compose_cell(["task=mine", "seed=2"], [str(tmp_path)])
    assert cell.values["task"]["name"] == "gsm8k" and cell.values["task"]["metric"] == "acc,none"


@pytest.mark.parametrize("overrides", [["method.nn=3"], ["seed=1,2"], ["task=gsm"], ["seed={a: 1"]])
def test_errors_are_hydras(overrides, monkeypatch):
    with pytest.raises(Exception) as expected:
        by_hydra(overrides, monkeypatch)
    for composed in (lambda: compose_cell(overrides, []), lambda: compose(overrides)):
        with pytest.raises(type(expected.value)) as raised:
            composed()
        assert str(raised.value) == str(expected.value)


def test_hydra_composes_the_defaults_and_each_option_once(monkeypatch):
    """A paper's tables have thousands of cells, and Hydra takes a tenth of a second for each."""
    loaded: list[list[str]] = []
    load = module._Source.load
    module._base.cache_clear()
    monkeypatch.setattr(
        module._Source, "load", lambda self, options: loaded.append(options) or load(self, options)
    )
    for model in ("olmoe", "mixtral"):
        for seed in range(5):
            compose_cell([f"model={model}", "task=gsm8k", f"seed={seed}", "method.n=2", "model=tiny"], [])
    assert loaded == [[], ["model=tiny"], ["task=gsm8k"]]


def test_an_option_that_changed_since_the_last_command_is_read_again(tmp_path):
    (tmp_path / "model").mkdir()
    for path in ("one", "two"):
        (tmp_path / "model" / "mine.yaml").write_text(f"name: mine\npath: {path}\n")
        grid = compose(["--config-dir", str(tmp_path), "-m", "model=mine", "seed=1,2"])
        assert [cell.values["model"]["path"] for cell in grid] == [path, path]


def test_threads_compose_at_once_and_touch_neither_argv_nor_the_environment(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("the environment and the working folder are shared with other threads")

    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(sys, "argv", ("notebook",))
        for name in ("putenv", "unsetenv", "chdir"):
            patch.setattr(os, name, refuse)
        grids = list(pool.map(lambda seed: compose(["-m", f"seed={seed},7", "model=tiny"]), range(3)))
        assert sys.argv == ("notebook",)
    assert [[cell.values["seed"] for cell in grid] for grid in grids] == [[seed, 7] for seed in range(3)]


@pytest.fixture
def own(tmp_path):
    """A folder with a group `experiment`."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "quick.yaml").write_text("# @package _global_\nlimit: 2\nmethod: {n: 4}\n")
    return ["--config-dir", str(tmp_path)]


def test_an_added_group_is_hydras_and_overrides_apply(own):
    [cell] = compose([*own, "+experiment=quick", "method.n=8"])
    assert cell.values["method"]["n"] == 8 and cell.values["limit"] == 2 and cell.method_keys == []
    with pytest.raises(HydraException, match="nonsense"):
        compose([*own, "+experiment=quick", "method.nonsense=8"])


def test_the_cells_of_a_grid_are_in_order():
    cells = compose(["-m", "method=choice(base,icl)", "seed=0,1"])
    assert [cell.values["method"]["name"] for cell in cells] == ["base", "base", "icl", "icl"]
    assert [" ".join(cell.overrides) for cell in cells] == [
        f"method={method} seed={seed}" for method in ("base", "icl") for seed in (0, 1)
    ]
    cells = compose(["-m", "method=choice(c3po, icl)", "method.k=5"])
    methods = [cell.values["method"] for cell in cells]
    assert [(one["name"], one["k"]) for one in methods] == [("c3po", 5), ("icl", 5)]


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
    assert cell.values["method"] == {"name": "warmer", "degrees": 4} and cell.config_dirs == []
    assert compose_cell(["method=warmer"], []).values["method"]["degrees"] == 3
    assert compose_cell(["method=warmer"], [str(tmp_path)]).values["method"]["degrees"] == 3
    assert "warmer" not in sys.modules
