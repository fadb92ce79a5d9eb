"""The peak memory of a run, planned without weights: the engine runs on the meta device, on tensors without values.

Everything that holds storages is counted, as a GPU's allocator counts it: weights, keys and values, passes with their
masks and noise, logits, cached activations, gradients. `footprint.py` says what is not: a device's context, workspaces
of kernels and fragmentation.

    model = meta_model(config, torch.bfloat16)
    peak = planned_peak(model, lambda: KVEngine(...).score(requests, on_scores))
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from moe_lab.engine import generate as generating
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.footprint import Meter, OneOperation, footprint_of, known_of
from moe_lab.engine.forward.ensemble import Ensemble, ScaleSweep
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.pass_size import PASS_SHARE, pass_budget
from moe_lab.engine.planned import Asked, Ids
from moe_lab.engine.sampling import Decoding, GenerationState, Sampler
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.models.memory import PLANNED, weight_bytes
from moe_lab.routing import GumbelTopK, find_routers

PASS_TOKENS = 2048
"""Tokens of a pass on the device that is planned for by default. Smaller passes are much slower."""


_aten = torch.ops.aten


def _copied(tensor: Tensor, *, device: torch.device | None = None, **options: Any) -> Tensor:
    if device is None or device.type != "cpu":
        return _aten._to_copy.default(tensor, device=device, **options)
    return torch.zeros(tensor.shape, dtype=options.get("dtype") or tensor.dtype)


def _indexed(tensor: Tensor, indices: list[Tensor | None]) -> Tensor:
    first = indices[0]
    if first is None or first.dtype is not torch.bool:
        return _aten.index.Tensor(tensor, indices)
    return tensor.flatten(0, first.dim() - 1).clone()


class PlannedDevice(Meter):
    """A device of `size` bytes that holds the weights of a model of the meta device.

    Where the host reads values they are 0, and masks that index a tensor are all true.
    """

    block = 512  # as in the allocator of CUDA
    on_meta = Meter.on_meta | {
        _aten._to_copy.default: _copied,
        _aten._local_scalar_dense.default: lambda tensor: 0,
        _aten.index.Tensor: _indexed,
    }

    def __init__(self, model: Any, size: int):
        super().__init__(known_of(model))
        self.size = size
        self.live = self.peak = weight_bytes(model)

    def mem_get_info(self, device: torch.device | None = None) -> tuple[int, int]:
        """(free bytes, all bytes), as torch's modules of devices have it."""
        return max(0, self.size - self.live), self.size


def planned_peak(model: Any, run: Callable[[], object], size: int | None = None) -> int:
    """The most bytes that are alive while `run` runs the engine on a model of the meta device, its weights included.

    Args:
        size: bytes of the device, from which the sizes of passes follow. None: the least with passes of `PASS_TOKENS`.

    Raises NotImplementedError for a family whose own code reads values of tensors.
    """
    token = footprint_of(model).token  # before the device counts
    if size is None:
        size = weight_bytes(model) + int(PASS_TOKENS * token / PASS_SHARE)
    device = PlannedDevice(model, size)
    reset = PLANNED.set(device)
    try:
        with device, OneOperation():
            run()
    finally:
        PLANNED.reset(reset)
    return device.peak


def rehearse(
    model: Any, ensemble: Ensemble, asked: Asked, sequences: int | None, reuse: bool = False
) -> None:
    """Answer the first batches of requests on a model of the meta device, as a `KVEngine` does.

    Args:
        asked: requests of lm-eval. Of generated answers the first and the last token are computed.
        sequences: at most this many in a pass.
        reuse: whether clean activations are cached, as in the trials of a study.
    """
    if ensemble.n > 1 and ensemble.routing is None:
        ensemble = replace(ensemble, routing=GumbelTopK([1.0] * len(find_routers(model)), seed=0))
    engine = KVEngine(EnsembleForward(model, ensemble), pass_budget(model, sequences), reuse)
    pairs = [(context, list(continuations)) for context, continuations in asked.scored.items()]
    pairs += [(context, [ids]) for windows in asked.texts.values() for context, ids in windows]
    requests = [ScoringRequest(*pair, noise_key=0) for pair in pairs]
    # the trial of a study at temperature 0 also finds the best logit scale
    for sweep in ([ScaleSweep(), None] if reuse else [None]) if requests else []:
        engine.set_ensemble(replace(ensemble, sweep=sweep))
        _score(engine, requests)
        # batches begin with the longest contexts; this request has the most samples and rows of logits
        _score(engine, [max(requests, key=lambda request: sum(map(len, request.continuations)))])
    for settings, prompts in asked.generated.items():
        decoding, states = generation(model, settings, prompts.values())
        with engine.forward as forward:
            generating.rehearse(forward, states, engine.budget, decoding)


PASSES = 6
"""Of scored requests in a dry run. The longest come first."""


class _Enough(Exception):
    """`PASSES` passes were run."""


def _score(engine: KVEngine, requests: list[ScoringRequest]) -> None:
    left = iter(range(PASSES))

    def count(model: Any, args: object) -> None:
        if next(left, None) is None:
            raise _Enough

    counting = engine.forward.model.register_forward_pre_hook(count)
    try:
        with suppress(_Enough):
            engine.score(requests, lambda index, scores: None)
    finally:
        counting.remove()


def generation(
    model: Any, settings: str, prompts: Iterable[tuple[Ids, tuple[int, ...]]]
) -> tuple[Decoding, list[GenerationState]]:
    """The answers to prompts, before their first token.

    Args:
        settings: a key of `Asked.generated`.
        prompts: each with the number of new tokens of its answers.
    """
    sampled = GenerationConfig(do_sample="('do_sample', True)" in settings)
    sampler = Sampler(model, sampled, 0, LogitsProcessorList())
    answers = [(prompt, count) for prompt, new in prompts for count in new]
    states = [GenerationState(i, prompt, noise_key=0) for i, (prompt, _) in enumerate(answers)]
    return Decoding(sampler, lambda generated: False, max(count for _, count in answers)), states
