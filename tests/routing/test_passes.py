"""Models in PEFT's wrapper run as the models inside, with their adapters; tokens of a pass follow
from its inputs; a record has the decision for every token, in whatever passes it is read.

Broken by: hooks on a module that PEFT does not call, a frozen original in place of the trained
copy, adapters left out, positions that ignore mask or cache, decisions of another token,
sequence or layer, padding that is counted.
"""

import copy

import pytest
import torch
from lm_eval.api.instance import Instance
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import GenerationConfig, OlmoeForCausalLM, PretrainedConfig

import moe_lab
from moe_lab import C3PO, RoE, expert_metrics, freeze, override, record
from moe_lab.errors import ConfigError, ModelError, RoutingError
from moe_lab.routing import find_routers
from moe_lab.routing.passes import pass_tokens
from tests.support import rounding
from tests.support.models import left_padded, make_model, small_model
from tests.support.tiers import by_family, first_fast

PAIRS = [("two and two", " four"), ("one and one are", " two"), ("a cat is", " an animal")]
IDS = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
KINDS = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "causal": {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"},
    "router": {
        "target_modules": ["q_proj"],
        "target_parameters": ["mlp.gate.weight", "mlp.experts.down_proj"],
    },
    "router-copied": {"target_modules": ["q_proj"], "modules_to_save": ["gate"]},
}


@pytest.fixture(params=first_fast(reversed(KINDS)))
def kind(request):
    return request.param


@pytest.fixture
def peft(kind):
    torch.manual_seed(0)
    lora = LoraConfig(r=2, init_lora_weights=False, **KINDS[kind])
    model = get_peft_model(make_model("olmoe"), lora).eval()
    with torch.no_grad():
        for router in find_routers(model) if kind == "router-copied" else ():
            router.module.weight.normal_(0, 0.3)
    return model


@pytest.fixture
def merged(peft):
    """The same model without wrappers."""
    return copy.deepcopy(peft).merge_and_unload().eval()


def shifted(router, routing):
    return routing._replace(index_TK=(routing.index_TK + 1) % routing.logits_TE.shape[-1])


def test_ensembles_are_those_of_the_merged_model(peft, merged, tokenizer):
    peft_roe = RoE(peft, tokenizer, n=3, temperature=0.7)
    merged_roe = RoE(merged, tokenizer, n=3, temperature=0.7)
    arguments = "what is", [" a cat", "b"]
    assert peft_roe.loglikelihood(*arguments) == rounding.approx(
        merged_roe.loglikelihood(*arguments), tokens=6
    )
    text = peft_roe.generate(["hello", "what is"], max_new_tokens=5)
    assert text == merged_roe.generate(["hello", "what is"], max_new_tokens=5)
    ids = peft.generate(
        **left_padded(tokenizer, ["hello", "what is"]), custom_generate=peft_roe, max_new_tokens=5
    )
    assert tokenizer.batch_decode(ids[:, -5:], skip_special_tokens=True) == text
    keys = {"k": 2, "layers": "last2", "steps": 1, "core_experts": 4}
    results = [
        C3PO(model, tokenizer, PAIRS, **keys).loglikelihood(*arguments) for model in (peft, merged)
    ]
    assert results[0] == rounding.approx(results[1], tokens=6)
    request = [Instance("loglikelihood", {}, ("what is", " a cat"), idx=0, task_name="", doc_id=0)]
    lms = [moe_lab.lm(model, tokenizer, "roe", n=2) for model in (peft, merged)]
    results = [lm.loglikelihood(request)[0][0] for lm in lms]
    assert results[0] == rounding.approx(results[1], tokens=6)


def test_routing_is_recorded_and_overridden(peft, merged):
    with torch.no_grad():
        with record(peft) as routes:
            first = peft(input_ids=IDS).logits
            peft.generate(input_ids=IDS, max_new_tokens=3, do_sample=False, eos_token_id=None)
        with record(merged) as expected:
            merged(input_ids=IDS)
            merged.generate(input_ids=IDS, max_new_tokens=3, do_sample=False, eos_token_id=None)
        assert torch.equal(routes.sequences, expected.sequences)
        assert torch.equal(routes.positions, expected.positions)
        for a, b in zip(routes.indices, expected.indices, strict=True):
            assert torch.equal(a, b)
        with override(peft, shifted):
            changed = peft(input_ids=IDS).logits
        with override(merged, shifted):
            torch.testing.assert_close(changed, merged(input_ids=IDS).logits, atol=1e-4, rtol=0)
    assert not torch.allclose(changed, first, atol=1e-2)


def test_metrics_and_contexts_are_those_of_the_model_inside(peft, merged, tokenizer):
    texts = ["what is a cat", "hello"]
    metrics = expert_metrics(peft, texts, tokenizer)
    expected = expert_metrics(merged, texts, tokenizer)
    assert metrics["load_balance"] == expected["load_balance"]
    roe = RoE(peft.get_base_model(), tokenizer, n=2)
    with pytest.raises(RoutingError, match="inside record"), record(peft):
        roe.loglikelihood("a", "b")


def trainable(model):
    return {name for name, value in model.named_parameters() if value.requires_grad}


def test_a_group_has_its_adapters(peft, kind):
    trained = trainable(peft)
    router_names = {name for name in trained if ".gate." in name}
    expert_names = {name for name in trained if ".experts." in name}
    if kind in ("attention", "causal"):
        with pytest.raises(ConfigError, match="trains no such"), freeze(peft, "router"):
            pass
    else:
        with freeze(peft, "router"):
            without_routers = trainable(peft)
        assert router_names != set()
        assert trained - without_routers == router_names
    with freeze(peft, "other"):
        without_others = trainable(peft)
    assert without_others == router_names | expert_names
    assert trainable(peft) == trained


def test_adapters_that_are_turned_off_are_not_used():
    model = get_peft_model(make_model("olmoe"), LoraConfig(r=2, **KINDS["router-copied"])).eval()
    with model.disable_adapter():
        assert all(router.name.endswith("original_module") for router in find_routers(model))
        with torch.no_grad(), record(model) as routes:
            model(input_ids=IDS)
    assert len(routes.indices) == 4
    assert all("modules_to_save" in router.name for router in find_routers(model))


def test_virtual_tokens_are_refused(tokenizer):
    settings = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model = get_peft_model(make_model("olmoe"), settings).eval()
    for use in (
        lambda: RoE(model, tokenizer),
        lambda: record(model).__enter__(),
        lambda: freeze(model, "router").__enter__(),
    ):
        with pytest.raises(ModelError, match="virtual tokens"):
            use()


def test_gradient_checkpointing_of_a_wrapped_model_is_refused(peft):
    peft.train()
    peft.activation_checkpointing_enable({"use_reentrant": False})
    with pytest.raises(RoutingError, match="activation_checkpointing_disable"), record(peft):
        peft(input_ids=IDS, labels=IDS, use_cache=False)


PASS_IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def seen(model, *passes):
    passes_seen = []
    with torch.no_grad(), pass_tokens(model, passes_seen.append):
        for arguments in passes:
            model(**arguments)
    return [(t.real_T.tolist(), t.sequence_T.tolist(), t.position_T.tolist()) for t in passes_seen]


def test_from_a_mask_with_padding(olmoe):
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    ((real, sequence, position),) = seen(olmoe, {"input_ids": PASS_IDS, "attention_mask": mask})
    assert real == [False, True, True, True, True, False]
    assert sequence == [0, 0, 0, 1, 1, 1]
    assert [p for p, r in zip(position, real, strict=True) if r] == [0, 1, 0, 1]


def test_from_a_cache_and_from_positions(olmoe):
    with torch.no_grad():
        cache = olmoe(PASS_IDS).cache
    first = {"input_ids": PASS_IDS}
    step = {"input_ids": PASS_IDS[:, :1], "cache": cache}
    embeds = olmoe.get_input_embeddings()(PASS_IDS)
    inputs = {"inputs_embeds": embeds, "position_ids": torch.tensor([[4, 5, 6]])}
    passes = seen(olmoe, first, step, inputs)
    assert [sequence for _, sequence, _ in passes] == [
        [0, 0, 0, 1, 1, 1],
        [0, 1],
        [2, 2, 2, 3, 3, 3],
    ]
    assert [position for _, _, position in passes] == [[0, 1, 2] * 2, [3, 3], [4, 5, 6] * 2]


class NoValues(torch.nn.Module):
    """A model whose inputs have no values: reading one raises an error."""

    config = PretrainedConfig()

    def forward(self, **inputs):
        return inputs


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"attention_mask": torch.ones(2, 3, dtype=torch.long, device="meta")},
        {"position_ids": torch.ones(2, 3, dtype=torch.long, device="meta")},
    ],
)
def test_no_pass_waits_for_a_value_of_the_device(extra):
    model = NoValues()
    decisions = []
    with pass_tokens(model, decisions.append):
        for _ in range(2):
            model(input_ids=PASS_IDS.to("meta"), **extra)
    devices = {x.device.type for t in decisions for x in (t.real_T, t.sequence_T, t.position_T)}
    assert len(decisions) == 2
    assert devices == {"meta"}


def test_packed_texts_are_numbered_over_passes(olmoe):
    packed = {"input_ids": PASS_IDS, "position_ids": torch.tensor([[0, 1, 0], [0, 0, 1]])}
    passes = seen(olmoe, packed, {"input_ids": PASS_IDS}, packed)
    assert [sequence for _, sequence, _ in passes] == [
        [0, 0, 1, 2, 3, 3],
        [4, 4, 4, 5, 5, 5],
        [6, 6, 7, 8, 9, 9],
    ]


PROMPTS = ["hello", "what is a cat and why"]


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_generated_tokens_have_the_decisions_of_one_pass(family, tokenizer):
    model = small_model(family)
    inputs = left_padded(tokenizer, PROMPTS)
    steps = 4
    options = {
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 256,
        "max_new_tokens": steps,
    }
    with record(model) as routes:
        ids = model.generate(**inputs, **options)[:, :-1]
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, steps), value=1)[:, :-1]
    with torch.no_grad(), record(model) as whole:
        model(ids, attention_mask=mask)
    assert len(routes.positions) == int(mask.sum()) == len(routes.indices[0])
    order_of_routes = (routes.sequences * 1000 + routes.positions).argsort()
    order_of_whole = (whole.sequences * 1000 + whole.positions).argsort()
    for layer in range(len(routes.indices)):
        assert torch.equal(
            routes.indices[layer][order_of_routes], whole.indices[layer][order_of_whole]
        )
        torch.testing.assert_close(
            routes.weights[layer][order_of_routes],
            whole.weights[layer][order_of_whole],
            atol=1e-4,
            rtol=0,
        )


def test_tokens_are_told_by_sequence_and_position(olmoe):
    """One by one, each token of each sequence has the decisions that it has in the record."""
    ids = torch.tensor([[256, 256, 7, 8], [1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad(), record(olmoe) as routes:
        olmoe(ids, attention_mask=mask)
        olmoe(torch.tensor([[9, 8]]))
    assert repr(routes) == "Routes(8 tokens of 3 texts, 4 MoE layers, 2 experts of a token)"
    assert routes.sequences.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert routes.positions.tolist() == [0, 1, 0, 1, 2, 3, 0, 1]
    for sequence, tokens in enumerate([[7, 8], [1, 2, 3, 4], [9, 8]]):
        with torch.no_grad(), record(olmoe) as record_alone:
            olmoe(torch.tensor([tokens]))
        at = routes.sequences == sequence
        for layer in range(4):
            assert torch.equal(routes.indices[layer][at], record_alone.indices[layer])
            torch.testing.assert_close(
                routes.logits[layer][at], record_alone.logits[layer], atol=1e-5, rtol=0
            )


def test_texts_of_a_packed_row_are_sequences(olmoe):
    """Broken by decisions of one text that another text of its row gets: both have a token 0."""
    texts = [[5, 6, 7, 8], [9, 8, 7], [1, 2, 3, 4, 5, 6]]
    rows = [[*texts[0], *texts[1]], [*texts[2], 30]]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0]])
    packed = {"position_ids": positions, "use_cache": False}
    with torch.no_grad(), record(olmoe) as routes:
        olmoe(torch.tensor(rows), **packed)
        olmoe(torch.tensor([[3]]))
    assert routes.sequences.tolist() == [0] * 4 + [1] * 3 + [2] * 6 + [3, 4]
    assert routes.positions.tolist() == [*positions.flatten().tolist(), 0]
    with torch.no_grad(), record(olmoe) as record_alone:
        for ids in (*texts, [30], [3]):
            olmoe(torch.tensor([ids]))
    for layer in range(4):
        assert torch.equal(routes.indices[layer], record_alone.indices[layer])


@pytest.mark.parametrize("wrapped", [False, True], ids=["model", "adapters"])
@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"num_beams": 2, "do_sample": True}, "beam_sample"),
        ({"generation_config": GenerationConfig(num_beams=3)}, "beam_search"),
        ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
        ({"assistant_model": small_model("olmoe")}, "assisted_generation"),
    ],
)
def test_recorded_tokens_are_those_of_the_returned_text_or_refused(options, mode, wrapped):
    """The experts of a beam's rows are those of other texts."""
    model = make_model("olmoe")
    if wrapped:
        model = get_peft_model(model, LoraConfig(r=2, **KINDS["causal"])).eval()
    with record(model) as routes:
        with pytest.raises(RoutingError, match=f"decode by {mode}.*record model\\(sequences\\)"):
            model.generate(input_ids=IDS, max_new_tokens=4, **options)
        assert len(routes.positions) == 0
        sequences = model.generate(
            input_ids=IDS, max_new_tokens=4, do_sample=False, eos_token_id=None
        )
        plain = copy.deepcopy(model)
        beams = {"do_sample": False, "num_beams": 2, "eos_token_id": None}
        of_copy = plain.generate(input_ids=IDS, max_new_tokens=4, **beams)
    assert torch.equal(model.generate(input_ids=IDS, max_new_tokens=4, **beams), of_copy)
    assert "generate" not in vars(OlmoeForCausalLM)
    for sequence, ids in enumerate(sequences):
        with torch.no_grad(), record(model) as record_alone:
            model(input_ids=ids[None, :-1])
        order = routes.positions[routes.sequences == sequence].argsort()
        for layer, index_TK in enumerate(record_alone.indices):
            assert torch.equal(routes.indices[layer][routes.sequences == sequence][order], index_TK)


def test_beams_of_a_models_own_settings_are_refused():
    model = make_model("olmoe")
    model.generation_config.num_beams = 2
    with record(model), pytest.raises(RoutingError, match="beam_search"):
        model.generate(IDS, max_new_tokens=2)
