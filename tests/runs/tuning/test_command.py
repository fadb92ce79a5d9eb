"""tuning= from the command line.

Broken by: a document that is tuned on and evaluated, a study that is made again, a tuned run
that its profile by hand does not find.
"""

import json
import random
import time

import pandas
import pytest
import yaml

from tests.support.command import Forked, run_command, run_forked
from tests.support.runs import small_data


@pytest.fixture
def command(tiny_olmoe_dir, tmp_path, monkeypatch):
    """A small tuned run on AddSub, whose only split is both tuned on and evaluated."""
    monkeypatch.chdir(tmp_path)
    small_data(tmp_path / "data")
    tuning = (
        "tuning=tpe tuning.n_trials=4 tuning.num_samples=4 tuning.metric=accuracy "
        "method.n=3 seeds=2"
    )
    task = f"model.path={tiny_olmoe_dir} task=addsub data_dir=data gen_kwargs=max_gen_toks=8"
    return f"{task} {tuning}".split()


def assert_other_documents(block, outputs):
    """A run and its base run are evaluated on the documents that the study leaves."""
    evaluated = block["samples"]["addsub"]
    assert sorted([*evaluated, *block["tuning"]["samples"]["addsub"]]) == list(range(12))
    [file] = outputs.glob(f"runs/*-{block['baseline']['run_id'][:8]}/results.json")
    base = json.loads(file.read_text())
    assert base["moe_lab"]["samples"]["addsub"] == evaluated


@pytest.mark.slow
def test_tune_evaluate_and_find_it_again(command, capsys, loads, tmp_path):
    before = run_command(capsys, *command, "mode=plan")
    assert before.code == 0
    assert "0 of 4 trials" in before.out
    assert "2 after tuning" in before.out
    assert not (tmp_path / "outputs").exists()
    assert loads == []

    first = run_command(capsys, *command)
    assert first.code == 0, first.err
    assert len(loads) == 1
    [folder] = (tmp_path / "outputs" / "studies").iterdir()
    profile = yaml.safe_load((folder / "best.yaml").read_text())
    trials = pandas.read_csv(folder / "trials.csv")
    assert list(trials["number"]) == [0, 1, 2, 3]
    assert profile["untuned_score"] == trials["value"][0]
    assert profile["score"] >= profile["untuned_score"]
    assert profile["temperature"][0] == profile["temperature"][-1] == 0

    blocks = [result["moe_lab"] for result in first.results]
    assert [block["seed"] for block in blocks] == [0, 1]
    for block in blocks:
        assert block["tuning"]["study"] == folder.name
        assert "untuned" not in block
        assert block["roe"]["temperatures"] == profile["temperature"]
        assert_other_documents(block, tmp_path / "outputs")

    loads.clear()
    second_run = run_command(capsys, *command)
    assert second_run.code == 0
    assert second_run.out == first.out
    assert loads == []
    assert "To run: 0" in run_command(capsys, *command, "mode=plan").out
    whole = (folder / "best.yaml").read_text()
    (folder / "best.yaml").write_text("temperature: [")
    damaged = run_command(capsys, *command, "mode=plan")
    assert damaged.code == 0
    assert "To run: 2" in damaged.out
    (folder / "best.yaml").write_text(whole)
    assert run_command(capsys, *command, "mode=report").code == 0
    by_hand = [part for part in command if not part.startswith("tuning") and part != "seeds=2"]
    hand = run_command(capsys, *by_hand, f"method.temperature={folder / 'best.yaml'}")
    assert hand.code == 0
    assert loads == []
    assert hand.results[0]["moe_lab"]["run_id"] == blocks[0]["run_id"]

    # killed before its figures: the next command draws them
    record = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(record | {"finished": None}))
    for file in (folder / "figures").iterdir():
        file.unlink()
    assert run_command(capsys, *command).code == 0
    assert {file.name for file in (folder / "figures").glob("*.png")} == {
        "history.png",
        "heatmap.png",
    }
    assert loads == []


@pytest.mark.slow
def test_calibration_finds_the_scale_of_the_lowest_perplexity(
    tiny_olmoe_dir, tmp_path, capsys, monkeypatch
):
    """Its perplexity on the tuning documents is that of scores with the scale.

    The test has none of these documents.
    """
    monkeypatch.chdir(tmp_path)
    command = ["method=calibration", f"model.path={tiny_olmoe_dir}", "task=toy_text", "limit=5"]
    ended = run_command(capsys, *command, "tuning=scale", "tuning.num_samples=4")
    assert ended.code == 0, ended.err
    [folder] = (tmp_path / "outputs" / "studies").iterdir()
    profile = yaml.safe_load((folder / "best.yaml").read_text())
    assert profile["score"] < profile["untuned_score"]
    assert profile["score"] == profile["calibrated_score"]
    [result] = [
        result_of_run
        for result_of_run in ended.results
        if result_of_run["moe_lab"]["method"]["name"] == "calibration"
    ]
    assert result["moe_lab"]["calibration"]["logit_scale"] == profile["logit_scale"]
    assert "untuned" not in result["moe_lab"]
    perplexity = "word_perplexity,none"
    base = result["moe_lab"]["baseline"]["results"]["toy_text"][perplexity]
    assert result["results"]["toy_text"][perplexity] < base, (
        "a random model is sure of nothing that is right"
    )
    by_hand = run_command(capsys, *command, f"method.logit_scale={profile['logit_scale']}")
    [second_result] = by_hand.results
    assert second_result["results"] == result["results"] | {
        "toy_text": second_result["results"]["toy_text"]
    }
    assert (
        second_result["results"]["toy_text"][perplexity]
        == result["results"]["toy_text"][perplexity]
    )
    wrong = run_command(capsys, *command, "tuning=tpe")
    assert wrong.code == 2
    assert "Use tuning=scale" in wrong.err


@pytest.mark.slow
@pytest.mark.parametrize("task, compared", [("toy_text", True), ("toy_math", False)])
def test_every_study_measures_its_control(
    task, compared, tiny_olmoe_dir, tmp_path, capsys, monkeypatch
):
    """The base model's scale is that of a study of the scale alone, and the values of the trials
    stay unscaled. Greedy answers are not compared: a scale does not change them."""
    monkeypatch.chdir(tmp_path)
    settings = [
        f"model.path={tiny_olmoe_dir}",
        f"task={task}",
        "limit=3",
        "seeds=1",
        "tuning.num_samples=3",
    ]
    uniform = ["tuning=uniform", "tuning.max_temperature=1", "tuning.step=1"]
    ended = run_command(capsys, "method=roe", "method.n=2", *settings, *uniform)
    assert ended.code == 0, ended.err
    assert run_command(capsys, "method=calibration", *settings, "tuning=scale").code == 0
    profiles = (tmp_path / "outputs").glob("studies/*/best.yaml")
    studies = [yaml.safe_load(file.read_text()) for file in profiles]
    [own_study] = [study for study in studies if study["tuning"] == "uniform"]
    [scale] = [study for study in studies if study["tuning"] == "scale"]
    assert own_study["calibrated_scale"] == scale["logit_scale"] != 1 == own_study["logit_scale"]
    assert own_study["calibrated_score"] == pytest.approx(scale["score"], rel=1e-5)
    assert own_study["untuned_score"] == pytest.approx(scale["untuned_score"], rel=1e-5)
    [result] = [
        result_of_run for result_of_run in ended.results if "roe" in result_of_run["moe_lab"]
    ]
    assert ("calibration" in result["moe_lab"].get("compared", {})) == compared
    assert "calibrated" in ended.out


@pytest.mark.slow
def test_a_run_that_was_tuned_worse_than_calibration_is_marked(tmp_path, capsys, monkeypatch):
    """Ten trials learn after three: their temperatures are not those of tuning=random."""
    monkeypatch.chdir(tmp_path)
    tuning = ["tuning.n_trials=10", "tuning.num_samples=4"]
    common = ["method=roe", "method.n=2", "task=toy_math", "limit=2", "seeds=1", *tuning]
    temperatures = {}
    for tuning in ("tpe", "random"):
        ended = run_command(
            capsys, *common, f"tuning={tuning}", f"output_dir={tuning}", "device=cpu"
        )
        assert ended.code == 0, ended.err
        [folder] = (tmp_path / tuning / "studies").iterdir()
        profile = yaml.safe_load((folder / "best.yaml").read_text())
        assert profile["score"] > profile["calibrated_score"]
        assert ended.out.count("worse-than-calibrated: ") == 1
        temperatures[tuning] = (
            pandas.read_csv(folder / "trials.csv").filter(like="params_layer").to_numpy()
        )
    equal = (temperatures["tpe"] == temperatures["random"]).all(axis=1)
    assert list(equal) == [True] * 3 + [False] * 7


@pytest.mark.slow
def test_a_tuned_value_at_the_bound_of_its_search_is_marked(
    tiny_olmoe_dir, tmp_path, capsys, monkeypatch
):
    """In the profile, on the terminal, on the page and in the figure.

    The scale is searched with the temperature.
    """
    from moe_lab.runs.tuning.search import Search

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Search, "at_bound", lambda self, params, scale: ["temperature"])
    command = (
        f"method=roe method.n=2 model.path={tiny_olmoe_dir} task=toy_text limit=3 seeds=1".split()
    )
    command += "tuning=uniform tuning.max_temperature=2 tuning.step=1 tuning.num_samples=2".split()
    ended = run_command(capsys, *command, "tuning.logit_scale=true")
    assert ended.code == 0, ended.err
    [folder] = (tmp_path / "outputs" / "studies").iterdir()
    trials = pandas.read_csv(folder / "trials.csv")
    assert list(trials["params_temperature"]) == [0, 1, 2]
    assert (trials["value"] <= trials["user_attrs_unscaled"] + 1e-9).all()
    profile = yaml.safe_load((folder / "best.yaml").read_text())
    assert profile["at_bound"] == ["temperature"]
    assert len(set(profile["temperature"])) == 1
    assert profile["calibrated_score"] == trials["value"][0]
    assert profile["untuned_score"] == trials["user_attrs_unscaled"][0]
    [result] = [
        result_of_run for result_of_run in ended.results if "roe" in result_of_run["moe_lab"]
    ]
    assert result["moe_lab"]["tuning"]["at_bound"] == ["temperature"]
    assert result["moe_lab"]["roe"]["logit_scale"] == profile["logit_scale"] != 1
    difference = result["moe_lab"]["compared"]["calibration"]["paired"]["toy_text"][
        "word_perplexity,none"
    ]
    calibrated = result["moe_lab"]["compared"]["calibration"]["results"]["toy_text"][
        "word_perplexity,none"
    ]
    scored = result["results"]["toy_text"]["word_perplexity,none"]
    assert difference["difference"] == pytest.approx(scored - calibrated)
    assert "at-bound: a tuned value is at the bound" in ended.out
    assert "at bound" in ended.out
    assert "at-bound" in (tmp_path / "outputs" / "report.html").read_text()


@pytest.mark.slow
def test_killed_three_times_it_ends_with_the_trials_of_an_unbroken_study(command, tmp_path):
    """The moments are drawn from a seed; none of them may lose, repeat or change a trial."""
    longer = [part.replace("n_trials=4", "n_trials=15") for part in command]

    def trials(output):
        files = list(tmp_path.glob(f"{output}/studies/*/trials.csv"))
        return pandas.read_csv(files[0]) if files else pandas.DataFrame()

    moments = random.Random(5)
    for _ in range(3):
        forked = Forked(tmp_path, (*longer, "device=cpu", "output_dir=killed"))
        target = len(trials("killed")) + moments.randint(0, 3)
        while forked.process.is_alive() and len(trials("killed")) < target:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        assert forked.process.is_alive(), "the study ended before it was killed three times"
        forked.process.kill()
        forked.process.join()
    for output in ("killed", "unbroken"):
        assert run_forked(tmp_path, *longer, "device=cpu", f"output_dir={output}").code == 0
    killed = trials("killed").filter(regex="^(number|value|state|params_)")
    unbroken = trials("unbroken").filter(regex="^(number|value|state|params_)")
    assert list(killed["number"]) == list(range(15))
    assert len(killed.columns) > 4
    pandas.testing.assert_frame_equal(killed, unbroken, check_exact=True)
