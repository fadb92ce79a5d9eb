"""From an experiment to its figure, and the latency and memory of Figure 5: exactly so many tokens,
settings in turns, and a stored measurement that is used again.

Broken by a study drawn twice, a size whose interval is upside down, presets that leave the paper's
Table 1, a report that measures, an end token that ends a measurement early, settings timed one
after the other, a key that leaves out what matters.
"""

import math
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.reports.loggers import Logger
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import find_experiments
from moe_lab.reports.papers.figure_kinds import FIGURES
from moe_lab.results.family import NO_COMPARISONS
from moe_lab.results.locks import acquire
from moe_lab.runs.experiments import equivalent, measurement, runner, timing
from moe_lab.runs.experiments.figure import make_figure
from moe_lab.runs.experiments.larger_model import non_embedding_parameters, of_depth
from moe_lab.runs.experiments.settings_rows import setup_rows
from moe_lab.runs.experiments.timing import TimedGeneration, measure_in_turns
from tests.support.command import run_command
from tests.support.runs import config
from tests.support.stored_results import results_of
from tests.support.stored_studies import write_study
from tests.support.stored_traces import traced_run


def cell_of(study: Path | None = None, **changes: Any) -> TableCell:
    config = Config(method=get_method("roe").Config())
    results = [results_of(**changes)] if changes else []
    studies = [study] if study else []
    return TableCell(coordinates={}, run_id="r", results=results, studies=studies, config=config)


def test_every_kind_of_figure_can_be_drawn():
    for kind, (_, module) in FIGURES.items():
        assert callable(getattr(import_module(f"moe_lab.reports.figures.{module}"), f"draw_{kind}"))


@pytest.mark.parametrize("name", ["roe/figure7", "roe/figure10", "c3po/figure6"])
def test_an_experiment_leaves_a_picture_beside_its_table(name, tmp_path):
    study = write_study(tmp_path / "a", [2.0, 1.0], temperature=[0.0, 0.1, 0.0], skip_layers=1)
    cell = replace(cell_of(study), results=[traced_run(tmp_path / "b", ["BA"])])
    experiment = find_experiments(name)[0]
    folder = tmp_path / "tables"
    paths = make_figure(experiment, "tiny", [cell], ModelPool(), folder, NO_COMPARISONS)
    stem = f"{name.replace('/', '-')}-tiny-{experiment.figure}"
    assert [path.name for path in paths] == [f"{stem}.png", f"{stem}.csv"]
    assert make_figure(experiment, "tiny", [cell_of()], ModelPool(), tmp_path, NO_COMPARISONS) == []


PERPLEXITY = {
    "task": {"name": "t", "tasks": ["t"], "metric": "acc,none"},
    "value": 9.0,
    "baseline": {"run_id": "b", "results": {"t": {"acc,none": 10.0}}},
    "paired": {
        "t": {"acc,none": {"n": 4, "difference": -1.0, "ci95": [-1.5, 0.5], "p_mcnemar": None}}
    },
    "roe": {"n": 8, "temperatures": [0.0, 0.2], "cache": "clean"},
}
MEASURED = {"seconds": 1.28, "memory_bytes": 2**21}
STORED = {
    "non_embedding_parameters": 100,
    "equivalent_non_embedding_parameters": 150,
    "layers": 4,
    "equivalent_layers": 6,
    "new_tokens": 128,
    "repetitions": 5,
    "device": "cpu",
    **dict.fromkeys(("base", "roe", "equivalent"), MEASURED),
}


def test_equivalent_size_follows_the_loss_and_its_interval(monkeypatch):
    requests: list[Any] = []

    def cost_measurement(
        config: Config, models: ModelPool, ratio: float, *, compute: bool
    ) -> dict[str, Any]:
        requests.append(
            (config.method.n, config.method.temperature, config.batch_size, ratio, compute)
        )
        return STORED

    monkeypatch.setattr(equivalent, "cost_measurement", cost_measurement)
    (row,) = equivalent.equivalent_rows([cell_of(**PERPLEXITY), cell_of()], ModelPool())
    expected = [(math.log(10) / math.log(value)) ** (1 / 0.076) for value in (9.0, 10.5, 8.5)]
    ratios = [row[f"size_ratio{which}"] for which in ("", "_low", "_high")]
    assert ratios == pytest.approx(expected)
    assert row["size_ratio_low"] < 1 < row["size_ratio"] < row["size_ratio_high"]
    assert row["calibrated_size_ratio"] is None
    assert requests == [(8, [0.0, 0.2], 1, row["size_ratio"], True)]
    assert (row["roe_milliseconds_per_token"], row["roe_mebibytes"]) == (10.0, 2.0)

    def nothing_stored(*_: Any, compute: bool) -> Any:
        if compute:
            return STORED
        return None

    monkeypatch.setattr(equivalent, "cost_measurement", nothing_stored)
    assert equivalent.equivalent_rows([cell_of(**PERPLEXITY)], ModelPool(), compute=False) == []
    compared = {"calibration": {"run_id": "c", "results": {"t": {"acc,none": 9.5}}}}
    (row,) = equivalent.equivalent_rows([cell_of(**PERPLEXITY, compared=compared)], ModelPool())
    assert row["calibrated_perplexity"] == 9.5
    assert row["calibrated_size_ratio"] == pytest.approx(
        (math.log(10) / math.log(9.5)) ** (1 / 0.076)
    )


def test_presets_are_the_papers_table_1(tmp_path):
    experiment = find_experiments("roe/table1")[0]
    rows = setup_rows(experiment)
    # of 3 categories: 3 settings for all models, and 4 for each of 3 models
    assert len(rows) == 3 * (3 + 3 * 4)
    for row in rows:
        assert row["value"] == row["published"], row
    markdown, table = make_figure(experiment, "paper", [], ModelPool(), tmp_path, NO_COMPARISONS)
    lines = markdown.read_text().splitlines()
    assert "| math | mixtral | max_temperature | 0.25 | 0.25 | Table 1 |" in lines
    assert "| commonsense | all | metric | accuracy | accuracy | Table 1 |" in lines
    assert table.exists()


def test_a_logger_gets_numbers_and_pictures_only(monkeypatch, capsys, tmp_path):
    """Broken by a Markdown table that is logged as a picture, which ends the logging."""
    logged: list[Path] = []

    class Seen(Logger):
        def log_figure(self, path: Path) -> None:
            logged.append(path)

    monkeypatch.setattr(runner, "open_logger", lambda config, **names: nullcontext(Seen()))
    for mode in ("run", "report"):  # it needs no runs
        ended = run_command(
            capsys, "experiment=roe/table1", f"mode={mode}", f"output_dir={tmp_path}"
        )
        assert ended.code == 0
        assert "roe-table1-tiny.md" in ended.out
    assert [path.name for path in logged] == ["roe-table1-tiny.csv"] * 2


# Equation 1.1 of the scaling law


def test_the_ratio_is_that_of_two_sizes():
    # equation 1.1, solved for N
    sizes = [8.8e13 * loss ** (-1 / equivalent.ALPHA_N) for loss in (2.0, 2.5)]
    assert equivalent.size_ratio(2.0, 2.5) == pytest.approx(sizes[0] / sizes[1])
    assert equivalent.size_ratio(2.5, 2.5) == 1.0
    assert equivalent.size_ratio(2.6, 2.5) < 1 < equivalent.size_ratio(2.4, 2.5), (
        "less loss: a larger model"
    )
    # 10 ** -0.076 = 0.8395: Kaplan et al. (2020), section 1.2, as a power law in N
    assert equivalent.size_ratio(0.8394600, 1.0) == pytest.approx(10, rel=1e-4)
    # OLMoE-7B as good as a 10.5B model (section 3.4)
    assert equivalent.size_ratio(0.97, 1.0) == pytest.approx(10.5 / 7, rel=0.01)


# Latency and memory


@pytest.fixture
def roe(tiny_olmoe_dir: Path, tmp_path: Path) -> Config:
    keys = {"n": 3, "temperature": 0.2}
    return config(
        tiny_olmoe_dir, tmp_path, tmp_path, "toy_math", "roe", method_keys=keys, batch_size=1
    )


def opened(model, tokenizer, order: list[str], name: str):
    """A setting that notes when it answers."""

    @contextmanager
    def setting():
        lm = EngineLM(model, tokenizer)
        answer = lm.answer

        def noted(*arguments):
            order.append(name)
            return answer(*arguments)

        lm.answer = noted  # type: ignore[method-assign]
        yield lm

    return setting


@pytest.mark.slow
def test_settings_take_turns_and_the_first_round_is_not_counted(olmoe, tokenizer):
    order: list[str] = []
    settings = {name: opened(olmoe, tokenizer, order, name) for name in ("a", "b")}
    measured = measure_in_turns(settings, new_tokens=4, repetitions=2)
    assert order == ["a", "b"] * 3
    size = sum(p.numel() * 4 for p in olmoe.parameters())
    assert size <= measured["a"]["memory_bytes"] < size + 200 * 2**20
    assert measured["a"]["seconds"] > 0


def test_the_warm_up_counts_for_nothing(olmoe, tokenizer, monkeypatch):
    seconds = iter([100.0, 3.0, 1.0, 2.0])

    def generate_once(lm: Any, count: int) -> TimedGeneration:
        duration = next(seconds)
        return TimedGeneration(duration, int(duration) + 5)

    monkeypatch.setattr(timing, "_generate_once", generate_once)
    measured = measure_in_turns({"a": opened(olmoe, tokenizer, [], "a")}, repetitions=3)["a"]
    assert measured == {"seconds": 2.0, "memory_bytes": 8}


def test_an_end_token_does_not_end_a_measurement_and_a_shorter_answer_is_none(
    olmoe, tokenizer, monkeypatch
):
    """Every token of the greedy answer becomes an end token.

    All of them are suppressed, and others are generated.
    """
    monkeypatch.setattr(olmoe.generation_config, "eos_token_id", list(range(200)))
    setting = opened(olmoe, tokenizer, [], "a")
    measure_in_turns({"a": setting}, new_tokens=6, repetitions=1)
    monkeypatch.setattr(EngineLM, "answer", lambda *_: None)
    with pytest.raises(RuntimeError, match="0 tokens were generated instead of 6"):
        measure_in_turns({"a": setting}, new_tokens=6, repetitions=1)


def test_another_depth_is_the_same_architecture(roe):
    loaded = ModelPool().get(roe)
    deeper = of_depth(loaded, 6)
    own_parameters = non_embedding_parameters(loaded.model)
    layer = sum(p.numel() for p in loaded.model.model.layers[0].parameters())
    assert deeper.model.config.num_hidden_layers == 6
    assert loaded.model.config.num_hidden_layers == 4
    assert non_embedding_parameters(deeper.model) == own_parameters + 2 * layer
    everything = sum(p.numel() for p in loaded.model.parameters())
    assert everything - own_parameters == 2 * 300 * 48, "embedding and head are left out"
    heads = [model.model.lm_head.weight for model in (deeper, of_depth(loaded, 6))]
    assert heads[0].equal(heads[1]), "a seed of its own"


@pytest.mark.slow
def test_each_setting_measures_its_own_model(roe, monkeypatch):
    """The larger model is as deep as the ratio says, and is measured alone.

    Base and RoE are the model that was loaded.
    """
    layers: dict[str, int] = {}
    rows: dict[str, int] = {}

    def look(settings):
        for name, opened in settings.items():
            with opened() as lm:
                layers[name] = len(lm.model.model.layers)
                rows[name] = lm.ensemble.n
        return {name: {"seconds": 1.0, "memory_bytes": 1} for name in settings}

    monkeypatch.setattr(measurement, "measure_in_turns", look)
    cost = measurement.cost_measurement(roe, ModelPool(), 2.0)
    assert layers == {"base": 4, "roe": 4, "equivalent": 8}
    assert rows == {
        "base": 1,
        "roe": 3,
        "equivalent": 1,
    }
    assert cost is not None
    assert cost["equivalent_non_embedding_parameters"] > 1.9 * cost["non_embedding_parameters"]


@pytest.mark.slow
def test_a_measurement_is_made_once_and_anew_where_something_else_is_measured(roe, monkeypatch):
    monkeypatch.setattr(measurement, "NEW_TOKENS", 4)
    settings: list[int] = []

    def measure_once(models_by_setting: Any) -> Any:
        settings.append(len(models_by_setting))
        return measure_in_turns(models_by_setting, 4, 1)

    monkeypatch.setattr(measurement, "measure_in_turns", measure_once)
    models = ModelPool()
    assert measurement.cost_measurement(roe, models, 1.5, compute=False) is None
    first = measurement.cost_measurement(roe, models, 1.5)
    assert first is not None
    assert (first["layers"], first["equivalent_layers"]) == (4, 6)
    assert set(first) >= {"base", "roe", "equivalent", "non_embedding_parameters"}
    assert measurement.cost_measurement(roe, models, 1.49, compute=False) == first, "the same depth"
    assert measurement.cost_measurement(roe, models, 2.0, compute=False) is None
    hotter = replace(roe, method=replace(roe.method, temperature=0.4))
    assert measurement.cost_measurement(hotter, models, 1.5, compute=False) is None
    assert settings == [3]
    assert len(list((Path(roe.output_dir) / "measurements").glob("*.json"))) == 1


def test_two_workers_do_not_measure_at_once(roe, monkeypatch):
    """The lock is held while generations are timed, and released after."""
    lock = Path(roe.output_dir) / "measurements" / "timing.lock"
    held: list[bool] = []

    def timed(settings: Mapping[str, object]) -> dict[str, dict]:
        another = acquire(lock)
        held.append(another is None)
        if another is not None:
            another.release()
        return {name: {"seconds": 1.0, "memory_bytes": 1} for name in settings}

    monkeypatch.setattr(measurement, "measure_in_turns", timed)
    assert measurement.cost_measurement(roe, ModelPool(), 1.5) is not None
    assert held == [True]
    free = acquire(lock)
    assert free is not None
    free.release()
