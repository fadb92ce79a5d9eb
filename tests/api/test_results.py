"""`Results`: the score table and the examples as data frames, the forest plot, what a notebook shows.

Broken by: a base run without a row, two meanings of one column, a p that is not the terminal's, an example that is lost,
a hash of 64 digits in what is shown.
"""

import json
import re

import pytest

import moe_lab
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.reports import frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def grid(folder, tiny_olmoe_dir):
    """Two tasks, two numbers of samples."""
    keys = ["-m", "method=roe", "method.n=2,3", "task=toy_choice,toy_math", "limit=4"]
    keys += [f"model.path={tiny_olmoe_dir}", f"output_dir={folder}", "gen_kwargs={max_gen_toks: 4}"]
    return moe_lab.run(keys, quiet=True)


@pytest.fixture(scope="module")
def seeds(folder, tiny_olmoe_dir):
    keys = ["method=roe", "method.n=2", "method.temperature=3", "task=toy_text", "limit=3", "seeds=3"]
    return moe_lab.run([*keys, f"model.path={tiny_olmoe_dir}", f"output_dir={folder}"], quiet=True)


@pytest.mark.slow
def test_the_frame_has_base_rows_intervals_p_and_cost(grid):
    frame = grid.frame()
    assert list(frame["method"]).count("base") == 2 and len(frame) == 6
    base, own = frame[frame["method"] == "base"], frame[frame["method"] == "roe"]
    assert set(frame.columns) >= {"method.n", "examples"} and set(frame["examples"]) == {4}
    assert base["method.n"].isna().all() and list(own["method.n"].unique()) == [2, 3]
    assert base["compared_with"].isna().all() and set(own["compared_with"]) == {"base"}
    assert (frame["low"] <= frame["value"]).all() and (frame["value"] <= frame["high"]).all()
    assert (own["difference_low"] <= own["difference"]).all() and set(own["test"]) == {"McNemar"}
    assert (own["p_holm"] >= own["p"]).all() and set(own["family"]) == {4}
    costs = own["cost/tokens_in"] / own["method.n"]
    assert (costs > 0).all() and base["cost/wall_seconds"].notna().all()


@pytest.mark.slow
def test_every_setting_is_a_column_on_demand(grid):
    some, every = grid.frame(), grid.frame(all_settings=True)
    assert "limit" not in some and "task.category" not in some
    own = every[every["method"] == "roe"]
    assert list(every["limit"]) == [4] * 6 and set(own["method.cache"]) == {"clean"}
    assert len(every) == len(some)


@pytest.mark.slow
def test_means_over_seeds_follow_their_runs(seeds):
    frame = seeds.frame()
    mean = frame.iloc[-1]
    runs = frame[(frame["method"] == "roe") & (frame["seeds"] == 1)]
    assert list(runs["seed"]) == [0, 1, 2] and runs["p_holm"].isna().all()
    assert mean["seeds"] == 3 and mean["test"] == "seeds" and mean["p_holm"] == mean["p"]
    assert mean["value"] == pytest.approx(runs["value"].mean()) and mean["std"] > 0
    assert re.search(r"^roe +3 ", repr(seeds), re.MULTILINE)
    assert seeds.plot()._repr_png_().startswith(b"\x89PNG")
    [axis] = seeds.plot().axes[:1]
    assert len(axis.get_yticks()) == 1, "the mean alone, which has the test"


@pytest.mark.slow
def test_every_example_of_every_run_is_a_row(grid):
    found = grid.examples()
    assert len(found) == 6 * 4 and list(found.groupby("run").size()) == [4] * 6
    [logged] = grid.runs[0].folder.glob("samples_*.jsonl")
    lines = {line["doc_id"]: line for line in map(json.loads, logged.read_text().splitlines())}
    own = found[found["run"] == grid.runs[0].folder.name]
    for row in own.to_dict("records"):
        line = lines[row["document"]]
        assert row["prompt"] == line["arguments"]["gen_args_0"]["arg_0"]
        assert row["score"] == line["acc"] == float(row["answer"] == row["target"])
    texts = found[found["task"] == "toy_math"]
    assert texts["answer"].map(type).eq(str).all() and texts["target"].str.contains("####").all()


@pytest.mark.slow
def test_texts_that_are_scored_as_a_whole_have_no_answer(seeds):
    found = seeds.examples()
    assert len(found) == 4 * 3 and found["answer"].isna().all() and found["prompt"].str.len().gt(20).all()


@pytest.mark.slow
def test_what_is_shown_has_scores_and_no_hash(grid):
    text, page = repr(grid), grid._repr_html_()
    for shown in (text, page):
        assert "p (Holm)" in shown and "same question (scores: 4)" in " ".join(shown.split())
        assert not re.search("[0-9a-f]{16}", shown)
    assert "<table" in page and text.count("toy_math") == 3


@pytest.mark.slow
def test_a_run_that_is_compared_with_none_has_no_plot(tmp_path, tiny_olmoe_dir):
    keys = ["method=base", "task=toy_choice", "limit=2", "metrics=expert", f"model.path={tiny_olmoe_dir}"]
    results = moe_lab.run([*keys, f"output_dir={tmp_path}"], quiet=True)
    with pytest.raises(ConfigError, match="no difference to plot"):
        results.plot()
    assert results.frame()["expert/load_balance/all"][0] > 0
    assert "difference" not in repr(results)


def test_settings_that_differ_are_columns():
    """Broken by rows of `method.n=2,4` that nothing tells apart, and by a column that only follows from an option."""
    roe = get_method("roe").Config
    configs = [Config(method=roe(name="roe", n=n), seed=seed) for n, seed in ((2, 0), (4, 1))]
    assert frames.settings_of(configs, configs) == [{"method.n": 2}, {"method.n": 4}]
    base = Config(method=get_method("base").Config(name="base"), limit=3)
    assert frames.settings_of([base, *configs], [base, *configs]) == [
        {"limit": 3, "method.n": None},
        {"limit": None, "method.n": 2},
        {"limit": None, "method.n": 4},
    ]
    tasks = [Config(task=TaskConfig(name=name, category=name)) for name in ("math", "code")]
    assert frames.settings_of(tasks, tasks) == [{}, {}]
