"""Latency and memory: exactly so many tokens, settings in turns, and a stored measurement that is used again.

Broken by an end token that ends a measurement early, by settings timed one after the other, by a key that leaves out
what matters, by a larger model that is the same one.
"""

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.engine.lm import EngineLM
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.results.lock import acquire
from moe_lab.runs.experiments import equivalent
from moe_lab.runs.experiments.equivalent import measure_in_turns, non_embedding_parameters, of_depth


@pytest.fixture
def roe(tiny_olmoe_dir: Path, tmp_path: Path) -> Config:
    method = get_method("roe").Config(n=3, temperature=0.2)
    model = ModelConfig(name="small", path=str(tiny_olmoe_dir))
    return Config(
        model=model, method=method, batch_size=1, output_dir=str(tmp_path), device="cpu", offline=True
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
    found = measure_in_turns(settings, new_tokens=4, repetitions=2)
    assert order == ["a", "b"] * 3
    size = sum(p.numel() * 4 for p in olmoe.parameters())
    assert size <= found["a"]["memory_bytes"] < size + 200 * 2**20
    assert found["a"]["seconds"] > 0


def test_the_warm_up_counts_for_nothing(olmoe, tokenizer, monkeypatch):
    seconds = iter([100.0, 3.0, 1.0, 2.0])
    monkeypatch.setattr(equivalent, "_generate_once", lambda lm, count: (one := next(seconds), one + 5))
    found = measure_in_turns({"a": opened(olmoe, tokenizer, [], "a")}, repetitions=3)["a"]
    assert found == {"seconds": 2.0, "memory_bytes": 8}


def test_an_end_token_does_not_end_a_measurement(olmoe, tokenizer, monkeypatch):
    """Every token of the greedy answer is made an end token: all are suppressed, others are generated."""
    monkeypatch.setattr(olmoe.generation_config, "eos_token_id", list(range(200)))
    measure_in_turns({"a": opened(olmoe, tokenizer, [], "a")}, new_tokens=6, repetitions=1)


def test_a_shorter_answer_is_no_measurement(olmoe, tokenizer):
    @contextmanager
    def stopping():
        lm = EngineLM(olmoe, tokenizer)
        lm.answer = lambda *arguments: None  # type: ignore[method-assign]
        yield lm

    with pytest.raises(RuntimeError, match="0 tokens were generated instead of 6"):
        measure_in_turns({"a": stopping}, new_tokens=6, repetitions=1)


def test_another_depth_is_the_same_architecture(roe):
    loaded = ModelPool().get(roe)
    deeper = of_depth(loaded, 6)
    own = non_embedding_parameters(loaded.model)
    layer = sum(p.numel() for p in loaded.model.model.layers[0].parameters())
    assert deeper.model.config.num_hidden_layers == 6 and loaded.model.config.num_hidden_layers == 4
    assert non_embedding_parameters(deeper.model) == own + 2 * layer
    everything = sum(p.numel() for p in loaded.model.parameters())
    assert everything - own == 2 * 300 * 48, "embedding and head are left out"
    heads = [each.model.lm_head.weight for each in (deeper, of_depth(loaded, 6))]
    assert heads[0].equal(heads[1]), "a seed of its own"


@pytest.mark.slow
def test_each_setting_measures_its_own_model(roe, monkeypatch):
    """The larger model is as deep as the ratio says, and alone: base and RoE are the model that was loaded."""
    layers: dict[str, int] = {}
    rows: dict[str, int] = {}

    def look(settings):
        for name, opened in settings.items():
            with opened() as lm:
                layers[name] = len(lm.model.model.layers)
                rows[name] = lm.ensemble.n
        return {name: {"seconds": 1.0, "memory_bytes": 1} for name in settings}

    monkeypatch.setattr(equivalent, "measure_in_turns", look)
    found = equivalent.measured(roe, ModelPool(), 2.0)
    assert layers == {"base": 4, "roe": 4, "equivalent": 8} and rows == {"base": 1, "roe": 3, "equivalent": 1}
    assert found is not None
    assert found["equivalent_non_embedding_parameters"] > 1.9 * found["non_embedding_parameters"]


@pytest.mark.slow
def test_a_measurement_is_made_once_and_anew_where_something_else_is_measured(roe, monkeypatch):
    monkeypatch.setattr(equivalent, "NEW_TOKENS", 4)
    settings: list[int] = []
    once = lambda each: settings.append(len(each)) or measure_in_turns(each, 4, 1)  # noqa: E731
    monkeypatch.setattr(equivalent, "measure_in_turns", once)
    models = ModelPool()
    assert equivalent.measured(roe, models, 1.5, compute=False) is None
    first = equivalent.measured(roe, models, 1.5)
    assert first is not None and (first["layers"], first["equivalent_layers"]) == (4, 6)
    assert set(first) >= {"base", "roe", "equivalent", "non_embedding_parameters"}
    assert equivalent.measured(roe, models, 1.49, compute=False) == first, "the same depth"
    assert equivalent.measured(roe, models, 2.0, compute=False) is None
    hotter = replace(roe, method=replace(roe.method, temperature=0.4))
    assert equivalent.measured(hotter, models, 1.5, compute=False) is None
    assert settings == [3] and len(list((Path(roe.output_dir) / "measurements").glob("*.json"))) == 1


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

    monkeypatch.setattr(equivalent, "measure_in_turns", timed)
    assert equivalent.measured(roe, ModelPool(), 1.5) is not None
    assert held == [True]
    free = acquire(lock)
    assert free is not None
    free.release()
