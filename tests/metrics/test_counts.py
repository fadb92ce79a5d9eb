"""Counts of whole batches against loops over single tokens, and the values, differences
and intervals of expert metrics.

Broken by: padding that counts, a shared beginning that counts once for several documents, a prompt
that counts once per answer choice, a branch of a tree that is taken for another, a generated
token that is not seen; an entropy in other units, an expert that counts its pairs with itself,
an interval that does not cover the truth, a ratio of totals that is not that of a slow loop,
a difference of two runs that is not over the same documents.
"""

import math
from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t

from moe_lab.engine.forward.forward import observed
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from moe_lab.metrics.counts import PHASES, Counts, SelectedExperts, count
from moe_lab.metrics.differences import differences
from moe_lab.metrics.entropies import LEFT_OUT, mean_over_layers
from moe_lab.metrics.intervals import ratio
from moe_lab.metrics.registry import collaboration, load_balance
from moe_lab.metrics.stored import read_arrays, without_arrays, write_arrays
from moe_lab.results.measured import Value
from moe_lab.results.response_log import request_key
from moe_lab.routing import Router, Routing, record, routed
from tests.support.models import kv_cache_model, small_model
from tests.support.tiers import by_family, first_fast

FAMILIES = ["olmoe", "mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss", "gemma4_text", "llama4_text"]
SHARED = "These are the first words of many. "
NEW_TOKENS = 5

Asked = tuple[str, Request]


def choices(context: str, answers: Sequence[str]) -> list[Asked]:
    return [("loglikelihood", Request((context, answer))) for answer in answers]


def generated(prompt: str) -> list[Asked]:
    options = {"do_sample": False, "max_gen_toks": NEW_TOKENS, "until": []}
    return [("generate_until", Request((prompt, options)))]


DOCUMENTS: list[list[Asked]] = [
    choices(SHARED + "One", [" red", " reddish", " blue"]),
    choices(SHARED + "Another", [" red", " no"]),
    choices("Short", [" yes", " y"]),
    choices("Short", [" yes", " never"]),  # a prompt, and an answer, of two documents
    choices("Left", [" same end"]) + choices("Right side", [" same end"]),
    generated(SHARED + "Go on"),
    generated(SHARED + "Go on and on"),
    generated("On"),
    [("loglikelihood_rolling", Request(("A text of its own.",)))],
]


def seen(
    model: Any, tokenizer: Any, documents: list[list[Asked]], batch_size: int | str = "auto"
) -> SelectedExperts:
    lm = EngineLM(model, tokenizer, batch_size=batch_size, progress=False)
    routes = SelectedExperts()
    with observed(lm, routes):
        for kind in ("loglikelihood", "generate_until", "loglikelihood_rolling"):
            requests = {}
            for asked_kind, request in chain.from_iterable(documents):
                if asked_kind == kind:
                    requests[request_key(kind, request.args, request.repeat)] = request
            lm.answer(kind, list(requests.values()), lambda index, answer: None)
    return routes


def keys_of(document: list[Asked]) -> list[str]:
    return [request_key(kind, request.args, request.repeat) for kind, request in document]


def counted(
    routes: SelectedExperts, documents: list[list[Asked]], groups: int | None = None
) -> Counts:
    return count(routes, [keys_of(document) for document in documents], groups)


def entropy(counts: Sequence[int]) -> float:
    total = sum(counts)
    return -sum(c / total * math.log2(c / total) for c in counts if c)


def brute(
    model: Any,
    lm: EngineLM,
    documents: list[list[Asked]],
    shape: tuple[int, ...],
    top_k: int | None = None,
) -> Any:
    """Pairs [P, L, E, E] that are counted token by token; the diagonal has the single experts.

    Args:
        top_k: the number of experts of a token that count, the first ones; default: all.
    """
    pairs_PLEE = np.zeros(shape, dtype=int)

    def add(phase: int, routes: Any, tokens: slice) -> None:
        for layer, index_TK in enumerate(routes.indices):
            for experts in index_TK[tokens, :top_k].tolist():
                for i, j in product(experts, experts):
                    pairs_PLEE[phase, layer, i, j] += 1

    for document in documents:
        prompts: set[tuple[int, ...]] = set()
        for kind, request in document:
            prompt, answer = tokens_of(model, lm, kind, request)
            with record(model) as routes, torch.inference_mode():
                model(torch.tensor([[*prompt, *answer]]))
            if prompt not in prompts:
                add(PHASES.index("prefill"), routes, slice(len(prompt)))
            prompts.add(prompt)
            add(PHASES.index("decode"), routes, slice(len(prompt), None))
    return pairs_PLEE


def tokens_of(
    model: Any, lm: EngineLM, kind: str, request: Request
) -> tuple[tuple[int, ...], list[int]]:
    """A request's prompt, and those tokens of its answer that are read."""
    if kind == "loglikelihood":
        context, continuation = lm.encode_pair(*request.args)
        return context, list(continuation[:-1])
    if kind == "loglikelihood_rolling":
        ids = lm.tok_encode(request.args[0])
        return (lm.prefix_token_id,), ids[:-1]
    ids = lm.tok_encode(request.args[0])
    answer: list[int] = []
    for _ in range(NEW_TOKENS):
        with torch.inference_mode():
            answer.append(int(model(torch.tensor([[*ids, *answer]])).logits[0, -1].argmax()))
        if answer[-1] == lm.eot_token_id:
            break
    return tuple(ids), answer[:-1]


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_counts_are_those_of_documents_read_alone(family, tokenizer):
    model = kv_cache_model(family)
    counts = counted(seen(model, tokenizer, DOCUMENTS), DOCUMENTS)
    pairs_PLEE = counts.pairs_GPLEE.sum(axis=0)
    expected = brute(model, EngineLM(model, tokenizer, progress=False), DOCUMENTS, pairs_PLEE.shape)
    assert (pairs_PLEE == expected).all()
    assert all(counts.tokens_P)
    assert expected.any(axis=(1, 2, 3)).all()
    for pairs_LEE in expected:
        singles_LE = np.diagonal(pairs_LEE, axis1=-2, axis2=-1)
        metric = load_balance(singles_LE.astype(float), counts.experts)
        assert metric.tolist() == pytest.approx(list(map(entropy, singles_LE.tolist())), abs=1e-12)
        others_LEE = pairs_LEE * (1 - np.eye(pairs_LEE.shape[-1], dtype=int))
        metric = collaboration(pairs_LEE.astype(float), counts.experts)
        for layer, E in enumerate(counts.experts):
            mean = sum(map(entropy, others_LEE[layer].tolist())) / E
            assert metric[layer] == pytest.approx(mean, abs=1e-12)


def test_shared_experts_are_not_counted(tokenizer):
    counts = counted(seen(small_model("qwen2_moe"), tokenizer, DOCUMENTS[:2]), DOCUMENTS[:2])
    top_k = small_model("qwen2_moe").config.num_experts_per_tok
    assert counts.experts == [8] * 3  # of four layers one is dense
    assert counts.selections_GPLE.sum(axis=(0, 3)).tolist() == [
        [n * top_k] * 3 for n in counts.tokens_P
    ]


def test_experts_with_a_weight_of_0_are_not_counted(tokenizer):
    """Under a policy that gives the first expert of each token all weight."""

    def first_alone(router: Router, routing: Routing) -> Routing:
        weights_TK = torch.zeros_like(routing.weights_TK)
        weights_TK[:, 0] = 1.0
        return routing._replace(weights_TK=weights_TK)

    model = small_model("olmoe")
    documents = DOCUMENTS[:3]
    with routed(model, first_alone):
        counts = counted(seen(model, tokenizer, documents), documents)
        pairs_PLEE = counts.pairs_GPLEE.sum(axis=0)
        lm = EngineLM(model, tokenizer, progress=False)
        expected = brute(model, lm, documents, pairs_PLEE.shape, top_k=1)
    assert (pairs_PLEE == expected).all()
    for selections_LE, tokens in zip(
        counts.selections_GPLE.sum(axis=0), counts.tokens_P, strict=True
    ):
        assert selections_LE.sum(axis=1).tolist() == [tokens] * len(counts.experts)


def test_neither_batches_nor_order_nor_groups_change_the_sums(tokenizer):
    model = small_model("olmoe")
    counts = counted(seen(model, tokenizer, DOCUMENTS), DOCUMENTS)
    backwards = DOCUMENTS[::-1]
    for batch_size in (1, 3):
        backward_counts = counted(
            seen(model, tokenizer, backwards, batch_size), backwards, groups=2
        )
        assert backward_counts.pairs_GPLEE.shape[0] == 2
        assert (backward_counts.pairs_GPLEE.sum(axis=0) == counts.pairs_GPLEE.sum(axis=0)).all()
        assert backward_counts.tokens_P == counts.tokens_P
    first_counts = counted(seen(model, tokenizer, DOCUMENTS[:1]), DOCUMENTS[:1])
    assert (first_counts.pairs_GPLEE[0] == counts.pairs_GPLEE[0]).all()


def test_a_model_that_does_not_run_as_rows_is_refused(tokenizer):
    lm = EngineLM(small_model("jamba"), tokenizer, progress=False)
    with pytest.raises(ConfigError, match="metrics=expert"), observed(lm, SelectedExperts()):
        pass


def test_long_documents_count_by_their_tokens():
    sums = [3.0, -1.0, 2.0, 8.0]
    tokens = [1, 5, 4, 10]
    estimate = ratio(np.array(sums), np.array(tokens))
    value = sum(sums) / sum(tokens)
    squares = sum((total - value * count) ** 2 for total, count in zip(sums, tokens, strict=True))
    half = t.ppf(0.975, 3) * (4 * squares / 3) ** 0.5 / sum(tokens)
    assert estimate.value == pytest.approx(value)
    assert estimate.interval == pytest.approx([value - half, value + half])


E = 8


def test_a_layer_with_fewer_experts_is_a_mean_over_its_own():
    pairs = np.zeros((2, 4, 4))
    pairs[:, :3, :3] = 1
    assert collaboration(pairs, [3, 4]) == pytest.approx([1.0, 0.75])


def test_nothing_counted_is_nothing_measured_and_one_document_has_no_interval():
    assert ratio(np.zeros(0), np.zeros(0)) == Value(value=None)
    assert ratio(np.array([2.0]), np.array([4])) == Value(value=0.5)
    assert mean_over_layers(np.zeros((3, 1, E)), [E], load_balance, [3.0]) is None
    estimate = mean_over_layers(np.ones((1, 1, E)), [E], load_balance, [3.0])
    assert estimate["value"] == pytest.approx(3.0)
    assert estimate["ci95"] is None


def test_the_jackknife_is_that_of_its_definition():
    """Against a loop over documents, on several layers of which one has fewer experts."""
    random = np.random.default_rng(3)
    counts = random.integers(0, 5, size=(7, 2, E))
    counts[:, 1, 6:] = 0
    counts[2] = 0  # a document without tokens says nothing
    estimate = mean_over_layers(counts, [E, 6], load_balance, [math.log2(E), math.log2(6)])
    counts_without = np.delete(counts, 2, axis=0)
    without = np.array(
        [load_balance(np.delete(counts_without, g, axis=0).sum(axis=0), [E, 6]) for g in range(6)]
    )
    whole = load_balance(counts_without.sum(axis=0), [E, 6])
    for layer in range(2):
        pseudo = 6 * whole[layer] - 5 * without[:, layer]
        half = 2.570582 * pseudo.std(ddof=1) / 6**0.5  # Student's, 5 degrees of freedom
        layer_metric = estimate["layers"][layer]
        assert layer_metric["counted"] == pytest.approx(whole[layer])
        assert layer_metric["value"] == pytest.approx(min(pseudo.mean(), layer_metric["maximum"]))
        assert layer_metric["ci95"] == pytest.approx(
            [pseudo.mean() - half, min(pseudo.mean() + half, layer_metric["maximum"])]
        )
    assert estimate["counted"] == pytest.approx(whole.mean())


def documents(random: np.random.Generator, count: int) -> np.ndarray:
    """Pairs [count, 1, E, E] of documents with 20 tokens each.

    The tokens of a document take 3 of 8 experts by the document's preferences.
    """
    kinds = random.dirichlet(np.full(E, 4.0), size=count)
    noisy = np.log(kinds)[:, None] + random.gumbel(size=(count, 20, E))
    chosen = np.argsort(-noisy, axis=-1)[..., :3]
    chosen_experts = np.zeros((count, 20, E), dtype=np.int64)
    np.put_along_axis(chosen_experts, chosen, 1, axis=-1)
    return np.einsum("nte,ntf->nef", chosen_experts, chosen_experts)[:, None]


@pytest.mark.parametrize("n", first_fast([100, 500]))
@pytest.mark.parametrize("metric", [load_balance, collaboration])
def test_intervals_cover_the_value_of_all_documents(n, metric):
    """In 400 samples of documents: with 95% coverage, fewer than 364 (91%) or more than 396
    have odds below 1 in 1,000.

    An interval that ignored documents' differences, or the bias of entropies
    of counts, would cover far less.
    """
    random = np.random.default_rng(1)
    everything = documents(random, 20_000)
    pick = (
        (lambda pairs: np.diagonal(pairs, axis1=-2, axis2=-1))
        if metric is load_balance
        else (lambda x: x)
    )
    truth = float(metric(pick(everything.sum(axis=0)), [E]).mean())
    covered = 0
    for _ in range(400):
        counts = pick(everything[random.integers(len(everything), size=n)])
        estimate = mean_over_layers(counts, [E], metric, [math.log2(E)])
        assert estimate is not None
        assert estimate["ci95"][0] <= estimate["value"] <= estimate["ci95"][1]
        covered += estimate["ci95"][0] <= truth <= estimate["ci95"][1]
    assert 364 <= covered <= 396


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (None, r"amax returned the shape \(\) for counts of the shape \(2, 3\): expected \(2,\)"),
        (0, r"amax returned the shape \(3,\) for counts of the shape \(2, 3\): expected \(2,\)"),
    ],
)
def test_a_metric_that_has_no_value_for_each_layer_is_named(axis, message):
    def amax(counts: np.ndarray, experts: Sequence[int]) -> np.ndarray:
        return np.max(counts, axis=axis)

    with pytest.raises(ValueError, match=message):
        mean_over_layers(np.ones((4, 2, 3)), [3, 3], amax, [1.0, 1.0])


def test_a_metric_that_ignores_the_groups_of_documents_is_named():
    def first_axis(counts: np.ndarray, experts: Sequence[int]) -> np.ndarray:
        return counts[0] if counts.ndim == 3 else counts.max(axis=-1)

    message = r"first_axis returned the shape \(2, 3\) .* \(4, 2, 3\): expected \(4, 2\), one value"
    with pytest.raises(ValueError, match=message):
        mean_over_layers(np.ones((4, 2, 3)), [3, 3], first_axis, [1.0, 1.0])


def left_out(counts: np.ndarray) -> dict[str, np.ndarray]:
    return {
        f"load_balance/all/{LEFT_OUT}": mean_over_layers(counts, [E], load_balance, [math.log2(E)])[
            LEFT_OUT
        ]
    }


def test_arrays_leave_the_mapping_and_come_back(tmp_path):
    first_array = np.arange(3.0)
    second_array = np.ones((2, 4))
    plain, arrays = without_arrays(
        {"a": {"b": first_array, "c": 1}, "d": second_array, "e": None, "f": [{}]}
    )
    assert plain == {"a": {"c": 1}, "e": None, "f": [{}]}
    write_arrays(tmp_path, arrays)
    read_back = read_arrays(tmp_path)
    assert read_back.keys() == {"a/b", "d"}
    assert (read_back["a/b"] == first_array).all()
    assert (read_back["d"] == second_array).all()


def test_the_jackknife_of_a_difference_is_a_loop_over_documents():
    random = np.random.default_rng(0)
    counts_a, counts_b = random.integers(0, 5, size=(2, 7, 1, E))
    counts_a[2] = counts_b[2] = 0  # a document without tokens in both says nothing
    counts_a[4] = 0
    kept_documents = [g for g in range(7) if g != 2]

    def value(documents: list[int]) -> float:
        [value_a] = load_balance(counts_a[documents].sum(0), [E])
        [value_b] = load_balance(counts_b[documents].sum(0), [E])
        return float(value_a - value_b)

    pseudo_values = []
    for left_out_document in kept_documents:
        other_documents = [g for g in kept_documents if g != left_out_document]
        pseudo_values.append(6 * value(kept_documents) - 5 * value(other_documents))
    pseudo = np.array(pseudo_values)
    half = 2.570582 * pseudo.std(ddof=1) / 6**0.5  # Student's, 5 degrees of freedom
    difference = differences(left_out(counts_a), left_out(counts_b))["load_balance/all"]
    assert difference["difference"] == pytest.approx(pseudo.mean())
    assert difference["ci95"] == pytest.approx([pseudo.mean() - half, pseudo.mean() + half])


@pytest.mark.parametrize("R", (1, 3))
def test_the_difference_of_two_losses(R):
    random = np.random.default_rng(1)
    scores_a, scores_b = random.integers(2, size=(2, 1 + R, 200)).astype(float)
    path = "capacity/least/tasks/t/acc,none"
    difference = differences({f"{path}/scores": scores_a}, {f"{path}/scores": scores_b})[path]
    losses = [scores[0] - scores[1:].mean(axis=0) for scores in (scores_a, scores_b)]
    by_document = losses[0] - losses[1]
    assert difference["difference"] == pytest.approx(by_document.mean())
    mean = by_document.mean()
    half = 1.96 * by_document.std() / 200**0.5
    assert difference["ci95"] == pytest.approx([mean - half, mean + half], abs=0.1 * half)


def test_equal_runs_do_not_differ_and_other_documents_have_no_difference():
    arrays = left_out(np.random.default_rng(2).integers(0, 5, size=(9, 1, E)))
    assert differences(arrays, arrays) == {
        "load_balance/all": {"difference": 0.0, "ci95": [0.0, 0.0]}
    }
    equal_scores = {"x/scores": np.ones((2, 100))}
    difference = differences(equal_scores, equal_scores)["x"]
    assert difference["difference"] == 0.0
    assert difference["ci95"][0] < 0 < difference["ci95"][1], "Tango's interval has a width"
    groups_of_4 = left_out(np.ones((4, 1, E), dtype=int))
    groups_of_5 = left_out(np.ones((5, 1, E), dtype=int))
    assert differences(groups_of_4, groups_of_5) == {}
    assert differences(groups_of_4, {}) == {}
