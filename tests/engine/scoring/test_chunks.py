"""Chunks hold every logit position that takes n samples once, and no other; passes stay within the budget."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from moe_lab.engine.scoring.chunks import CHUNK_SAMPLES, passes, together
from moe_lab.engine.scoring.scoring import Budget

SAMPLES = [torch.tensor([1, 4, 4, 9, 1]), torch.tensor([1, 1]), torch.tensor([4] * 100)]


@pytest.mark.parametrize("tokens", [1, 20, 4000])
@pytest.mark.parametrize("n", [4, 9])
def test_positions_with_n_samples(n, tokens):
    requests = [(object(), own) for own in SAMPLES]
    places = []
    for chunks in passes(requests, n, Budget(tokens)):
        widest = max(len(chunk.at_C) for chunk in chunks)
        assert widest * (n - 1) <= max(CHUNK_SAMPLES, n - 1)
        assert len(chunks) * widest * (n - 1) <= tokens or (len(chunks), widest) == (1, 1)
        for chunk in chunks:
            own = next(samples for request, samples in requests if request is chunk.request)
            assert (own[chunk.at_C] == n).all()
            places += chunk.place_C.tolist()
    assert places == (torch.cat(SAMPLES) == n).nonzero()[:, 0].tolist()


def test_requests_of_one_pass():
    cached = {i: SimpleNamespace(kv_cache=SimpleNamespace(length=10 - i)) for i in range(3)}
    samples = dict(enumerate(SAMPLES))
    assert list(together(cached, samples, Budget(14))) == [[0, 1], [2]]
    assert list(together(cached, samples, Budget(4000, 1))) == [[0], [1], [2]]
