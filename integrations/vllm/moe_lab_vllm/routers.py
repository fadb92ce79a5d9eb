"""Noise in the routers of a vLLM model, by moe_lab's own policy.

The decision of a vLLM router (`_compute_routing`) passes through `moe_lab.routing.GumbelTopK`. That
policy adds the keyed noise and computes the weights by the family's rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from moe_lab.routing import Router, Routing
from moe_lab.routing.families import family_of_type
from moe_lab.routing.noise import GumbelTopK
from moe_lab.routing.samples import NoisyTokens
from moe_lab_vllm.options import Options

Compute = Callable[..., tuple[Tensor, Tensor]]


class NoisyRouters:
    """The routers of a model's MoE layers. Only tokens given to `noise` are routed with noise.

    Args:
        layers: the decoder layers of the model.
        model_type: that of its configuration.
    """

    def __init__(self, layers: nn.ModuleList, model_type: str, options: Options):
        found = [
            (i, part)
            for i, layer in enumerate(layers)
            for part in layer.modules()
            if isinstance(part, MoERunner)
        ]
        self.temperatures = options.temperatures(len(found))
        self.policy = GumbelTopK(self.temperatures, options.seed)
        self.policy.expect(None)
        # Samples share all layers before the first noisy one. Without noise they fork at the layer
        # where a single temperature would have noise first.
        first = next(
            (layer for layer, value in enumerate(self.temperatures) if value), options.skipped
        )
        self.fork = found[first][0]
        """Index of the first decoder layer that differs between samples."""
        self._decoder_layers = [i for i, _ in found]
        self._runners = [runner for _, runner in found]
        self._ran = [0] * len(found)
        for layer, runner in enumerate(self._runners):
            self._install(layer, runner, model_type)

    @contextmanager
    def noise(self, tokens: NoisyTokens | None, first_layer: int = 0) -> Iterator[None]:
        """A pass through the decoder layers from `first_layer` on. These tokens have noise.

        Raises RuntimeError if a router did not run exactly once. A kernel that routes by itself
        would have no noise.
        """
        expected = [int(i >= first_layer) for i in self._decoder_layers]
        self._ran = [0] * len(expected)
        self.policy.expect(tokens)
        yield
        self.policy.expect(None)
        if self._ran != expected:
            raise RuntimeError(
                f"RoE in vLLM: the routers of the MoE layers ran {self._ran} times in a pass, "
                f"not {expected}: a kernel routes by itself, so that samples have no noise. "
                'Choose another one, e.g. moe_backend="triton".'
            )

    def _install(self, layer: int, runner: MoERunner, model_type: str) -> None:
        vllm_router = runner.router
        compute: Compute = vllm_router._compute_routing
        family = family_of_type(model_type)
        assert family is not None
        # All that the rules of the registered families read of a router.
        module: Any = nn.Module()
        module.norm_topk_prob = vllm_router.renormalize
        router = Router(layer, runner.layer_name, module, family, runner)
        require_same_rule(router, compute, vllm_router)

        def with_noise(
            hidden: Tensor, logits: Tensor, *arguments: Any, **keywords: Any
        ) -> tuple[Tensor, Tensor]:
            self._ran[layer] += 1
            weights, index = compute(hidden, logits, *arguments, **keywords)
            changed = self.policy(router, Routing(logits, weights, index.long()))
            return (
                (weights, index)
                if changed is None
                else (changed.weights_TK, changed.index_TK.to(index.dtype))
            )

        vllm_router._compute_routing = with_noise


def require_same_rule(router: Router, compute: Compute, vllm_router: Any) -> None:
    """Raise ValueError unless moe_lab's rule and vLLM's router route random logits equally."""
    numbers = torch.Generator("cpu").manual_seed(0)
    logits = torch.randn(
        64, vllm_router.global_num_experts, generator=numbers, dtype=torch.float32, device="cpu"
    )
    logits = logits.to(torch.get_default_device())
    weights, index = compute(logits, logits, None)
    index, order = index.long().sort(dim=-1)
    expected = router.choose(router.scores(logits), index.shape[-1]).sort(dim=-1).values
    own = router.weights(logits, index)
    if not torch.equal(index, expected) or not torch.allclose(
        weights.gather(-1, order).float(), own, atol=1e-6
    ):
        raise ValueError(
            f"RoE in vLLM: {router.name} does not route by moe_lab's rule of {router.family.name} "
            f"({router.family.rule.text}).\nUse moe_lab.RoE for this model."
        )
