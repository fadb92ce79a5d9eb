"""Routes and their replay.

Broken by: a token that gets the experts of another text or position, weights that are not the
router's, a gradient that misses the router, a layer that is computed again for other tokens, a file
or an engine's answer that is read in another order.
"""

import base64
import json
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import Trainer, TrainingArguments

from moe_lab import compare_routes, override, record, replay
from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing.routes import Routes, moe_layers_of
from tests.support.models import small_model

FAMILIES = [
    "olmoe",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v3",
    "phimoe",
    "ernie4_5_moe",
    "granitemoe",
]
IDS = torch.arange(27).view(3, 9) * 7 % 200
MASK = torch.ones_like(IDS)
MASK[0, :4] = 0
MASK[2, :2] = 0
LABELS = IDS.masked_fill(MASK == 0, -100)


def routes_of(model: Any) -> Routes:
    """The routes of three texts of 5, 9 and 7 tokens."""
    with torch.no_grad(), record(model) as routes:
        model(IDS, attention_mask=MASK)
    return routes


def shuffled(routes: Routes, experts: int) -> Routes:
    """Other experts for every token, which no router would choose."""
    torch.manual_seed(1)
    indices = []
    for index_NK in routes.indices:
        k = index_NK.shape[1]
        order = torch.rand(len(index_NK), experts).argsort(-1)
        indices.append(order[:, :k])
    return Routes(routes.token_ids, indices, sequences=routes.sequences, positions=routes.positions)


def gradients(model: Any) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad
    model.zero_grad()
    return found


def assert_gradients_equal(given: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert given.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name in expected:
        torch.testing.assert_close(given[name], expected[name], atol=1e-5 * largest, rtol=1e-4)


def by_hand(routes: Routes, rows: Tensor) -> Any:
    """A policy with the experts of these rows of routes, in the order of the tokens of a pass."""

    def policy(router: Any, routing: Any) -> Any:
        index_TK = routing.index_TK.clone()
        is_given = rows >= 0
        index_TK[is_given] = routes.indices[router.layer][rows[is_given]]
        weights_TK = router.weights(routing.logits_TE, index_TK)
        return routing._replace(index_TK=index_TK, weights_TK=weights_TK)

    return policy


ROWS = torch.full((3, 9), -1)
ROWS[0, 4:] = torch.arange(5)
ROWS[1] = torch.arange(5, 14)
ROWS[2, 2:] = torch.arange(14, 21)
"""The row of each token of IDS in its routes."""


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_given_experts(family, is_checkpointed):
    """Padding, and micro-batches in another order than that of the routes."""
    model = deepcopy(small_model(family)).train()
    routes = shuffled(routes_of(model), experts=4)
    with override(model, by_hand(routes, ROWS.flatten())):
        loss = model(IDS, attention_mask=MASK, labels=LABELS).loss
        loss.backward()
    expected = gradients(model)
    assert any("gate" in name or "router" in name for name in expected)

    if is_checkpointed:
        model.activation_checkpointing_enable()
    tokens = (LABELS[:, 1:] != -100).sum()
    with replay(model, routes) as replayed:
        losses = []
        for row in (2, 0, 1):
            inputs = {"attention_mask": MASK[[row]], "labels": LABELS[[row]]}
            share = (LABELS[row, 1:] != -100).sum() / tokens
            losses.append(model(IDS[[row]], **inputs).loss * share)
        total = sum(losses)
        total.backward()
    torch.testing.assert_close(total, loss)
    assert_gradients_equal(gradients(model), expected)
    assert (replayed.tokens, replayed.without_routes) == (21, 0)


def test_other_ways_of_computing_layers_again(olmoe):
    """Reentrant checkpointing is transformers', too; a user's own is refused."""
    model = deepcopy(olmoe).train()
    routes = shuffled(routes_of(model), experts=8)
    with override(model, by_hand(routes, ROWS.flatten())):
        model(IDS, attention_mask=MASK, labels=LABELS).loss.backward()
    expected = gradients(model)
    model.activation_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    with replay(model, routes):
        for row in (2, 0, 1):
            share = (LABELS[row, 1:] != -100).sum() / (LABELS[:, 1:] != -100).sum()
            inputs = {"attention_mask": MASK[[row]], "labels": LABELS[[row]]}
            (model(IDS[[row]], **inputs).loss * share).backward()
    assert_gradients_equal(gradients(model), expected)

    model.activation_checkpointing_disable()

    def whole_model(ids: Tensor) -> Tensor:
        return model(ids).logits.sum()

    with replay(model, routes):
        loss = checkpoint(whole_model, IDS, use_reentrant=False)
        with pytest.raises(RoutingError, match="by other code than transformers'"):
            loss.backward()


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("family", ["olmoe", "gpt_oss"])
def test_adapters_are_trained_by_the_given_experts(family, is_checkpointed):
    base = deepcopy(small_model(family))
    routes = shuffled(routes_of(base), experts=4)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}
    with override(model, by_hand(routes, ROWS.flatten())):
        model(**inputs).loss.backward()
    expected = gradients(model)
    if is_checkpointed:
        base.activation_checkpointing_enable()
    with replay(model, routes):
        model(**inputs).loss.backward()
    assert_gradients_equal(gradients(model), expected)


def test_routes_in_parts_are_those_of_one(olmoe):
    routes = shuffled(routes_of(olmoe), experts=8)
    parts = []
    for number in (2, 0, 1):
        is_text = routes.sequences == number
        indices = [index_NK[is_text] for index_NK in routes.indices]
        parts.append(Routes(routes.token_ids[is_text], indices))
    with torch.no_grad(), replay(olmoe, routes):
        expected = olmoe(IDS, attention_mask=MASK).logits
    with torch.no_grad(), replay(olmoe, [*parts, routes]) as replayed:
        logits = olmoe(IDS, attention_mask=MASK).logits
    assert torch.equal(logits[MASK.bool()], expected[MASK.bool()])
    assert replayed.tokens == 21
    joined = Routes.join([routes, routes])
    assert joined.sequences.tolist() == [*routes.sequences, *(routes.sequences + 3)]
    assert joined.weights is None
    of_model = routes_of(olmoe)
    for layer, weights_NK in enumerate(Routes.join([of_model, of_model]).weights):
        assert torch.equal(weights_NK[21:], of_model.weights[layer])
    one_expert = [index_NK[:, :1] for index_NK in routes.indices]
    with pytest.raises(RoutingError, match="next to routes with .2, 2, 2, 2."):
        replayed.add(Routes(routes.token_ids, one_expert))
    with pytest.raises(RoutingError, match="3 MoE layers, and the model has 4"):
        replayed.add(Routes(routes.token_ids, routes.indices[:3]))


def test_packed_texts_have_their_routes(olmoe):
    routes = shuffled(routes_of(olmoe), experts=8)
    packed = torch.cat([IDS[2, 2:], IDS[0, 4:]])[None]
    positions = torch.tensor([[*range(7), *range(5)]])
    rows = torch.cat([ROWS[2, 2:], ROWS[0, 4:]])
    with torch.no_grad(), override(olmoe, by_hand(routes, rows)):
        expected = olmoe(packed, position_ids=positions).logits
    with torch.no_grad(), replay(olmoe, routes) as replayed:
        logits = olmoe(packed, position_ids=positions).logits
    assert torch.equal(logits, expected)
    assert (replayed.tokens, replayed.without_routes) == (12, 0)


def test_a_text_that_goes_on_has_routes_for_its_beginning(olmoe):
    routes = shuffled(routes_of(olmoe), experts=8)
    longer = torch.cat([IDS[1], torch.tensor([3, 1, 4])])[None]
    rows = torch.cat([ROWS[1], torch.full((3,), -1)])
    with torch.no_grad(), override(olmoe, by_hand(routes, rows)):
        expected = olmoe(longer).logits
    with torch.no_grad(), replay(olmoe, routes) as replayed:
        logits = olmoe(longer).logits
        # the same tokens at the same positions after another first token are another text
        olmoe(torch.cat([longer[:, :1] + 1, longer[:, 1:]], dim=1))
        # and with a cache, token by token
        cache = None
        steps = []
        for place in range(longer.shape[1]):
            output = olmoe(longer[:, [place]], cache=cache, use_cache=True)
            cache = output.cache
            steps.append(output.logits)
    assert torch.equal(logits, expected)
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=1e-4)
    assert (replayed.tokens, replayed.without_routes) == (18, 18)


def test_routes_may_have_another_number_of_experts(olmoe):
    """Of every third layer one expert, of the others two and three; the model has two."""
    routes = routes_of(olmoe)
    ks = [1 + layer % 3 for layer in range(4)]
    indices = []
    for k in ks:
        indices.append(torch.rand(21, 8).argsort(-1)[:, :k])
    given = Routes(
        routes.token_ids, indices, sequences=routes.sequences, positions=routes.positions
    )
    text = IDS[1][None]
    with torch.no_grad(), replay(olmoe, given), record(olmoe) as recorded:
        olmoe(text)
    for layer, k in enumerate(ks):
        rows = indices[layer][5:14]
        weights_NK = recorded.weights[layer]
        used_NK = recorded.indices[layer]
        for token in range(9):
            used = used_NK[token][weights_NK[token] != 0]
            assert sorted(used.tolist()) == sorted(rows[token].tolist())
            assert len(used) == k


def test_a_trainer_replays_the_routes_of_its_examples(tmp_path):
    model = deepcopy(small_model("olmoe"))
    routes = shuffled(routes_of(model), experts=8)
    examples = []
    for number in range(3):
        is_text = routes.sequences == number
        of_text = Routes(
            routes.token_ids[is_text], [index_NK[is_text] for index_NK in routes.indices]
        )
        examples.append({"input_ids": routes.token_ids[is_text], "routes": of_text})

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        [row] = rows
        return {"input_ids": row["input_ids"][None], "labels": row["input_ids"][None]}

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=1,
        num_train_epochs=2,
        gradient_accumulation_steps=2,
        activation_checkpointing=True,
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    with replay(model) as replayed:
        trainer = Trainer(
            model, arguments, data_collator=replayed.collator(collate), train_dataset=examples
        )
        trainer.train()
    assert (replayed.tokens, replayed.without_routes) == (42, 0)
    function = model.model.layers[0]._gradient_checkpointing_func
    assert isinstance(function, partial), "transformers' own is back"


# Files, engines


def assert_same(routes: Routes, expected: Routes) -> None:
    assert torch.equal(routes.token_ids, expected.token_ids)
    assert torch.equal(routes.sequences, expected.sequences)
    assert torch.equal(routes.positions, expected.positions)
    for index_NK, expected_NK in zip(routes.indices, expected.indices, strict=True):
        assert torch.equal(index_NK, expected_NK)


def test_a_file_has_all_of_them(olmoe, tmp_path):
    routes = routes_of(olmoe)
    routes.save(tmp_path / "routes.safetensors")
    loaded = Routes.load(tmp_path / "routes.safetensors")
    assert_same(loaded, routes)
    assert loaded.experts == routes.experts == [8] * 4
    for name in ("weights", "logits"):
        for tensor, expected in zip(getattr(loaded, name), getattr(routes, name), strict=True):
            assert torch.equal(tensor, expected)
    (tmp_path / "other").write_bytes(b"no safetensors")
    with pytest.raises(ModelError, match="cannot be read"):
        Routes.load(tmp_path / "other")


def experts_of_all_layers(model: Any, tokens: int) -> np.ndarray:
    """[tokens, decoder layers, k], zeros for dense layers, as engines return them."""
    torch.manual_seed(3)
    moe_layers = moe_layers_of(model)
    layers = model.config.num_hidden_layers
    k = model.config.num_experts_per_tok
    experts = np.zeros((tokens, layers, k), dtype=np.int16)
    for layer in moe_layers:
        experts[:, layer] = torch.rand(tokens, 4).argsort(-1)[:, :k]
    return experts


def test_routes_of_vllm_and_sglang_are_read():
    """DeepSeek-V3, whose first layer is dense. The last token has no route: no engine reads it."""
    model = small_model("deepseek_v3")
    moe_layers = moe_layers_of(model)
    assert 0 not in moe_layers
    prompt, first, second = [5, 6, 7], [8, 9], [10, 11, 12]
    experts = experts_of_all_layers(model, 3 + 3 - 1)
    completions = []
    for ids in (first, second):
        completions.append(SimpleNamespace(token_ids=ids, routed_experts=experts[3 : 2 + len(ids)]))
        completions[-1].routed_experts = experts[3 : 3 + len(ids) - 1]
    output = SimpleNamespace(
        prompt_token_ids=prompt, prompt_routed_experts=experts[:3], outputs=completions
    )
    routes = Routes.from_vllm(output, model)
    assert routes.token_ids.tolist() == [5, 6, 7, 8, 5, 6, 7, 10, 11]
    assert routes.sequences.tolist() == [0] * 4 + [1] * 5
    assert routes.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    for place, layer in enumerate(moe_layers):
        expected = np.concatenate([experts[:4, layer], experts[:5, layer]])
        assert routes.indices[place].tolist() == expected.tolist()

    encoded = base64.b64encode(experts.astype(np.int32).tobytes()).decode()
    response = {"text": "...", "meta_info": {"routed_experts": encoded}}
    of_sglang = Routes.from_sglang(response, prompt + second, model)
    assert of_sglang.token_ids.tolist() == [5, 6, 7, 10, 11]
    for place, layer in enumerate(moe_layers):
        assert of_sglang.indices[place].tolist() == experts[:, layer].tolist()


def test_a_rollout_is_read_line_by_line(olmoe, tmp_path):
    routes = routes_of(olmoe)
    lines = []
    for number in range(3):
        is_text = routes.sequences == number
        experts = torch.stack([index_NK[is_text] for index_NK in routes.indices], dim=1)
        text = {
            "token_ids": routes.token_ids[is_text].tolist(),
            "routed_experts": experts.tolist(),
        }
        lines.append(json.dumps(text))
    file = tmp_path / "rollout.jsonl"
    file.write_text("\n".join(lines))
    assert_same(Routes.from_json_lines(file, olmoe), routes)
    file.write_text('{"token_ids": [1]}')
    with pytest.raises(ModelError, match="rollout.jsonl cannot be read: .*routed_experts"):
        Routes.from_json_lines(file, olmoe)


def test_routes_that_do_not_fit_are_refused(olmoe):
    routes = routes_of(olmoe)
    ids = routes.token_ids
    with pytest.raises(RoutingError, match="21 token_ids, and a tensor for 20 tokens"):
        Routes(ids, [index_NK[1:] for index_NK in routes.indices])
    with pytest.raises(RoutingError, match="which are no numbers of experts"):
        Routes(ids, [-index_NK - 1 for index_NK in routes.indices])
    with pytest.raises(RoutingError, match="Routes of 3 MoE layers, and the model has 4"):
        replay(olmoe, Routes(ids, routes.indices[:3])).__enter__()
    with pytest.raises(RoutingError, match="an expert 8, and the model has 8"):
        replay(olmoe, Routes(ids, [index_NK * 0 + 8 for index_NK in routes.indices])).__enter__()
    with pytest.raises(RoutingError, match="expected .tokens, layers, experts of a token"):
        Routes.of_text([1, 2, 3], np.zeros((1, 4, 2)), olmoe)
    with pytest.raises(RoutingError, match="Experts of 5 layers"):
        Routes.of_text([1, 2, 3], np.zeros((3, 5, 2)), olmoe)
    response = {"meta_info": {"routed_experts": base64.b64encode(bytes(4 * 9)).decode()}}
    with pytest.raises(RoutingError, match="9 experts, which are no rows of 4 layers with 2"):
        Routes.from_sglang(response, [1, 2], olmoe)
    with pytest.raises(RoutingError, match="call the model with input_ids"), replay(olmoe, routes):
        olmoe(inputs_embeds=torch.zeros(1, 2, olmoe.config.hidden_size))


# How far they differ


def test_routes_of_the_model_itself_do_not_differ(olmoe):
    compared = compare_routes(olmoe, routes_of(olmoe))
    assert compared.differing == [0.0] * 4
    assert len(compared.log_probabilities) == 4 + 8 + 6
    torch.testing.assert_close(compared.replayed, compared.log_probabilities)


def test_the_share_of_other_experts_is_counted(olmoe):
    """One expert of 7 of 21 tokens is another one in layer 2, and the order is in layer 3."""
    routes = routes_of(olmoe)
    indices = [index_NK.clone() for index_NK in routes.indices]
    for token in range(0, 21, 3):
        first, second = indices[2][token].tolist()
        indices[2][token, 1] = next(e for e in range(8) if e not in (first, second))
    indices[3] = indices[3].flip(-1)
    changed = Routes(
        routes.token_ids, indices, sequences=routes.sequences, positions=routes.positions
    )
    compared = compare_routes(olmoe, changed)
    assert compared.differing == pytest.approx([0.0, 0.0, 1 / 3, 0.0])
    assert compared.mean_difference > 0
    text = IDS[1][None]
    with torch.no_grad(), override(olmoe, by_hand(changed, ROWS[1])):
        logits = olmoe(text).logits[0, :-1].double().log_softmax(-1)
    expected = logits.gather(-1, text[0, 1:, None])[:, 0]
    torch.testing.assert_close(compared.replayed[4:12], expected)
    assert "33.33%" in str(compared)
