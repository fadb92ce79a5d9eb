"""The Trainer of `method=pretrain`: regularizers of routers, loss-free balance, and the loss on validation rows.

The regularizers are those of MoE-Bench (appendix B.1.3), each of one layer, without padding. They are logged separately
and by layer.

T = tokens of a pass, B = its rows, S = tokens of a row, E = experts, K = experts per token, D = devices, L = MoE
layers, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.trainer import MoeTrainer
from moe_lab.models.designs.routers import DesignRouter
from moe_lab.routing import Policy, Router, Routing, find_routers, routed
from moe_lab.routing.hook import why_fixed
from moe_lab.routing.noise import gumbel_for_tokens
from moe_lab.routing.samples import NoisyTokens, SamplePolicy, noisy_choice, with_experts


def balance_loss(logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """Sum over experts of f P (equation 2 without alpha).

    f_j is the share of tokens that chose expert j, P_j the mean of its softmax probability before the choice. The loss
    is K / E if both are uniform. transformers' loss has a factor E, and f and P over all layers together.
    """
    return (_chosen(logits_TE, index_TK) * _probability(logits_TE)).sum()


def z_loss(logits_TE: Tensor) -> Tensor:
    """Mean over tokens of the squared log-sum-exp of the logits (equation 3)."""
    return logits_TE.float().logsumexp(-1).square().mean()


def device_loss(logits_TE: Tensor, index_TK: Tensor, devices: int) -> Tensor:
    """DeepSeekMoE's device-level balance loss (Dai et al. 2024, equations 15-17, without alpha).

    Experts are in `devices` groups of equal size, in their order. The loss is the sum over groups of (mean of E/K f in
    the group) x (sum of P in the group), which is 1 if both are uniform.
    """
    experts, k = logits_TE.shape[-1], index_TK.shape[-1]
    chosen_D = (_chosen(logits_TE, index_TK) * experts / k).view(devices, -1).mean(-1)
    return (chosen_D * _probability(logits_TE).view(devices, -1).sum(-1)).sum()


def load(index_TK: Tensor, experts: int) -> Tensor:
    """float32 [E]: how often each expert was chosen."""
    return torch.bincount(index_TK.reshape(-1), minlength=experts).float()


def _chosen(logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    return load(index_TK, logits_TE.shape[-1]) / len(logits_TE)


def _probability(logits_TE: Tensor) -> Tensor:
    return logits_TE.float().softmax(-1).mean(0)


class RoutingNoise(SamplePolicy):
    """RoE's noise on the routers' choice (equation 1) while a model trains, with a temperature for each row.

    This policy chooses experts by scores + temperature x Gumbel noise, and weighs them by the clean scores. It changes
    only the passes inside `noisy`. The key of the noise is (seed, row, position, layer, expert), so a resumed training
    draws the same noise, and several processes draw the same noise as one.

    Args:
        temperatures: float32, of each row of the training.
    """

    def __init__(self, seed: int, temperatures: Tensor):
        super().__init__()
        self.seed, self.temperatures = seed, temperatures
        self._temperature_T = temperatures[:0]
        """Of the tokens of the pass."""
        self.expect(None)

    @classmethod
    def of(cls, seed: int, highest: float, rows: int) -> RoutingNoise | None:
        """With temperatures that are uniform between 0 and the highest one; None if that is 0."""
        if not highest:
            return None
        drawn = np.random.default_rng([seed, rows]).random(rows, dtype=np.float32)
        return cls(seed, torch.from_numpy(drawn) * highest)

    @contextmanager
    def noisy(self, row_B: Tensor, length: int) -> Iterator[None]:
        """Add noise to a pass over these rows, each of `length` tokens."""
        device, count = row_B.device, row_B.numel() * length
        zero_T = torch.zeros(count, dtype=torch.int64, device=device)
        tokens = NoisyTokens(
            index=None,
            document=row_B.repeat_interleave(length),
            repeat=zero_T,
            row=zero_T + 1,
            position=torch.arange(length, device=device).repeat(row_B.numel()),
        )
        temperature_B = self.temperatures[row_B.cpu()].to(device)
        self._temperature_T = temperature_B.repeat_interleave(length)
        self.expect(tokens)
        try:
            yield
        finally:
            self.expect(None)

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        tokens, logits_TE = self.tokens, routing.logits_TE
        if tokens is None:
            return None
        noise_LTE = gumbel_for_tokens(
            self.seed,
            tokens.document,
            tokens.repeat,
            tokens.row,
            tokens.position,
            torch.tensor([router.layer], device=logits_TE.device),
            logits_TE.shape[-1],
        )
        noise_TE = self._temperature_T[:, None] * noise_LTE[0]
        with torch.no_grad():
            _, index_TK = noisy_choice(router, logits_TE, noise_TE, routing.index_TK.shape[-1])
        return with_experts(router, routing, tokens, logits_TE, index_TK)


class TrainingRouting(Policy):
    """A policy that records every layer's decisions of a training pass, after optional noise on them."""

    def __init__(self, noise: RoutingNoise | None):
        self.noise = noise
        self.layers: list[Routing] = []
        """The decisions of the last pass, by layer; empty for a dense model. With expert choice `index_TK` has the
        tokens of each expert instead; then no regularizer reads them."""
        self._keeps = False

    @contextmanager
    def one_pass(self, row_B: Tensor, length: int) -> Iterator[None]:
        """Record one pass over rows [B] of `length` tokens."""
        self.layers, self._keeps = [], True
        try:
            with self.noise.noisy(row_B, length) if self.noise else nullcontext():
                yield
        finally:
            self._keeps = False

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        noisy = self.noise(router, routing) if self.noise else None
        self.keep(noisy or routing)
        return noisy

    def keep(self, decided: Routing) -> None:
        """Record the decisions of a layer, if the pass is recorded."""
        if self._keeps:
            self.layers.append(decided)


@contextmanager
def training_routing(model: nn.Module, noise: RoutingNoise | None) -> Iterator[TrainingRouting]:
    """Install the policy on a model with routers of single tokens.

    Routers of words and sentences and expert choice are only observed. A dense model has none.
    """
    routing = TrainingRouting(noise)
    if find_routers(model) and not why_fixed(model):
        with routed(model, routing):
            yield routing
        return
    routers = [module for module in model.modules() if isinstance(module, DesignRouter)]
    handles = [
        router.register_forward_hook(lambda module, args, output: routing.keep(Routing(*output)))
        for router in routers
    ]
    try:
        yield routing
    finally:
        for handle in handles:
            handle.remove()


class LossFreeBalance(TrainerCallback):
    """Loss-free load balancing (Wang et al. 2024): a bias on the scores by which experts are chosen.

    After each optimizer step, `rate` is added to the bias of experts with less than the mean load, and subtracted from
    that of experts with more. The bias is a buffer of the router, so no optimizer changes it, and fine-tuning leaves it
    as it is.
    """

    def __init__(self, model: nn.Module, rate: float):
        self.rate = rate
        self.routers = [
            each for each in model.modules() if getattr(each, "selection_bias", None) is not None
        ]
        """Modules instead of their biases, because DistributedDataParallel replaces the tensors of buffers."""
        self.loads: list[Tensor] = [torch.zeros_like(each.selection_bias) for each in self.routers]

    def count(self, layers: list[Routing]) -> None:
        """Add the decisions of a pass."""
        for total_E, layer in zip(self.loads, layers, strict=True):
            total_E += load(layer.index_TK, len(total_E))

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for router, total_E in zip(self.routers, self.loads, strict=True):
            if args.world_size > 1:
                torch.distributed.all_reduce(total_E)
            router.selection_bias += self.rate * (total_E.mean() - total_E).sign()
            total_E.zero_()


class PretrainTrainer(MoeTrainer):
    """Trains a design. The logged `loss` is the cross-entropy per token, without regularizers."""

    def __init__(
        self, *, design: PretrainConfig, routing: TrainingRouting, held_out: Any, **options: Any
    ):
        self.design, self.routing, self.held_out = design, routing, held_out
        self.weights = {
            name: weight
            for name, weight in (
                ("balance_loss", design.auxiliary),
                ("z_loss", 0.0 if design.is_hashed else design.z_loss),
                ("device_loss", design.device_loss),
            )
            if weight and design.backbone != "dense"
        }
        self.seen: dict[str, list[Tensor]] = {}
        """Regularizers [layers] of the passes since the last line of the log."""
        super().__init__(**options)
        self.balance = LossFreeBalance(self.model, design.bias_rate) if design.bias_rate else None
        if self.balance:
            self.add_callback(self.balance)
        self.add_callback(AtCheckpoints())

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Cross-entropy plus each regularizer times its coefficient, a mean over MoE layers and the step's passes."""
        inputs = dict(inputs)
        row_B = inputs.pop("row").to(self.args.device)
        with self.routing.one_pass(row_B, inputs["input_ids"].shape[1]):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.balance:
            self.balance.count(self.routing.layers)
        # the Trainer divides a loss by the passes unless the model takes num_items_in_batch
        divided = self.current_gradient_accumulation_steps if self.model_accepts_loss_kwargs else 1
        for name, values_L in self._regularizers().items():
            loss = loss + self.weights[name] * values_L.mean() / divided
            self.seen.setdefault(name, []).append(values_L.detach())
        return (loss, outputs) if return_outputs else loss

    def _regularizers(self) -> dict[str, Tensor]:
        """float32 [L] by name."""
        devices = self.design.devices
        losses: dict[str, Callable[[Routing], Tensor]] = {
            "balance_loss": lambda layer: balance_loss(layer.logits_TE, layer.index_TK),
            "device_loss": lambda layer: device_loss(layer.logits_TE, layer.index_TK, devices),
            "z_loss": lambda layer: z_loss(layer.logits_TE),
        }
        return {
            name: torch.stack(list(map(losses[name], self.routing.layers))) for name in self.weights
        }

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Log the mean cross-entropy per token of the validation rows."""
        return self.log_validation(float(self.row_losses().mean()))

    @torch.no_grad()
    def row_losses(self) -> Tensor:
        """float64 [rows]: the cross-entropy per token of each validation row, computed in every process."""
        self.model.eval()
        size = self.design.batch_size
        found = [
            losses_of(
                self.model,
                torch.from_numpy(self.held_out[start : start + size]).to(self.args.device),
            )
            for start in range(0, len(self.held_out), size)
        ]
        self.model.train()
        return torch.cat(found).double().cpu()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log each regularizer by layer, and the loss without them."""
        if "loss" in logs:
            for name, passes in self.seen.items():
                mean_L = self.accelerator.reduce(torch.stack(passes).mean(0), reduction="mean")
                logs[name] = mean_L.tolist()  # type: ignore[assignment]
                logs["loss"] -= self.weights[name] * float(mean_L.mean())
            self.seen.clear()
        super().log(logs, start_time)


def losses_of(model: Any, ids_BS: Tensor) -> Tensor:
    """float32 [B]: the cross-entropy per token of each row."""
    logits_BSV = model(input_ids=ids_BS.long()).logits[:, :-1].float()
    loss_BS = torch.nn.functional.cross_entropy(
        logits_BSV.transpose(1, 2), ids_BS[:, 1:].long(), reduction="none"
    )
    return loss_BS.mean(1)


class AtCheckpoints(TrainerCallback):
    """Evaluates at every checkpoint, before it is written. The Trainer writes one at the end, too."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate |= control.should_save
