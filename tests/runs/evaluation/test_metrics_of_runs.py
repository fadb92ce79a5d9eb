"""Expert metrics of whole runs against what is known of a model: routing that is made by hand, weights that are edited.

Broken by: entropies in other units, tokens that are counted twice or not at all, a masked expert that still takes part,
random routing that changes more than which experts compute.
"""

import json
import math
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from moe_lab.models.memory import ModelPool
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from tests.support.interventions import without_experts
from tests.support.models import make_model, small_model
from tests.support.runs import choices, config, write_jsonl
from tests.support.tiers import by_family

EXPERTS, LAYERS = 8, 3
WIDTH = 16
PROMPT = "Question: {}\nAnswer:"
LOSSES = (("capacity", "least"), ("capacity", "most"))


def metrics_of(model: Any, tokenizer: Any, folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """expert_metrics.json of `method=base metrics=expert` on these questions."""
    write_jsonl(folder / "data" / "arc_easy" / "test.jsonl", rows)
    return json.loads((run(model, tokenizer, folder, metrics="expert") / "expert_metrics.json").read_text())


def accuracy(model: Any, tokenizer: Any, folder: Path) -> float:
    """Of the untouched engine, without any policy."""
    results = json.loads((run(model, tokenizer, folder) / "results.json").read_text())
    return results["results"]["arc_easy"]["acc,none"]


def run(model: Any, tokenizer: Any, folder: Path, **keys: Any) -> Path:
    place = folder / f"model-{len(list(folder.glob('model-*')))}"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return execute(prepare(config(place, folder / "data", folder / "out", **keys)), ModelPool()).path.parent


def routed_by_token(k: int, weight_ED: torch.Tensor) -> Any:
    """A model whose hidden states are those of the token alone: its first 8 numbers say the token id modulo 8, the
    ninth is 1 for all; attention and experts add nothing. `weight_ED` is every layer's router."""
    model = make_model(
        "olmoe",
        hidden_size=WIDTH,
        num_experts=EXPERTS,
        num_experts_per_tok=k,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
            elif name.endswith("mlp.gate.weight"):
                parameter.copy_(weight_ED)
            elif "embed_tokens" in name:
                parameter.zero_()
                parameter[torch.arange(len(parameter)), torch.arange(len(parameter)) % EXPERTS] = 1.0
                parameter[:, EXPERTS] = 1.0
    return model


def balanced(tokenizer: Any, start: str, form: str = "{}") -> str:
    """The text with letters behind it, so that in `form` it has tokens of every remainder by 8 equally often."""
    letters = {tokenizer(letter).input_ids[0] % EXPERTS: letter for letter in string.ascii_letters}
    found = Counter(token % EXPERTS for token in tokenizer(form.format(start)).input_ids)
    most = max(found.values())
    return start + "".join(letters[rest] * (most - found[rest]) for rest in range(EXPERTS))


def questions(count: int, text: Any) -> list[dict[str, Any]]:
    """Questions whose answers all begin alike; one more letter of each is predicted and not read."""
    answers = {"text": [f"one {c}" for c in "xyz"], "label": list("ABC")}
    return [row | {"question": text(n), "choices": answers} for n, row in enumerate(choices(count))]


def balanced_questions(tokenizer: Any) -> list[dict[str, Any]]:
    rows = questions(3, lambda n: balanced(tokenizer, f"{n}", PROMPT))
    read = balanced(tokenizer, "", " {}")
    return [row | {"choices": {"text": [read + c for c in "xyz"], "label": list("ABC")}} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4])
def test_uniform_routing_has_a_load_balance_of_log2_of_the_experts(k, tokenizer, tmp_path):
    weight_ED = torch.zeros(EXPERTS, WIDTH)
    for remainder in range(EXPERTS):
        for place in range(k):  # a token takes the experts that follow its remainder
            weight_ED[(remainder + place) % EXPERTS, remainder] = 10.0 - place
    found = metrics_of(routed_by_token(k, weight_ED), tokenizer, tmp_path, balanced_questions(tokenizer))
    assert found["experts"] == [EXPERTS] * LAYERS and found["top_k"] == [k] * LAYERS
    for phase in ("all", "prefill", "decode"):
        assert found["load_balance"][phase]["value"] == pytest.approx(math.log2(EXPERTS), abs=1e-12)
        layers = found["load_balance"][phase]["layers"]
        assert [one["value"] for one in layers] == pytest.approx([3.0] * LAYERS)
        # an expert goes with those up to k - 1 places away, the nearer the more often
        weights = [k - distance for distance in range(1, k) for _ in (0, 1)]
        expected = -sum(w / sum(weights) * math.log2(w / sum(weights)) for w in weights)
        assert found["collaboration"][phase]["value"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4])
def test_the_same_experts_every_time_have_a_load_balance_of_log2_of_k(k, tokenizer, tmp_path):
    weight_ED = torch.zeros(EXPERTS, WIDTH)
    weight_ED[2 : 2 + k, EXPERTS] = torch.arange(10.0, 10.0 + k)
    asked = questions(4, lambda n: "How? " * (n + 1))
    found = metrics_of(routed_by_token(k, weight_ED), tokenizer, tmp_path, asked)
    for phase in ("all", "prefill", "decode"):
        assert found["load_balance"][phase]["value"] == pytest.approx(math.log2(k), abs=1e-12)
        expected = k * math.log2(max(1, k - 1)) / EXPERTS
        assert found["collaboration"][phase]["value"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "qwen3_moe"]))
def test_capacity_is_what_a_model_without_that_expert_loses(family, tokenizer, tmp_path):
    model = make_model(family)
    found = metrics_of(model, tokenizer, tmp_path, choices(10))
    for _, which in LOSSES:
        capacity = found["capacity"][which]
        loss = capacity["tasks"]["arc_easy"]["acc,none"]
        assert loss["base"] == accuracy(model, tokenizer, tmp_path)
        edited = accuracy(without_experts(model, family, capacity["masked"]), tokenizer, tmp_path)
        assert loss["changed"] == edited
        assert loss["difference"] == pytest.approx(loss["base"] - edited)


@pytest.mark.slow
@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_a_model_whose_experts_are_copies_of_one_has_no_specialization(family, tokenizer, tmp_path):
    model = small_model(family)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".experts." in name:
                    parameter.copy_(parameter[:1].expand_as(parameter))
        found = metrics_of(model, tokenizer, tmp_path, choices(10))
    finally:
        model.load_state_dict(before)
    for metric in found["specialization"]["tasks"]["arc_easy"].values():
        assert metric["difference"] == 0.0
        assert all(one["to_right"] == one["to_wrong"] == 0 for one in metric["runs"])
