"""The expert metrics of any training by transformers' Trainer, in its own log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks

from moe_lab.errors import ConfigError
from moe_lab.metrics.entropies import entropies_of
from moe_lab.metrics.registry import counted_metrics, interventions, values_of
from moe_lab.metrics.teacher_forcing import TokenizedExample
from moe_lab.metrics.training_metrics import measure
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.passes import in_backward, on_passes
from moe_lab.routing.policy import Policy


class ExpertMetrics(TrainerCallback):
    """Logs how a Mixture of Experts uses its experts while it is trained.

        trainer.add_callback(moe_lab.ExpertMetrics(every=50))

    It works in transformers' Trainer and in trainers derived from it, such as TRL's. Every `every`
    optimizer steps its values are in the trainer's `log_history`, and go to its `report_to`:

        expert/load_balance         entropy of the experts' selections, bits, mean over layers
        expert/collaboration        entropy of pairs of experts selected together, bits
        expert/dead                 experts that no token selected, sum over layers; without `rows`
        expert/<name>/layer_<l>     the value of each MoE layer
        expert/accuracy, expert/capacity_least, expert/capacity_most, expert/specialization
                                    with `rows` (MoE-Bench, section 4.1)

    Weights and random numbers of the training stay as they are.

    Args:
        every: optimizer steps between two measurements.
        rows: validation examples, mappings with `input_ids` and `labels` (-100: not predicted),
            which are measured. None: the tokens of the training batches since the last measurement
            are counted, padding excluded.

    Raises ConfigError for `every` below 1, and when the training begins ModelError for a model
    without routers of single tokens.
    """

    def __init__(self, every: int = 50, rows: Sequence[TokenizedExample] | None = None):
        if every < 1:
            raise ConfigError(f"every={every}: give a number of optimizer steps, 1 or more.")
        self.every = every
        self.rows = rows
        self._counting = ExitStack()
        self._counts = _Counts()
        self._reporters: list[Any] = []

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Begin to count the tokens of the training batches."""
        if state.is_world_process_zero:
            for reporter in get_reporting_integration_callbacks(args.report_to):
                self._reporters.append(reporter())
        if self.rows is None:
            self._counting.enter_context(routed(model, self._counts, repeats=True))
            for handle in on_passes(model, self._counts.begin):
                self._counting.callback(handle.remove)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Log the values of every `every`-th step."""
        if state.global_step % self.every:
            return
        if self.rows is not None:
            measured = measure(model, self.rows)
            counted = measured
        else:
            measured = {}
            counted = self._counts.taken(args.world_size)
        values = _by_layer(counted)
        values |= _interventions(measured)
        if not values:
            return
        state.log_history.append({**values, "step": state.global_step})
        for reporter in self._reporters:
            reporter.on_log(args, state, control, model=model, logs=dict(values), **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the model."""
        self._counting.close()


class _Counts(Policy):
    """Counts the experts of the training batches' tokens.

    S = tokens of a row, B = rows, T = B x S, E = experts.
    """

    observes = True

    def __init__(self) -> None:
        self.pairs: dict[int, Tensor] = {}
        """float64 [E, E] by MoE layer: tokens that selected both; the diagonal: one of them."""
        self._is_training = False
        self._mask: Tensor | None = None
        """[B, S], 1 for tokens that are no padding; None: none is padding."""

    def begin(self, arguments: tuple, keywords: dict[str, Any]) -> None:
        """Note which tokens of the next pass are no padding, and whether they are counted."""
        self._is_training = torch.is_grad_enabled()
        self._mask = keywords.get("attention_mask")

    def __call__(self, router: Router, routing: Routing) -> None:
        """Count a decision of a training pass, but not again where layers are computed again."""
        if not self._is_training or in_backward():
            return
        chosen_TE = torch.zeros_like(routing.logits_TE, dtype=torch.float32)
        chosen_TE.scatter_(1, routing.index_TK, (routing.weights_TK != 0).float())
        if self._mask is not None and self._mask.numel() == len(chosen_TE):
            chosen_TE = chosen_TE * self._mask.reshape(-1, 1).to(chosen_TE)
        pairs_EE = (chosen_TE.T @ chosen_TE).detach().double()
        if router.layer in self.pairs:
            pairs_EE += self.pairs[router.layer]
        self.pairs[router.layer] = pairs_EE

    def taken(self, processes: int) -> dict[str, Any]:
        """`entropies_of` all tokens that were counted in all processes, and `dead`, the number of
        experts of each layer that none of them selected. Counting begins again.

        Empty if no token was counted.
        """
        pairs = [self.pairs[layer] for layer in sorted(self.pairs)]
        self.pairs = {}
        if not pairs:
            return {}
        if processes > 1:
            for pairs_EE in pairs:
                torch.distributed.all_reduce(pairs_EE)
        experts = [len(pairs_EE) for pairs_EE in pairs]
        most = max(experts)
        pairs_LEE = np.zeros((len(pairs), most, most), dtype=np.int64)
        dead = []
        for layer, pairs_EE in enumerate(pairs):
            counts_EE = pairs_EE.cpu().numpy().astype(np.int64)
            pairs_LEE[layer, : experts[layer], : experts[layer]] = counts_EE
            dead.append(int((counts_EE.diagonal() == 0).sum()))
        return {**entropies_of(pairs_LEE[None], experts), "dead": dead}


def _interventions(measured: dict[str, Any]) -> dict[str, float]:
    """Accuracy, and the accuracy lost under each intervention, by their names in the log; empty if
    nothing was measured."""
    if not measured:
        return {}
    values: dict[str, float] = {"expert/accuracy": measured["accuracy"]["value"]}
    lost = values_of(measured)
    for _, intervention in interventions():
        value = lost[intervention.name].value
        if value is not None:
            values[f"expert/{intervention.logged_as}"] = value
    return values


def _by_layer(counted: dict[str, Any]) -> dict[str, float]:
    """The counted metrics and the dead experts, by their names in the log."""
    values: dict[str, float] = {}
    for name in counted_metrics():
        metric = counted.get(name)
        if metric is None:
            continue
        values[f"expert/{name}"] = metric["value"]
        for layer, block in enumerate(metric["layers"]):
            values[f"expert/{name}/layer_{layer}"] = block["value"]
    dead_L = counted.get("dead")
    if dead_L is not None:
        values["expert/dead"] = sum(dead_L)
        for layer, dead in enumerate(dead_L):
            values[f"expert/dead/layer_{layer}"] = dead
    return values
