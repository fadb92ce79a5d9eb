"""transformers' Trainer with the routers' regularizers, each logged apart by layer, and the loss on held-out rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from moe_lab.methods.checked_trainer import CheckedTrainer
from moe_lab.methods.pretrain.balance import LossFreeBalance
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.losses import balance_loss, device_loss, z_loss
from moe_lab.methods.pretrain.routing import TrainingRouting
from moe_lab.methods.routing_noise import Temperatures
from moe_lab.methods.trainer import LOSS


class PretrainTrainer(CheckedTrainer):
    """Trains a design. The logged `loss` is the cross-entropy per token, without regularizers."""

    control: Any

    def __init__(self, *, design: PretrainConfig, routing: TrainingRouting, held_out: Any, **options: Any):
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
        self.temperatures = Temperatures(
            *(design.routing_noise, design.routing_noise_schedule),
            steps=design.steps,
            sequences=design.rows,
            seed=options["args"].seed,
        )
        super().__init__(**options)
        self.balance = LossFreeBalance(self.model, design.bias_rate) if design.bias_rate else None
        if self.balance:
            self.add_callback(self.balance)
        self.add_callback(AtCheckpoints())

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Cross-entropy plus each regularizer at its coefficient: its mean over MoE layers and the step's passes."""
        inputs = dict(inputs)
        row_B = inputs.pop("row")
        with self.routing.one_pass(row_B, inputs["input_ids"].shape[1], self._temperature(row_B)):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.balance:
            self.balance.count(self.routing.layers)
        divided = self.current_gradient_accumulation_steps if self.model_accepts_loss_kwargs else 1
        for name, values_L in self._regularizers().items():
            loss = loss + self.weights[name] * values_L.mean() / divided
            self.seen.setdefault(name, []).append(values_L.detach())
        self.losses.append(loss.detach())
        return (loss, outputs) if return_outputs else loss

    def _temperature(self, row_B: Tensor) -> Tensor | None:
        if not self.design.routing_noise:
            return None
        return self.temperatures(row_B, self.state.global_step).to(self.args.device)

    def _regularizers(self) -> dict[str, Tensor]:
        """By name: float32 [layers]."""
        layers, found = self.routing.layers, {}
        if "balance_loss" in self.weights:
            found["balance_loss"] = [balance_loss(each.logits_TE, each.index_TK) for each in layers]
        if "device_loss" in self.weights:
            count = self.design.devices
            found["device_loss"] = [device_loss(each.logits_TE, each.index_TK, count) for each in layers]
        if "z_loss" in self.weights:
            found["z_loss"] = [z_loss(each.logits_TE) for each in layers]
        return {name: torch.stack(values) for name, values in found.items()}

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Log the mean cross-entropy per token of the held-out rows."""
        mean = float(self.row_losses().mean())
        self._check(torch.tensor(mean), "validation loss", self.state.global_step)
        self.log({LOSS: mean})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, {LOSS: mean})
        return {"eval_loss": mean}

    @torch.no_grad()
    def row_losses(self) -> Tensor:
        """float64 [rows]: the cross-entropy per token of each held-out row, computed in every process."""
        self.model.eval()
        size = self.design.batch_size
        found = [
            losses_of(self.model, torch.from_numpy(self.held_out[start : start + size]).to(self.args.device))
            for start in range(0, len(self.held_out), size)
        ]
        self.model.train()
        return torch.cat(found).double().cpu()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds each regularizer by layer; takes them out of the loss."""
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
    """Evaluates at every checkpoint, before it is written, and at the end."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save or state.global_step == state.max_steps:
            control.should_evaluate = control.should_log = True
