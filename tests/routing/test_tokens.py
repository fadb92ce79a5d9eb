"""What a policy is told of its tokens is true in every engine: each answer equals passes over one
text at a time, whose noise has the documented keys.

Broken by: a prefix that texts share under the noise of one of them, padding or a finished sequence
that shifts a key, the sample of another slot, a generated token that is taken for one of the
prompt, tokens of an engine's pass that are left for a pass of the model's own, a pass whose texts
are unknown and which is decided all the same.
"""

from typing import Any

import pytest
import torch

from moe_lab.api.c3po import C3PO
from moe_lab.api.roe import RoE
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import RoutingError
from moe_lab.methods.policy_method import PolicyMethod
from moe_lab.methods.virtual_tokens.training import VirtualTokensLM, with_adapter
from moe_lab.routing import Router, Routing, document_key, find_routers
from moe_lab.routing.noise import uniform_for_tokens
from moe_lab.routing.override import override
from moe_lab.routing.tokens import PolicyTokens, decides_by_tokens
from moe_lab.routing.tokens import told as told_by_engine
from tests.support import roe_reference, rounding, slow_routing
from tests.support.ensembles import answered, assert_log_likelihoods
from tests.support.models import left_padded, small_model
from tests.support.opened_methods import opened
from tests.support.roe_reference import in_float64
from tests.support.told_tokens import (
    generate_by_hand,
    logits_by_hand,
    score_by_hand,
    told,
    uniform_by_hand,
)

SEED = 5
FAMILIES = ["olmoe", "gpt_oss", "qwen3_next"]
"""Two over keys and values, one of them with attention windows, and one with recurrent layers."""
LONG = "what lies before it is long enough to be shared"
PAIRS = [(LONG, " and"), (LONG, " or it"), (LONG + " by two", " is"), ("x", " y")]
"""Two continuations of one context, a context that shares its beginning, and a short one."""
STEPS = 5
OPTIONS = {"until": [], "max_gen_toks": STEPS, "do_sample": False}
PROMPTS = ["five red pens", LONG, LONG + " by two", "x"]


@pytest.mark.parametrize(("batch_size", "budget"), [("auto", 4000), (3, 4000), (1, 7)])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_one_text_at_a_time(family, batch_size, budget, tokenizer):
    """The last budget of a pass is that of some tokens of a text."""
    model = small_model(family)
    double = in_float64(model)
    lm = EngineLM(model, tokenizer, batch_size=batch_size, progress=False)
    lm.budget.tokens = budget
    text = "five red pens"
    with override(model, told, seed=SEED):
        scores = answered(lm, "loglikelihood", PAIRS)
        [of_text] = answered(lm, "loglikelihood_rolling", [(text,)])

    expected = []
    for pair in PAIRS:
        context, continuation = lm.encode_pair(*pair)
        expected.append(score_by_hand(double, context, continuation, SEED))
    assert_log_likelihoods(scores, expected, tokens=8)

    [(context, continuation)] = lm.encoder.windows(text)
    document = document_key([*context, *continuation])
    expected_of_text, _ = score_by_hand(double, context, continuation, SEED, document)
    assert of_text == rounding.approx(expected_of_text, tokens=len(continuation))


@pytest.mark.parametrize("batch_size", ["auto", 1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_those_of_one_text_at_a_time(family, batch_size, tokenizer):
    """Each prompt twice: the second answer has noise of its own."""
    model = small_model(family)
    double = in_float64(model)
    lm = EngineLM(model, tokenizer, batch_size=batch_size, progress=False)
    requests = []
    expected = []
    for prompt in PROMPTS:
        for repeat in range(2):
            requests.append(Request((prompt, OPTIONS), repeat))
            ids = lm.encode_prompt(prompt)
            expected.append(lm.tok_decode(generate_by_hand(double, ids, STEPS, SEED, repeat)))
    with override(model, told, seed=SEED):
        texts = answered(lm, "generate_until", requests)
    assert texts == expected
    assert texts[0::2] != texts[1::2]


@pytest.mark.parametrize("cache", ["clean", "standard"])
@pytest.mark.parametrize("family", ["olmoe", "qwen3_next"])
def test_inside_roe_each_sample_has_its_own_noise(family, cache, tokenizer):
    """The slow reference of RoE, in which the policy decides last."""
    n = 3
    model = small_model(family)
    double = in_float64(model)
    roe = RoE(model, tokenizer, n=n, temperature=0.7, skip_layers=1, seed=SEED, cache=cache)
    context, continuation = tokenizer.encode("what is"), tokenizer.encode(" a cat")
    prompts = ["what is", "hello you"]
    with override(model, told, seed=SEED):
        logprobs = roe.next_token_logprobs(context)
        score = roe.loglikelihood("what is", " a cat")
        texts = roe.generate(prompts, max_new_tokens=3)

    def probs(prompt: list[int], ids: list[int]) -> Any:
        samples = []
        for row in range(n):
            positions: Any = range(0)
            if row:
                positions = roe_reference.noisy_positions(prompt, ids, cache)
            samples.append(_sample_probs(double, prompt, ids, row, positions, roe.temperatures))
        return torch.stack(samples).mean(0)

    rounding.assert_close(logprobs, probs(context, context).log().float())
    expected = 0.0
    for i, token in enumerate(continuation):
        ids = [*context, *continuation[:i]]
        expected += float(probs(context, ids)[token].log())
    assert score == rounding.approx(expected, tokens=6)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = tokenizer.encode(prompt)
        prompt_ids = list(ids)
        for _ in range(3):
            ids.append(int(probs(prompt_ids, ids).argmax()))
        assert text == tokenizer.decode(ids[len(prompt_ids) :])


def _sample_probs(
    model64: Any, prompt: list[int], ids: list[int], row: int, noisy: Any, temperatures: Any
) -> Any:
    """float64 [V] of one routing sample, whose tokens at the positions `noisy` are its own."""
    handles = []
    for layer, temperature in enumerate(temperatures):
        if temperature:

            def draw(experts: int, layer: int = layer) -> Any:
                keys = (SEED, document_key(prompt), 0, row, layer)
                return roe_reference.gumbel(*keys, noisy, experts).double()

            handles += slow_routing.install(model64, layer, noisy, draw, temperature)
    rows = [row if position in noisy else 0 for position in range(len(ids))]
    logits_SV = logits_by_hand(model64, prompt, ids, SEED, rows=rows, shared_layers=1)
    for handle in handles:
        handle.remove()
    return logits_SV[-1].softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "prefill"), [("none", "noisy"), ("standard", "clean")])
def test_inside_roe_a_prompt_is_read_under_its_own_text(cache, prefill, tokenizer):
    """Prompts with a common beginning, together and alone."""
    model = small_model("olmoe")
    roe = RoE(model, tokenizer, n=3, temperature=0.7, seed=SEED, cache=cache, prefill=prefill)
    with override(model, told, seed=SEED):
        together = roe.generate(PROMPTS, max_new_tokens=STEPS)
        alone = [roe.generate(prompt, max_new_tokens=STEPS) for prompt in PROMPTS]
    assert together == alone
    assert together != roe.generate(PROMPTS, max_new_tokens=STEPS)


@pytest.mark.parametrize("family", FAMILIES)
def test_passes_of_the_model_itself(family, tokenizer):
    """Padded on the left, and generated over transformers' own cache."""
    model = small_model(family)
    double = in_float64(model)
    inputs = left_padded(tokenizer, PROMPTS)
    with override(model, told, seed=SEED), torch.no_grad():
        logits_BSV = model(**inputs).logits
        [generated] = model.generate(
            torch.tensor([tokenizer.encode(LONG)]),
            max_new_tokens=STEPS,
            do_sample=False,
            eos_token_id=None,
        ).tolist()
    if family != "qwen3_next":  # its recurrent layers read padding
        for prompt, logits_SV in zip(PROMPTS, logits_BSV, strict=True):
            ids = tokenizer.encode(prompt)
            expected_SV = logits_by_hand(double, ids, ids, SEED)
            rounding.assert_close(logits_SV[-len(ids) :].double(), expected_SV, tokens=2)
    ids = tokenizer.encode(LONG)
    assert generated[len(ids) :] == generate_by_hand(double, ids, STEPS, SEED)


def test_packed_texts_have_keys_of_their_own(olmoe):
    texts = [[5, 6, 7], [8, 9]]
    seen: list[PolicyTokens] = []
    with override(olmoe, _noting(seen)), torch.no_grad():
        olmoe(torch.tensor([[5, 6, 7, 8, 9]]), position_ids=torch.tensor([[0, 1, 2, 0, 1]]))
    keys = [document_key(text) for text in texts]
    assert seen[0].document_T.tolist() == [keys[0]] * 3 + [keys[1]] * 2
    assert seen[0].position_T.tolist() == [0, 1, 2, 0, 1]
    assert seen[0].sequence_T.tolist() == [0, 0, 0, 1, 1]


def _noting(seen: list[PolicyTokens]) -> Any:
    """A policy that notes its tokens at the first router."""

    def note(router: Router, routing: Routing, tokens: PolicyTokens) -> None:
        if router.layer == 0:
            seen.append(tokens)

    return note


def test_padding_is_told_in_a_batch_of_prompts(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, progress=False)
    seen: list[PolicyTokens] = []
    with override(olmoe, _noting(seen)):
        answered(lm, "generate_until", [(prompt, OPTIONS) for prompt in ("abcdef", "x")])
    prompts, *steps = seen
    lengths = [len(lm.encode_prompt(prompt)) for prompt in ("abcdef", "x")]
    assert prompts.real_T.sum() == sum(lengths)
    assert not prompts.new_T[prompts.real_T].any()
    assert [int(tokens.new_T.sum()) for tokens in steps] == [2] * (STEPS - 1)
    assert steps[0].position_T.tolist() == lengths


def test_the_state_lives_as_long_as_the_context(olmoe):
    states = []

    def keep(router: Router, routing: Routing, tokens: PolicyTokens) -> None:
        tokens.state.setdefault("calls", []).append(router.layer)
        states.append(tokens.state)

    for _ in range(2):
        with override(olmoe, keep), torch.no_grad():
            olmoe(torch.tensor([[1, 2]]))
            olmoe(torch.tensor([[3]]))
        layers = len(find_routers(olmoe))
        assert states[-1] == {"calls": [*range(layers)] * 2}


class Noisy(PolicyMethod):
    """A routing method of a plug-in."""

    random = True

    def policy(self, model: Any, config: Any) -> Any:
        return told, {}


def test_a_method_gives_its_function_the_tokens_with_the_seed_of_the_run(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, progress=False)
    with override(olmoe, told, seed=SEED):
        expected = answered(lm, "loglikelihood", PAIRS)
    method = Noisy(Noisy.Config(name="noisy"))
    with opened(method, olmoe, tokenizer, seed=SEED) as method_lm:
        assert answered(method_lm, "loglikelihood", PAIRS) == expected
    with opened(method, olmoe, tokenizer, seed=SEED + 1) as method_lm:
        assert answered(method_lm, "loglikelihood", PAIRS) != expected


def test_uniform_numbers_are_those_of_the_hash():
    position = torch.arange(3)
    one = torch.ones_like(position)
    keys = (7, one * 9, one * 0, one, position, torch.tensor([2]))
    numbers = uniform_for_tokens(*keys, 4)[0]
    assert numbers.dtype == torch.float32
    assert torch.equal(numbers, uniform_by_hand(7, 9, 0, 1, 2, 4, 3))


def test_without_such_a_policy_nothing_is_built_and_prefixes_are_shared(olmoe, tokenizer):
    def build() -> Any:
        raise AssertionError("the tokens were built, and nobody reads them")

    def plain(router: Router, routing: Routing) -> None: ...

    counted = []
    for policy in (plain, told):
        lm = EngineLM(olmoe, tokenizer, progress=False)
        with override(olmoe, policy):
            assert decides_by_tokens(olmoe) == (policy is told)
            answered(lm, "loglikelihood", PAIRS)
        counted.append(lm.cost["tokens_in"])
        with told_by_engine(olmoe, build):
            pass
    shared = len(lm.encode_prompt(LONG)) - 1
    assert counted[1] > counted[0] + shared // 2, "the beginning is read twice"


def test_a_pass_after_an_engines_is_told_by_its_own_inputs(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, progress=False)
    ids = torch.tensor([[1, 2, 3]])
    with override(olmoe, told, seed=SEED), torch.no_grad():
        expected = olmoe(ids).logits
        answered(lm, "loglikelihood", PAIRS)
        assert torch.equal(olmoe(ids).logits, expected)


def test_a_text_that_is_unknown_is_refused(olmoe, tokenizer):
    with torch.no_grad():
        cache = olmoe(torch.tensor([[1, 2]]), use_cache=True).past_key_values
    embeddings = torch.zeros(1, 2, olmoe.config.hidden_size)
    with override(olmoe, told), torch.no_grad():
        with pytest.raises(RoutingError, match="give input_ids"):
            olmoe(inputs_embeds=embeddings)
        with pytest.raises(RoutingError, match="from its first token on"):
            olmoe(torch.tensor([[3]]), past_key_values=cache)
        olmoe(torch.tensor([[1]]))  # the context must have routed a token


def test_a_model_with_virtual_tokens_is_answered_next_to_such_a_policy(olmoe, tokenizer):
    """The policy is on another model."""
    with with_adapter(small_model("mixtral"), "soft-prompt", 4, 0) as wrapped:
        lm = VirtualTokensLM(wrapped, tokenizer, progress=False)
        expected = answered(lm, "loglikelihood", PAIRS)
        with override(olmoe, told), torch.no_grad():
            olmoe(torch.tensor([[1]]))
            assert answered(lm, "loglikelihood", PAIRS) == expected


@pytest.mark.slow
def test_c3po_takes_no_policy_with_tokens(olmoe, tokenizer):
    keys = {"k": 2, "layers": "last2", "steps": 1, "core_experts": 4, "learning_rate": [0.5, 0.5]}
    examples = [("two and two", " four"), ("one and one are", " two")]
    with (
        pytest.raises(RoutingError, match="C3PO takes no policy with `tokens`"),
        override(olmoe, told),
    ):
        C3PO(olmoe, tokenizer, examples, **keys).loglikelihood("one cat is", " a")
