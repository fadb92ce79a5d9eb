"""`method=top-k`, `top-p` and `policy` against full forward passes in float64 whose
experts are chosen by hand.

Broken by: an expert too many or too few, weights that are not the family's for this number,
a token that takes more than k_max, padding that is counted as tokens, the model's own number
or p=1 that is not the base model bit for bit. For a function of a file: keys that do not reach it,
a decision that does not reach the experts, a missing expert that has a weight, a run id without
the file's content or with its path, a study whose first trial is taken for the base model,
a function that no worker can import.
"""

import importlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import moe_lab
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError, RoutingError
from moe_lab.methods import get_method
from moe_lab.methods.expert_counts import TopK, TopP
from moe_lab.methods.policy_method import PolicyMethod
from moe_lab.methods.repeatable import repeats_itself
from moe_lab.methods.roe import RoE
from moe_lab.results import code_digest
from moe_lab.results.identity import run_id
from moe_lab.routing import find_routers
from moe_lab.routing.override import override
from tests.support import rounding
from tests.support.command import run_command
from tests.support.models import small_model
from tests.support.opened_methods import answered, facts_of, opened
from tests.support.roe_reference import in_float64
from tests.support.routed_by_hand import (
    FACTS,
    FAMILIES,
    PAIRS,
    base_answers,
    both_answers,
    check_answers,
    open_experts,
    routed_pass,
    weights_of,
)


def top_k(**keys: Any) -> TopK:
    return TopK(TopK.Config(**keys))


def top_p(**keys: Any) -> TopP:
    return TopP(TopP.Config(**keys))


def test_the_identity_and_the_report_have_the_number():
    assert top_k().identity(FACTS) == top_k(k=4).identity(FACTS) != top_k(k=3).identity(FACTS)
    assert (
        top_p().identity(FACTS) == top_p(k_max=6).identity(FACTS) != top_p(k_max=5).identity(FACTS)
    )
    assert top_p().report(FACTS, {}, {})["top_p"]["experts_per_token"] is None
    assert top_k().identity(replace(FACTS, experts=3))["k"] == 3, (
        "twice, as far as there are so many"
    )
    counters = {"chosen_experts": 12, "routing_decisions": 4}
    block = {"k": 3, "experts_per_token": 3.0}
    assert top_k(k=3).report(FACTS, counters, {}) == {"untuned": True, "top_k": block}


def order_of(router: Any, logits: Any) -> tuple[list[int], Any]:
    """(experts in the order of choice, probabilities)"""
    if not hasattr(router, "num_group"):
        return open_experts(router, logits), logits.softmax(-1)
    scores = logits.sigmoid() + router.e_score_correction_bias
    return open_experts(router, scores), logits.sigmoid() / logits.sigmoid().sum()


def chosen(router: Any, logits: Any, p: float, k_max: int) -> list[int]:
    order, probs = order_of(router, logits)
    chosen_experts: list[int] = []
    while len(chosen_experts) < min(k_max, len(order)) and (
        p == 1 or sum(float(probs[e]) for e in chosen_experts) < p
    ):
        chosen_experts.append(order[len(chosen_experts)])
    return chosen_experts


def log_probs(model64: Any, ids: list[int], p: float, k_max: int) -> tuple[Any, int]:
    """(float64 [S, V] of one pass, the sum of the experts of all tokens and layers)"""
    total = 0

    def route(layer: int, router: Any, output: Any) -> Any:
        nonlocal total
        logits_TE, weights_TK, _ = output
        weights = torch.zeros_like(logits_TE, dtype=weights_TK.dtype)
        index = logits_TE.argsort()
        for token, logits in enumerate(logits_TE):
            experts = chosen(router, logits, p, k_max)
            total += len(experts)
            index[token] = torch.tensor(
                experts + [e for e in range(len(logits)) if e not in experts]
            )
            weights[token, : len(experts)] = weights_of(
                model64.config.model_type, router, logits, experts
            )
        return logits_TE, weights, index

    return routed_pass(model64, ids, route).log_softmax(-1), total


@pytest.mark.parametrize(
    ("method", "family", "p", "k_max"),
    [
        *(("top-p", family, 0.5, 3) for family in FAMILIES),
        ("top-p", "deepseek_v3", 1.0, 3),
        pytest.param("top-p", "olmoe", 0.7, None, marks=pytest.mark.slow),
        # with recurrent layers
        *(pytest.param("top-p", "qwen3_next", p, 3, marks=pytest.mark.slow) for p in (0.5, 1.0)),
        *(("top-k", family, 1.0, 1) for family in FAMILIES),
        ("top-k", "olmoe", 1.0, 4),
    ],
)
def test_tokens_take_the_fewest_experts_that_reach_p_or_k_of_them(
    method, family, p, k_max, tokenizer
):
    model = small_model(family)
    double = in_float64(model)
    routed = top_k(k=k_max) if method == "top-k" else top_p(p=p, k_max=k_max)

    def expected_log_probs(ids: list[int]) -> torch.Tensor:
        return log_probs(double, ids, p, k_max or 8)[0]

    with opened(routed, model, tokenizer) as lm:
        check_answers(lm, expected_log_probs, model.config.eos_token_id)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_mean_number_of_experts_is_that_of_the_tokens_that_were_read(batch_size, tokenizer):
    model = small_model("olmoe")
    texts = [("three red pens",), ("a",), ("one and two",)]
    double = in_float64(model)
    method = top_p(p=0.5, k_max=4)
    with opened(method, model, tokenizer) as lm:
        lm.budget = lm.engine.budget = replace(lm.budget, sequences=batch_size)
        answered(lm, "loglikelihood_rolling", texts)
        counts = lm.cost
    total = 0.0
    decisions = 0
    for (text,) in texts:
        ids = [lm.prefix_token_id, *lm.tok_encode(text)][:-1]
        total += log_probs(double, ids, 0.5, 4)[1]
        decisions += 4 * len(ids)
    assert counts["routing_decisions"] == decisions == 4 * counts["tokens_in"]
    assert counts["chosen_experts"] == total
    assert 1 < total / decisions < 4
    block = method.report(facts_of(model), counts, {})["top_p"]
    assert block == {"p": 0.5, "k_max": 4, "experts_per_token": total / decisions}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", [top_k(k=2), top_p(p=1.0, k_max=2)], ids=["top-k", "top-p"])
def test_the_models_own_number_is_the_base_model_bit_for_bit(method, family, tokenizer):
    model = small_model(family)
    expected = base_answers(small_model(family), tokenizer)
    with opened(method, model, tokenizer) as lm:
        assert both_answers(lm) == expected
        lm.set_ensemble(lm.ensemble)  # as a study does
        assert answered(lm, "loglikelihood", PAIRS) == expected[0]
        assert lm.cost["chosen_experts"] == 2 * lm.cost["routing_decisions"]
        assert lm.cost["routing_decisions"] == len(find_routers(model)) * lm.cost["tokens_in"]


def test_a_number_that_a_model_cannot_have_is_refused():
    with pytest.raises(ConfigError, match="1 to 4 experts of the 8"):  # two of four groups are open
        top_k(k=5).check(facts_of(small_model("deepseek_v3")))
    with pytest.raises(ConfigError, match="cannot have another number"):
        top_p().check(facts_of(small_model("phimoe")))


def test_the_grids_begin_with_the_base_model():
    assert top_k().grid(FACTS) == [{"k": 2}, {"k": 1}, {"k": 3}, {"k": 4}]
    first, *other_settings = top_p().grid(FACTS)
    assert first == {"p": 1.0, "k_max": 2}
    assert other_settings == [{"p": tenth / 10, "k_max": 6} for tenth in range(1, 10)]


IDEAS = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moe_lab.routing import Router, Routing


@dataclass
class Known:
    experts: int = 2


def drop_weakest(router, routing, scale=0.0, layers=9):
    """The weakest expert with a share of its weight, in the first layers."""
    if router.layer >= layers:
        return None
    weakest_T1 = routing.weights_TK.argmin(-1, keepdim=True)
    scaled_T1 = scale * routing.weights_TK.gather(-1, weakest_T1)
    return routing._replace(weights_TK=routing.weights_TK.scatter(-1, weakest_T1, scaled_T1))


def strongest(router: Router, routing: Routing, k: float = 1) -> Routing:
    weights_TK, order_TK = routing.weights_TK.topk(k)
    return routing._replace(weights_TK=weights_TK, index_TK=routing.index_TK.gather(-1, order_TK))


def with_own_n(router, routing, n=8, cache='clean'): pass
def without_default(router, routing, scale): pass
def writes(router, routing): routing.weights_TK[:, 1:] = 0
def with_a_list(router, routing, layers=['first']): pass
def with_a_taken_name(router, routing, space=1): pass
'''


@pytest.fixture
def ideas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file of functions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ideas.py").write_text(IDEAS, encoding="utf-8")
    return tmp_path / "ideas.py"


def policy(function: str, file: str = "ideas.py", **keys: Any) -> Any:
    keys |= {"name": "policy", "policy": f"{file}:{function}"}
    method: Any = get_method("policy")
    return method(method.config_class(keys)(**keys))


def test_a_key_of_the_function_is_no_shape_of_an_ensemble(ideas):
    assert policy("with_own_n").planned_ensemble().n == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_function_decides(ideas, family, tokenizer):
    model = small_model(family)
    double = in_float64(model)

    def by_hand(layer, module, output):
        logits, weights, index = output
        weights = weights.clone()
        if layer < 3:
            for token, weight_row in enumerate(weights):
                weights[token, weight_row.argmin()] *= 0.25
        return logits, weights, index

    def log_probs(ids: list[int]) -> Any:
        return routed_pass(double, ids, by_hand).log_softmax(-1)

    with opened(policy("drop_weakest", scale=0.25, layers=3), model, tokenizer) as lm:
        check_answers(lm, log_probs, model.config.eos_token_id)
    with opened(policy("drop_weakest", scale=1.0), model, tokenizer) as lm:
        assert both_answers(lm) == base_answers(model, tokenizer), "bit for bit"


def test_missing_experts_have_no_weight(ideas, tokenizer):
    weights = []
    for function in ("strongest", "drop_weakest"):  # of two experts
        with opened(policy(function), small_model("olmoe"), tokenizer) as lm:
            weights.append([score for score, _ in answered(lm, "loglikelihood", PAIRS)])
    assert weights[0] == rounding.approx(weights[1], tokens=4)


def test_the_content_of_the_file_is_in_the_identity(ideas):
    identity = policy("drop_weakest").identity(FACTS)
    ideas.rename("renamed.py")
    assert policy("drop_weakest", file="renamed.py").identity(FACTS) == identity
    assert policy("drop_weakest", file="renamed.py", scale=0.5).identity(FACTS) != identity
    strongest = [
        policy("strongest", file="renamed.py", **keys).identity(FACTS) for keys in ({}, {"k": 1})
    ]
    assert run_id(strongest[0]) == run_id(strongest[1]) != run_id(identity)
    Path("renamed.py").write_text(IDEAS + "\nMORE = 1\n", encoding="utf-8")
    assert policy("drop_weakest", file="renamed.py").identity(FACTS) != identity


def test_the_files_that_it_imports_are_in_the_identity(ideas):
    identity = policy("drop_weakest").identity(FACTS)
    assert "imports" not in identity, "ids of files without imports stay"
    ideas.with_name("sharing.py").write_text("SHARE = 1.0\n", encoding="utf-8")
    ideas.write_text(
        f"{IDEAS}\ntry:\n    from sharing import SHARE\nexcept ImportError:\n    SHARE = 1\n",
        "utf-8",
    )
    digests = []
    for content in ("SHARE = 1.0", "SHARE = 0.5", "SHARE = 1.0  # a comment"):
        ideas.with_name("sharing.py").write_text(content, encoding="utf-8")
        code_digest.forget_edited_code()  # a new command
        digests.append(policy("drop_weakest").identity(FACTS)["imports"])
    assert digests[0] == digests[2] != digests[1]


RANDOM = '''
import random

import torch

CALLS = []


def draws(router, routing, temperature=3.0):
    """Gumbel noise in front of the choice, as somebody would write it."""
    scores_TE = router.scores(routing.logits_TE)
    noise_TE = -torch.rand_like(scores_TE).clamp(1e-9, 1 - 1e-7).log().neg().log().neg()
    index_TK = router.choose(scores_TE + temperature * noise_TE, routing.index_TK.shape[-1])
    weights_TK = router.weights(routing.logits_TE, index_TK)
    return routing._replace(index_TK=index_TK, weights_TK=weights_TK)


def shrinks(router, routing):
    CALLS.append(router.layer)
    return routing._replace(weights_TK=routing.weights_TK / len(CALLS))


def at_times(router, routing):
    return None if random.random() < 0.5 else routing._replace(weights_TK=routing.weights_TK * 0.5)


def seeded(router, routing):
    torch.manual_seed(router.layer)
    return draws(router, routing)


def counts_texts(router, routing, tokens):
    """A number of calls in `tokens.state`, which is of no text."""
    calls = tokens.state.setdefault("calls", [])
    calls.append(router.layer)
    return routing._replace(weights_TK=routing.weights_TK / len(calls))


def keyed(router, routing, tokens, temperature=3.0):
    """`draws` with the noise of its tokens."""
    scores_TE = router.scores(routing.logits_TE) + temperature * tokens.gumbel(router)
    index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
    weights_TK = router.weights(routing.logits_TE, index_TK)
    return routing._replace(index_TK=index_TK, weights_TK=weights_TK)
'''


@pytest.mark.parametrize("function", ["draws", "shrinks", "at_times", "counts_texts"])
def test_a_policy_that_decides_differently_each_time_is_refused(ideas, function, tokenizer):
    """`at_times` would decide alike in both passes with a probability of 2 ** -4."""
    random.seed(3)
    ideas.write_text(RANDOM, encoding="utf-8")
    refusal = pytest.raises(
        ConfigError, match=f"ideas.py:{function}: it decides differently in two"
    )
    with refusal, opened(policy(function), small_model("olmoe"), tokenizer):
        pass


@pytest.mark.parametrize("function", ["seeded", "keyed"])
def test_a_random_policy_that_repeats_itself_runs(ideas, function, tokenizer):
    ideas.write_text(RANDOM, encoding="utf-8")
    with opened(policy(function), small_model("olmoe"), tokenizer) as lm:
        answered(lm, "loglikelihood", PAIRS[:1])


def test_the_test_leaves_the_random_numbers_of_others_as_they_are(ideas):
    ideas.write_text(RANDOM, encoding="utf-8")
    state = torch.get_rng_state()
    assert not repeats_itself(small_model("olmoe"), policy("draws").function)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_command_refuses_random_numbers_of_its_own_and_says_what_to_do(ideas, tmp_path, capsys):
    ideas.write_text(RANDOM, encoding="utf-8")
    keys = ["method.policy=ideas.py:draws", "task=toy_choice", "limit=4", "baseline=false"]
    ended = run_command(capsys, "method=policy", *keys, f"output_dir={tmp_path}/out")
    assert ended.code == 2
    assert "method.policy=ideas.py:draws: it decides differently in two equal passes" in ended.err
    assert "tokens.gumbel(router)" in ended.err


def test_the_seed_is_in_the_identity_of_a_policy_with_tokens_alone(ideas):
    ideas.write_text(RANDOM, encoding="utf-8")
    assert policy("keyed").random
    assert not policy("seeded").random
    assert policy("keyed").arguments == {"temperature": 3.0}, "tokens are no key"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(ideas, tmp_path, capsys):
    """Five times; other batches give the same texts, another seed does not."""
    ideas.write_text(RANDOM, encoding="utf-8")
    command = ["method=policy", "method.policy=ideas.py:keyed", "task=toy_math", "limit=12"]

    def samples(name: str, *keys: str) -> bytes:
        output = f"output_dir={tmp_path}/{name}"
        ended = run_command(capsys, *command, "baseline=false", output, *keys)
        assert ended.code == 0, ended.err
        [file] = ended.folders[-1].glob("samples_*.jsonl")
        return file.read_bytes()

    first = samples("0")
    for time in range(1, 5):
        assert samples(str(time)) == first
    for batch_size in (1, 5):
        assert samples(f"batch{batch_size}", f"batch_size={batch_size}") == first
    assert samples("seed", "seed=1") != first


@pytest.mark.slow
def test_the_mean_over_seeds_has_a_p(ideas, tmp_path):
    ideas.write_text(RANDOM, encoding="utf-8")
    command = ["method=policy", "method.policy=ideas.py:keyed", "task=toy_choice", "limit=20"]
    frame = moe_lab.run([*command, "seeds=3", f"output_dir={tmp_path}"], quiet=True).frame()
    means = frame[(frame["method"] == "policy") & frame["seed"].isna()]
    assert means["seeds"].tolist() == [3] * len(means)
    assert means["p"].notna().all()


@pytest.mark.parametrize("family", ["olmoe", "gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("cache", ["clean", "standard"])
def test_roe_is_the_average_of_a_function_with_gumbel_noise(ideas, family, cache, tokenizer):
    """To the bit: the noise has the same keys."""
    ideas.write_text(RANDOM, encoding="utf-8")
    model = small_model(family)
    shape = {"n": 3, "cache": cache}
    by_function = policy("keyed", temperature=0.7, **shape)
    by_roe = RoE(RoE.Config(temperature=0.7, skip_layers=0, **shape))
    answers = []
    costs = []
    for method in (by_function, by_roe):
        with opened(method, model, tokenizer, seed=4) as lm:
            answers.append(both_answers(lm))
            costs.append(lm.cost)
    assert answers[0] == answers[1]
    assert costs[0] == costs[1], "tokens and changed decisions"
    assert costs[0]["changed_decisions"] > 0


def test_what_a_function_with_samples_says(ideas):
    ideas.write_text(RANDOM, encoding="utf-8")
    method = policy("keyed", n=8, cache="standard")
    facts_identity = method.identity(FACTS)
    assert (facts_identity["n"], facts_identity["cache"]) == (8, "standard")
    assert method.planned_ensemble().n == 8
    assert method.expert_metrics == "none"
    counters = {"changed_decisions": 3, "noisy_decisions": 4}
    block = method.report(FACTS, counters, {})["policy"]
    assert block["changed_fraction"] == 0.75
    assert (block["n"], block["cache"]) == (8, "standard")
    assert method.settings({"temperature": 2.0}) == {"temperature": 2.0}, "as in RoE's profiles"

    assert "n" not in policy("keyed").identity(FACTS), "ids without samples stay"
    assert policy("keyed", n=1).identity(FACTS) == policy("keyed").identity(FACTS)


def test_an_argument_n_of_the_function_is_its_own(ideas):
    own = policy("with_own_n")
    assert own.arguments == {"n": 8, "cache": "clean"}
    assert policy("with_own_n", n=None).arguments == own.arguments, "as conf/ gives it"
    assert policy("with_own_n", n=3).arguments["n"] == 3
    assert policy("with_own_n", n=3).planned_ensemble().n == 1


@pytest.mark.parametrize(
    ("function", "keys", "message"),
    [
        ("seeded", {"n": 2}, "all samples would be the same"),
        ("keyed", {"cache": "standard"}, "has no effect on one routing"),
        ("with_cache", {"n": 2}, "samples attend to a `cache`"),
        ("keyed", {"n": 0}, "n"),
        ("keyed", {"n": 2, "cache": "none"}, "cache"),
    ],
)
def test_samples_that_cannot_be_drawn_are_refused(ideas, function, keys, message):
    own_cache = "\ndef with_cache(router, routing, tokens, cache=1): pass\n"
    ideas.write_text(RANDOM + own_cache, encoding="utf-8")
    values = {"name": "policy", "policy": f"ideas.py:{function}"} | keys
    with pytest.raises(ConfigError, match=message):
        build(get_method("policy").config_class(values), values, "method.")


@pytest.mark.slow
def test_the_command_averages_samples_and_plans_their_tokens(ideas, tmp_path, capsys):
    ideas.write_text(RANDOM, encoding="utf-8")
    command = ["method=policy", "method.policy=ideas.py:keyed", "task=toy_choice", "limit=6"]
    for keys in (["method.n=3"], ["method.n=3", "method.cache=standard"], []):
        output = f"output_dir={tmp_path}/{len(keys)}"
        ended = run_command(capsys, *command, *keys, "baseline=false", output)
        assert ended.code == 0, ended.err
        results = ended.results[-1]["moe_lab"]
        planned = moe_lab.plan([*command, *keys, "baseline=false", f"{output}/plan"])
        assert planned.frame()["tokens"].tolist() == [results["cost"]["tokens_in"]]
        assert ("n" in results["policy"]) == bool(keys)


def test_a_plain_function_is_the_policy_of_a_method(tokenizer):
    class Halved(PolicyMethod):
        def policy(self, model, config):
            return (
                lambda router, routing: routing._replace(weights_TK=routing.weights_TK * 0.5)
            ), {}

    model = small_model("olmoe")
    with opened(Halved(Halved.Config(name="halved")), model, tokenizer) as lm:
        scores = answered(lm, "loglikelihood", PAIRS)
        assert lm.cost["tokens_in"] > 0
    assert scores != base_answers(model, tokenizer)[0]


def test_a_decision_is_returned_and_not_written(ideas, tokenizer):
    refusal = pytest.raises(
        RoutingError, match="wrote into the decision for model.layers.0.mlp.gate"
    )
    with refusal, opened(policy("writes"), small_model("olmoe"), tokenizer) as lm:
        answered(lm, "loglikelihood", PAIRS)


def test_expert_metrics_of_a_function_are_counted(ideas, tmp_path, capsys):
    keys = ["method.policy=ideas.py:drop_weakest", "metrics=expert", "task=toy_choice", "limit=2"]
    ended = run_command(capsys, "method=policy", *keys, "baseline=false", f"output_dir={tmp_path}")
    assert ended.code == 0, ended.err
    metrics = json.loads((ended.folders[-1] / "expert_metrics.json").read_text())
    assert metrics["load_balance"]["all"]["value"] > 0
    assert metrics["capacity"] is None


def test_what_was_tuned_is_noted(ideas):
    """A function without keys has nothing to tune."""
    assert policy("writes").tuning_block == {}
    assert policy("drop_weakest").tuning_block == {"untuned": True}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.policy=null", "needs a file and a function"),
        ("method.policy=none.py:drop_weakest", "no file none.py"),
        ("method.policy=ideas.py:drop_weak", "Did you mean 'drop_weakest'"),
        ("method.policy=ideas.py:without_default", "missing a required argument: 'scale'"),
        ("method.policy=ideas.py:with_a_list", "must be a number, a text, true or false"),
        (
            "method.policy=ideas.py:with_a_taken_name",
            "the name none of name, policy, profile, space",
        ),
        ("method.scal=1", "Did you mean 'method.scale'"),
        ("method.scale=much", "expected a number"),
        ("method.scale=[0", "Error: method.scale=[0: no viable"),
        (
            "method.scale=0,1",
            "Error: method.scale=0,1: a key takes one value. A grid: -m method.scale=0,1.",
        ),
        ("tuning=grid", "method.space={scale: [0.5, 1.0]}"),
    ],
)
def test_a_wrong_function_or_key_is_one_message(ideas, capsys, override, message):
    ended = run_command(capsys, "method=policy", "method.policy=ideas.py:drop_weakest", override)
    assert ended.code == 2
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_a_grid_begins_with_the_defaults_of_the_function_and_has_no_settings_twice(ideas):
    tuned = policy("drop_weakest", space={"scale": [0.5, 0.0], "layers": [9, 4]})
    assert tuned.grid(FACTS) == [
        {"scale": 0.0, "layers": 9},
        {"scale": 0.5, "layers": 9},
        {"scale": 0.5, "layers": 4},
        {"scale": 0.0, "layers": 4},
    ]


LISTS = """
def by_layer(router, routing, k=[2, 2, 2, 2], scale=1.0):
    count = k[router.layer]
    weights_TK, order_TK = routing.weights_TK.topk(count)
    index_TK = routing.index_TK.gather(-1, order_TK)
    return routing._replace(weights_TK=weights_TK * scale, index_TK=index_TK)


def taken(router, routing, k=[1, 2], k_1=3): pass
"""


def test_a_key_may_be_a_list_by_layer(ideas, tokenizer):
    """Each layer has its own number of experts: as one expert where the list says so."""
    ideas.write_text(LISTS, encoding="utf-8")
    model = small_model("olmoe")
    values = {"name": "policy", "policy": "ideas.py:by_layer", "k": [2, 1, 2, 1]}
    config = build(get_method("policy").config_class(values), values, "method.")
    experts_of_layer = []

    def note(router: Any, routing: Any) -> None:
        experts_of_layer.append(int((routing.weights_TK[0] != 0).sum()))

    with (
        opened(get_method("policy")(config), model, tokenizer) as lm,
        override(model, note),
    ):
        answered(lm, "loglikelihood", PAIRS[:1])
    # the inner `override` decides last, after the function
    assert experts_of_layer[:4] == [2, 1, 2, 1]
    assert policy("by_layer").identity(FACTS)["k"] == [2, 2, 2, 2]
    assert policy("by_layer").arguments["k"] is not policy("by_layer").arguments["k"]


def test_each_entry_of_a_list_is_a_parameter_of_a_study(ideas):
    ideas.write_text(LISTS, encoding="utf-8")
    tuned = policy("by_layer", k=[2, 2], space={"k": [1, 2], "scale": [0.5]})
    grid = tuned.grid(FACTS)
    assert grid[0] == {"k_0": 2, "k_1": 2, "scale": 1.0}
    assert [tuned.values(point)["k"] for point in grid[1:]] == [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert tuned.at(grid[2]).k == [1, 2]
    assert tuned.settings({"k_0": 1, "k_1": 2, "scale": 0.5}) == {"k": [1, 2], "scale": 0.5}
    assert tuned.open_ended == ("k_0", "k_1", "scale")
    drawn = tuned.values({"k_0": 1.2, "k_1": 1.7, "scale": 0.7})
    assert drawn == {"k": [1, 2], "scale": 0.7}, "integers of a list stay integers"

    many = policy("by_layer", k=[2] * 40, space={"k": [1, 2]})
    with pytest.raises(ConfigError, match="tuning=tpe"):
        many.grid(FACTS)
    corners = many.corners(FACTS)
    assert len(corners) == 3
    assert {point["k_39"] for point in corners} == {1, 2}
    with pytest.raises(ConfigError, match="k_1, which is another argument"):
        policy("taken", space={"k": [1, 2]}).grid(FACTS)


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["grid", "tpe"])
def test_a_study_finds_a_list(ideas, tuning, tmp_path, capsys):
    """The run after the study has the list, and so has a run with its profile."""
    ideas.write_text(LISTS.replace("[2, 2, 2, 2]", "[4] * 8"), encoding="utf-8")
    command = ["method=policy", "method.policy=ideas.py:by_layer", "task=toy_choice", "limit=4"]
    keys = ["tuning.num_samples=4", f"output_dir={tmp_path}", "seeds=1"]
    if tuning == "grid":
        keys += ["method.space={scale: [0.5]}"]
    else:
        keys += ["method.space={k: [3, 4]}", "tuning.n_trials=3"]
    ended = run_command(capsys, *command, f"tuning={tuning}", *keys)
    assert ended.code == 0, ended.err
    found = ended.results[-1]["moe_lab"]["policy"]["k"]
    assert len(found) == 8
    assert set(found) <= {3, 4}
    [profile] = tmp_path.glob("studies/*/best.yaml")
    ended = run_command(capsys, *command, f"method.profile={profile}", f"output_dir={tmp_path}")
    assert ended.code == 0, ended.err
    assert ended.results[-1]["moe_lab"]["policy"]["k"] == found


def test_only_numbers_are_tuned(ideas):
    ideas.write_text("def f(router, routing, mode='x'): ...", encoding="utf-8")
    with pytest.raises(
        ConfigError, match="method.space.mode: ideas.py:f has no such key with a number"
    ):
        policy("f", space={"mode": [1, 2]}).grid(FACTS)


def test_hydra_prints_a_configuration_with_the_keys_of_a_function(ideas, capsys):
    overrides = ["method=policy", "method.policy=ideas.py:drop_weakest", "method.scale=0.3"]
    assert "scale: 0.3" in run_command(capsys, *overrides, "--cfg", "job").out
    assert "Unknown model" in run_command(capsys, *overrides, "model=none").err


def test_the_keys_of_a_function_apply_to_its_cells_of_an_experiment(ideas, capsys):
    Path("experiments").mkdir()
    cells = "{task: [toy_choice], method: [base, [policy, 'method.policy=ideas.py:drop_weakest']]}"
    scales = f"{{tiny: {{grid: {cells}}}}}"
    text = f"{{title: '', source: '', scales: {scales}, rows: [method], columns: [task]}}"
    Path("experiments/mine.yaml").write_text(text)
    command = ["--config-dir", ".", "experiment=mine", "mode=plan"]
    assert "To run: 2," in run_command(capsys, *command, "method.scale=0.3").out
    assert "Did you mean 'scale'" in run_command(capsys, *command, "method.scal=0.3").err


def test_a_file_that_cannot_be_imported_is_one_message(ideas):
    command = (
        'import moe_lab; moe_lab.run(["method=policy", "method.policy=ideas.py:f", '
        '"task=toy_choice"])'
    )
    for content, message in (
        ("import no_such_module", "ModuleNotFoundError: No module named"),
        (command, "ConfigError: it runs a command: write that below"),
    ):
        ideas.write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError, match=f"^[^ ]*ideas.py cannot be imported: {message}"):
            policy("f")


@pytest.mark.slow
def test_from_a_file_to_a_verdict(ideas, capsys, monkeypatch):
    """The command, a grid and Python share runs; studies begin with the function's defaults."""
    monkeypatch.syspath_prepend(ideas.parent)
    task = ["task=toy_choice", "limit=12", "output_dir=out"]
    overrides = ["method=policy", "method.policy=ideas.py:drop_weakest"]
    ended = run_command(capsys, "-m", *overrides, "method.scale=0,0.5", *task)
    assert "method.scale=0.5 " in ended.out, ended.out
    assert "difference" in ended.out, ended.out
    function = importlib.import_module("ideas").drop_weakest
    results = moe_lab.run(
        policy=function, task="toy_choice", limit=12, output_dir=Path("out"), quiet=True
    )
    assert len(list(Path("out/runs").glob("*policy*"))) == 2, "the first cell of the grid"
    assert list(results.frame()["method"]) == ["base", "policy"]
    search = ["method.space={scale: [0.5, 2]}", "tuning.metric=perplexity", "tuning.num_samples=8"]
    for tuning in (["tuning=grid"], ["tuning=tpe", "tuning.n_trials=3"]):
        for file in ("ideas.py", ideas):  # one study, whose profile has no path
            place = f"method.policy={file}:drop_weakest"
            ended = run_command(capsys, *overrides, place, *search, *tuning, *task)
            assert ended.code == 0, ended.err
            assert "calibrated" not in ended.out, ended.err
    assert len(list(Path("out/studies").iterdir())) == 2


@pytest.mark.parametrize("function", [lambda router, routing: None, 3, len])
def test_python_takes_functions_that_workers_can_import(function):
    with pytest.raises(ConfigError, match="worker processes import the function from its file"):
        moe_lab.run(policy=function, task="toy_choice")


def test_keys_of_python_are_overrides():
    with pytest.raises(ConfigError, match="limit=x: expected an integer"):
        moe_lab.run(
            method="base",
            task="toy_choice",
            limit="x",
            gen_kwargs={"max_gen_toks": 3},
            offline=True,
        )
