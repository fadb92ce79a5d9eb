"""Generation: the tokens of transformers' own, and for RoE those of the slow reference."""

import random
import weakref
from types import SimpleNamespace

import pytest
import torch

from moe_lab.engine import generate as generating
from moe_lab.engine import pass_size, prefill
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import token_bytes
from moe_lab.engine.pass_size import sequence_bytes
from moe_lab.engine.sampling import (
    Decoding,
    GenerationState,
    Sampler,
    StoppingCriteria,
    generation_config,
)
from moe_lab.engine.scoring import Budget
from moe_lab.errors import ConfigError, RoutingError
from moe_lab.routing import GumbelTopK
from tests.support.ensembles import answers_of, engine_of, greedy_by_transformers, prompts_for
from tests.support.models import make_model


def test_stop_strings_and_end_tokens(olmoe, tokenizer):
    prompts = prompts_for(random.Random(2), 5)
    free = answers_of(olmoe, prompts, Budget(4000), 12)
    stop = tokenizer.decode(free[0][3:5])
    stopped = answers_of(olmoe, prompts, Budget(4000), 12, stop=[stop], tokenizer=tokenizer)
    assert stop in tokenizer.decode(stopped[0])
    assert len(stopped[0]) <= 5
    for tokens, unstopped in zip(stopped, free, strict=True):
        assert tokens == unstopped[: len(tokens)]
    config = generation_config(olmoe, {"eos_token_id": free[0][0]})
    assert StoppingCriteria(tokenizer, [], config)(
        GenerationState(0, [1], 0, generated=[free[0][0]])
    )


def test_unknown_options_are_refused(olmoe):
    for name, value in (("temprature", 1.0), ("num_beams", 4)):
        with pytest.raises(ConfigError, match=name):
            generation_config(olmoe, {name: value})


def test_nan_is_an_error_not_an_answer():
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    with pytest.raises(RoutingError, match="NaN"):
        answers_of(model, [[1, 2, 3]], Budget(100), 2)


def noted_batches(monkeypatch) -> list[int]:
    """The sizes of the batches that are generated from now on."""
    sizes: list[int] = []
    init = generating._Batch.__init__

    def noted(self, forward, states, prefill):
        sizes.append(len(states))
        init(self, forward, states, prefill)

    monkeypatch.setattr(generating._Batch, "__init__", noted)
    return sizes


@pytest.mark.parametrize(("free", "sizes"), [(0, [1] * 5), (2.5, [2, 2, 1]), (100, [5])])
def test_sequences_generate_together_as_far_as_memory_reaches(olmoe, monkeypatch, free, sizes):
    """`free` is the number of sequences that fit, each of 9 prompt tokens and 3 new ones."""
    prompts = [[7] * 9] * 5
    bytes_of_one = sequence_bytes(olmoe, 9 + 3, 1)
    monkeypatch.setattr(
        pass_size, "free_memory", lambda device: free * bytes_of_one / generating.CACHE_SHARE
    )
    batches = noted_batches(monkeypatch)
    answers_of(olmoe, prompts, Budget(4000), 3)
    assert batches == sizes


@pytest.mark.parametrize(("sequences", "sizes"), [(None, [8]), (3, [3, 3, 2])])
def test_prompts_with_other_beginnings_generate_together(olmoe, monkeypatch, sequences, sizes):
    """Groups of 1, 2, 2 and 3 prompts, the longest in the second: each beginning is read once."""
    numbers = random.Random(8)

    def random_tokens(length: int) -> list[int]:
        return [numbers.randrange(3, 90) for _ in range(length)]

    shared = [random_tokens(length) for length in (0, 40, 26, 25)]
    prompts = []
    for beginning, lengths in zip(shared, ([24], [3, 9], [2, 1], [4, 7, 6]), strict=True):
        for length in lengths:
            prompts.append(beginning + random_tokens(length))
    numbers.shuffle(prompts)
    batches = noted_batches(monkeypatch)
    engine = engine_of(olmoe, None, Budget(60, sequences))
    states = [GenerationState(i, prompt, 0) for i, prompt in enumerate(prompts)]
    sampler = Sampler(olmoe, generation_config(olmoe, {}), 0)
    engine.generate(states, Decoding(sampler, lambda state: False, 5), lambda state: None)
    assert batches == sizes
    expected = [greedy_by_transformers(olmoe, prompt, 5) for prompt in prompts]
    assert [state.generated for state in states] == expected
    assert engine.tokens_in == sum(map(len, prompts)) - 40 - 26 - 2 * 25 + 8 * 4


@pytest.mark.parametrize(("new", "sizes"), [(3, [2, 3]), (40, [5])])
def test_short_prompts_are_not_padded_to_long_ones(olmoe, monkeypatch, new, sizes):
    batches = noted_batches(monkeypatch)
    prompts = [[1] * 60 + [last] for last in (8, 9)] + [[2] * 20 + [last] for last in (7, 8, 9)]
    answers_of(olmoe, prompts, Budget(4000), new)
    assert batches == sizes


def test_steps_keep_one_beginning_in_memory(olmoe, monkeypatch):
    """The sequences of a batch have theirs in their own caches; memory is planned for those."""
    shared_prefix = prefill.shared_prefix
    step = generating._Batch._step
    prefixes: list[weakref.ref] = []
    alive_in_steps: list[int] = []

    def noting_prefix(forward, tokens, length, noise_key):
        prefix = shared_prefix(forward, tokens, length, noise_key)
        prefixes.append(weakref.ref(prefix))
        return prefix

    def counting_step(batch):
        alive_in_steps.append(sum(prefix() is not None for prefix in prefixes))
        return step(batch)

    monkeypatch.setattr(prefill, "shared_prefix", noting_prefix)
    monkeypatch.setattr(generating._Batch, "_step", counting_step)
    prompts = []
    for number in range(4):
        prompts += [[number] * 20 + [98], [number] * 20 + [99]]
    answers_of(olmoe, prompts, Budget(4000), 2)
    assert len(prefixes) == 4
    assert alive_in_steps == [1]


@pytest.mark.parametrize("cache", ["clean", "standard", "none"])
@pytest.mark.parametrize(("n", "prompt", "new"), [(1, 9, 5), (8, 42, 16), (5, 3, 24)])
def test_the_slots_of_a_sequence_are_those_that_its_cache_takes(
    olmoe, monkeypatch, cache, n, prompt, new
):
    """Broken by a plan of one cache for samples that have caches of their own.

    cache=none has no room for tokens to come: its last pass reads all but the last new token.
    """
    ensemble = Ensemble(n, GumbelTopK([0.0, 0.5, 0.5, 0.5], seed=0), first_noisy=1, cache=cache)
    seen: list[int] = []
    read = prefill.Prefill.__call__

    def noting_bytes(self, states):
        prefilled = read(self, states)
        seen.append(prefilled.cache.nbytes)
        return prefilled

    monkeypatch.setattr(prefill.Prefill, "__call__", noting_bytes)
    answers_of(olmoe, [[7] * prompt], Budget(4000), new, ensemble if n > 1 else Ensemble())
    kept_tokens = new - 1 if n > 1 and cache == "none" else new
    planned = EnsembleForward(olmoe, ensemble).slots(prompt, kept_tokens) * token_bytes(olmoe)
    assert max(seen) == planned


def test_a_device_map_has_the_room_of_its_fullest_device(olmoe, monkeypatch):
    """Two of four layers are on a device with 10 free bytes.

    Keys and values of all layers have 20 bytes.
    """
    free = {"cpu": 1000, "meta": 10}
    monkeypatch.setattr(pass_size, "free_memory", lambda device: free[device.type])
    assert pass_size.cache_memory(olmoe) == 1000
    places = iter(["cpu", "cpu", "xpu", "xpu"])
    layers = [torch.nn.ParameterList([torch.empty(0)]) for _ in range(4)]
    free["xpu"] = 10
    monkeypatch.setattr(pass_size, "decoder_layers", lambda model: layers)
    monkeypatch.setattr(
        torch.nn.ParameterList,
        "parameters",
        lambda self: iter([SimpleNamespace(device=torch.device(next(places)))]),
    )
    assert pass_size.cache_memory(olmoe) == 20
