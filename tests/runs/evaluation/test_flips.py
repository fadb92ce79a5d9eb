"""What is stored of the answers that flip. Broken by a flip that is left out, by another document's routing, by a model
that is loaded for flips that are stored, and by a result that is lost where its flips are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.models.memory import ModelPool
from moe_lab.results.samples import FILE, read_flips, read_samples
from moe_lab.runs.attempts import run_state
from moe_lab.runs.evaluation import flips as module
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from tests.support.runs import config

N = 4


def asked(output, method, **keys):
    """A run of the embedded model, whose answers do change with its routing."""
    given = config("", output, output, "toy_choice", method, method_keys=keys, limit=40)
    return prepare(replace(given, model=ModelConfig(name="tiny"), data_dir=None))


def flips_of(run):
    """{document: to_right or to_wrong} by a plain loop over both sample logs."""
    samples = [read_samples(one.stored())["toy_choice"] for one in (run.baseline, run)]
    before, after = ({one.document: one.values["acc"] for one in lines} for lines in samples)
    return {
        number: "to_right" if after[number] else "to_wrong"
        for number in after
        if before[number] != after[number]
    }


@pytest.mark.slow
def test_every_flip_has_its_routing_and_is_stored_once(tmp_path, loads, capsys, monkeypatch):
    keys = {"n": N, "temperature": 3.0}
    run = asked(tmp_path, "roe", **keys)
    results = execute(run, ModelPool()).results
    flips, expected = read_flips(run.folder), flips_of(run)
    assert expected and {flip.document: flip.kind for flip in flips} == expected
    facts = results.model_facts
    lines = {one.document: one for one in read_samples(results)["toy_choice"]}
    for flip in flips:
        scores = [float(resps[0][0]) for resps in lines[flip.document].responses]
        picked, own = lines[flip.document].requests[scores.index(max(scores))][1], flip.routing
        assert picked.startswith(own.tokens[1]) and own.tokens[0] != own.tokens[1]
        assert len(own.before) == len(own.after) == facts["moe_layers"]
        assert all(
            sum(share for _, share in layer) == pytest.approx(facts["top_k"], abs=0.01) for layer in own.after
        )
        assert own.numbers == "share of samples"
        assert own.after[0] == [[expert, 1.0] for expert, _ in own.before[0]], "no noise there"
    assert loads == ["tiny"]
    samples = run.folder / "samples_toy_choice.jsonl"
    samples.unlink()
    execute(asked(tmp_path, "roe", **keys), ModelPool())
    assert read_flips(run.folder) == flips and loads == ["tiny"], "they are stored: no model is loaded"
    path = run.folder / FILE
    path.write_text(path.read_text()[:-20])
    samples.unlink()
    execute(asked(tmp_path, "roe", **keys), ModelPool())
    assert read_flips(run.folder) == flips and loads == ["tiny"] * 2
    assert f"{FILE} is damaged" in capsys.readouterr().err
    _check_a_kill(run, flips, monkeypatch)


def _check_a_kill(run, flips, monkeypatch):
    """The result stays, and the same command makes the flips, of which the first two have their routing."""
    assert len(flips) > 2 and run.measured
    (run.folder / FILE).unlink()
    (run.folder / "results.json").unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "write_flips", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        execute(run, ModelPool())
    assert run.done and not run.measured and run_state(run, None) == ("routing at flips missing", 0.0)
    monkeypatch.setattr(module, "MOST_ROUTED", 2)
    execute(run, ModelPool())
    listed = [replace(flip, routing=None) for flip in flips]
    assert read_flips(run.folder) == flips[:2] + listed[2:] and run.measured


def test_nothing_is_written_without_a_baseline(tmp_path):
    given = asked(tmp_path, "roe", n=2).config
    run = prepare(replace(given, baseline=False, limit=2))
    execute(run, ModelPool())
    assert not (run.folder / FILE).exists()


@pytest.mark.parametrize(("count", "said"), [(1, "1 answer "), (1200, "1,200 answers ")])
def test_one_flip_is_named_in_the_singular(count, said):
    assert module._said(count) == f"the routing at {said}that turned right or wrong"
