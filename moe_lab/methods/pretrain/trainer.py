"""The Trainer of `method=pretrain`: regularizers of routers, loss-free balance,
and the loss on validation rows.

Regularizers are logged separately and by layer.

B = rows of a pass, S = tokens of a row, E = experts, L = MoE layers, V = vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.regularizers import balance_loss, device_loss, load, z_loss
from moe_lab.methods.pretrain.routing import TrainingRouting
from moe_lab.methods.trainer import MoeTrainer
from moe_lab.routing import Routing


class LossFreeBalance(TrainerCallback):
    """Loss-free load balancing (Wang et al. 2024):
    a bias on the scores by which experts are chosen.

    After each optimizer step, `rate` is added to the bias of experts with less than the mean load,
    and subtracted from that of experts with more. The bias is a buffer of the router, so no
    optimizer changes it, and fine-tuning leaves it as it is.
    """

    def __init__(self, model: nn.Module, rate: float):
        self.rate = rate
        self.routers: list[Any] = []
        """Modules instead of their biases, because DistributedDataParallel replaces the tensors of
        buffers."""
        self.loads: list[Tensor] = []
        """[E] of each router: how often its experts were chosen in this step."""
        for module in model.modules():
            bias = getattr(module, "selection_bias", None)
            if bias is not None:
                self.routers.append(module)
                self.loads.append(torch.zeros_like(bias))

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
        self.design = design
        self.routing = routing
        self.held_out = held_out
        self.weights = regularizer_weights(design)
        self.regularizers: dict[str, list[Tensor]] = {}
        """Regularizers [layers] of the passes since the last line of the log."""
        super().__init__(**options)
        self.balance = LossFreeBalance(self.model, design.bias_rate) if design.bias_rate else None
        if self.balance:
            self.add_callback(self.balance)
        self.add_callback(AtCheckpoints())

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Cross-entropy plus each regularizer times its coefficient,
        a mean over MoE layers and the step's passes."""
        inputs = dict(inputs)
        row_B = inputs.pop("row").to(self.args.device)
        with self.routing.one_pass(row_B, inputs["input_ids"].shape[1]):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.balance:
            self.balance.count(self.routing.layers)
        # the Trainer divides a loss by the passes unless the model takes num_items_in_batch
        divisor = self.current_gradient_accumulation_steps if self.model_accepts_loss_kwargs else 1
        for name, values_L in self._regularizers().items():
            loss = loss + self.weights[name] * values_L.mean() / divisor
            self.regularizers.setdefault(name, []).append(values_L.detach())
        return (loss, outputs) if return_outputs else loss

    def _regularizers(self) -> dict[str, Tensor]:
        """float32 [L] by name."""
        regularizers = {}
        for name in self.weights:
            losses = [self._regularizer(name, routing) for routing in self.routing.layers]
            regularizers[name] = torch.stack(losses)
        return regularizers

    def _regularizer(self, name: str, routing: Routing) -> Tensor:
        """A regularizer of one layer."""
        if name == "balance_loss":
            return balance_loss(routing.logits_TE, routing.index_TK)
        if name == "device_loss":
            return device_loss(routing.logits_TE, routing.index_TK, self.design.devices)
        return z_loss(routing.logits_TE)

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Log the mean cross-entropy per token of the validation rows."""
        return self.log_validation(float(self.row_losses().mean()))

    @torch.no_grad()
    def row_losses(self) -> Tensor:
        """float64 [rows]: the cross-entropy per token of each validation row,
        computed in every process."""
        self.model.eval()
        size = self.design.batch_size
        losses = []
        for start in range(0, len(self.held_out), size):
            ids_BS = torch.from_numpy(self.held_out[start : start + size]).to(self.args.device)
            losses.append(losses_of(self.model, ids_BS))
        self.model.train()
        return torch.cat(losses).double().cpu()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log each regularizer by layer, and the loss without them."""
        if "loss" in logs:
            for name, passes in self.regularizers.items():
                mean_L = self.accelerator.reduce(torch.stack(passes).mean(0), reduction="mean")
                logs[name] = mean_L.tolist()  # type: ignore[assignment]
                logs["loss"] -= self.weights[name] * float(mean_L.mean())
            self.regularizers.clear()
        super().log(logs, start_time)


def regularizer_weights(design: PretrainConfig) -> dict[str, float]:
    """The coefficient of each regularizer in the loss, without those that are 0."""
    if design.backbone == "dense":
        return {}
    weights = {
        "balance_loss": design.auxiliary,
        "z_loss": 0.0 if design.is_hashed else design.z_loss,
        "device_loss": design.device_loss,
    }
    return {name: weight for name, weight in weights.items() if weight}


def losses_of(model: Any, ids_BS: Tensor) -> Tensor:
    """float32 [B]: the cross-entropy per token of each row."""
    logits_BSV = model(input_ids=ids_BS.long()).logits[:, :-1].float()
    loss_BS = torch.nn.functional.cross_entropy(
        logits_BSV.transpose(1, 2), ids_BS[:, 1:].long(), reduction="none"
    )
    return loss_BS.mean(1)


class AtCheckpoints(TrainerCallback):
    """Evaluates at every checkpoint, before it is written.

    The Trainer writes one at the end, too.
    """

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate |= control.should_save
