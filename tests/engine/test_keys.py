"""The keys of noise: the sample index in every kind of history, and the seed where tokens are sampled.

Broken by: a second answer to a prompt that is given the noise of the first, or a seed that sampling does not read.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.generation.generate import generate
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.engine.generation.sampling import Decoding
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.scoring.scoring import Budget
from moe_lab.routing import document_key, gumbel
from tests.support import roe_reference as reference
from tests.support.ensembles import SEED, N, answers_of, ensemble_for, temperatures_for

PROMPT, FORCED = [3, 1, 4, 1, 5], [9, 2, 6]
OPTIONS = {"do_sample": True, "top_k": 0}
"""Of the whole distribution."""


@pytest.mark.parametrize("history", [("clean", "noisy"), ("standard", "noisy")], ids="-".join)
def test_repeats_of_a_prompt_have_noise_of_their_own(olmoe, history):
    """The distributions behind the same tokens are the slow reference's of each repeat, in one batch."""
    found: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def forced(scores_AV, answers):
        for row_V, answer in zip(scores_AV.softmax(-1), answers, strict=True):
            found[answer.sample_index].append(row_V)
        return [FORCED[len(answer.generated)] for answer in answers]

    answers = [GenerationState(repeat, PROMPT, document_key(PROMPT), repeat) for repeat in found]
    with EnsembleForward(olmoe, ensemble_for(olmoe, history)) as forward:
        generate(
            forward, answers, Budget(4000), Decoding(forced, lambda generated: False, 3), lambda answer: None
        )
    double, temperatures = reference.in_float64(olmoe), temperatures_for(olmoe)
    for repeat, rows in found.items():
        for step, row_V in enumerate(rows):
            ids = [*PROMPT, *FORCED[:step]]
            expected_V = reference.next_token_probs(
                double, PROMPT, ids, N, temperatures, SEED, repeat, cache=history[0], prefill=history[1]
            )
            torch.testing.assert_close(row_V.double(), expected_V, atol=1e-6, rtol=1e-4)
    assert not any(torch.allclose(*rows, atol=1e-5) for rows in zip(*found.values(), strict=True))


@pytest.mark.parametrize("seed", [0, 5])
def test_a_sample_is_the_best_token_behind_the_seeds_noise(olmoe, seed):
    steps = 6
    [found] = answers_of(olmoe, [PROMPT], Budget(4000), steps, options=OPTIONS, seed=seed)
    ids = list(PROMPT)
    for token in found:
        with torch.no_grad():
            log_probs_V = olmoe(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        noise_V = gumbel(seed, document_key(PROMPT), 0, -1, -1, [len(ids) - 1], len(log_probs_V))[0]
        assert token == int((log_probs_V + noise_V).argmax())
        ids.append(token)
    assert len(found) == steps


def test_another_seed_is_another_sample(olmoe):
    """That 8 tokens of 300 agree twice by chance has odds far below 1e-9."""
    options = {"do_sample": True, "temperature": 1.5}
    samples = [
        answers_of(olmoe, [PROMPT], Budget(4000), 8, options=options, seed=seed)[0] for seed in (0, 1, 2)
    ]
    assert samples[0] != samples[1] != samples[2] != samples[0]


def test_the_lm_samples_with_its_seed(olmoe, tokenizer):
    request = Request(("abc", {"do_sample": True, "temperature": 1.5, "max_gen_toks": 12, "until": []}))
    found = {}
    for seed in (0, 1):
        lm = EngineLM(olmoe, tokenizer, seed=seed, progress=False)
        lm.answer("generate_until", [request], lambda _, text, seed=seed: found.update({seed: text}))
    assert found[0] != found[1]
