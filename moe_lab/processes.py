"""Several processes of torchrun: the first does what a single one does, the others follow it through the model.

    torchrun --nproc-per-node 2 -m moe_lab method=roe model=mixtral model.tp_plan=auto task=gsm8k

With `model.tp_plan` every process holds a part of each layer, so all must make the same passes. Process 0 alone reads
what is stored, evaluates and writes; before it loads the model or answers requests it tells the others, which do the
same and drop the answers. If one fails, torchrun ends the others; the same command continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from moe_lab.config import Config
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM, OnAnswer, Request

PATIENCE = timedelta(days=7)
"""How long a process waits for the first one, which may be fetching weights or evaluating."""


def in_step(configs: Sequence[Config], run: Callable[[], int]) -> int:
    """`run()` in the first process; in the others, what that one tells. Returns the exit code.

    Raises ConfigError where processes and `model.tp_plan` do not go together.
    """
    _check(configs)
    if not configs[0].model.tp_plan:
        return run()
    import torch.distributed as dist

    dist.init_process_group(timeout=PATIENCE)
    if dist.get_rank():
        _follow()
        code = 0
    elif (code := run()) == 0:
        _tell(None)
    if code == 0:  # else the others may be waiting in a pass: torchrun ends them
        dist.destroy_process_group()
    return code


def _check(configs: Sequence[Config]) -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    split = [config for config in configs if config.model.tp_plan]
    if not split and processes > 1:
        raise ConfigError(
            f"torchrun started {processes} processes, and only model.tp_plan=auto has work for more than one."
        )
    if not split:
        return
    if processes < 2:
        raise ConfigError(
            "model.tp_plan splits a model over several processes: torchrun --nproc-per-node 2 -m moe_lab ... "
            "model.device_map=auto uses several GPUs in one process."
        )
    one = configs[0]
    if len(configs) > 1 or one.num_seeds > 1 or one.tuning.name != "none" or one.experiment:
        raise ConfigError("model.tp_plan takes one run at a time: no -m, seeds=, tuning= or experiment=.")
    if get_method(one.method.name).trains:
        raise ConfigError("model.tp_plan splits models that are evaluated; training takes one process.")


class Leading:
    """An `EngineLM` of the first process: the others answer the same requests."""

    def __init__(self, lm: EngineLM, config: Config):
        self._lm = lm
        self._config = config

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """As `EngineLM.answer`."""
        _tell((self._config, kind, list(requests)))
        self._lm.answer(kind, requests, on_answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)


def tell_to_load(config: Config) -> None:
    """Let the others load the model of this run now, which takes all of them at once."""
    from moe_lab.models.hub import model_folder

    model_folder(config.model, offline=config.offline, weights=True)  # fetched once, by this process
    _tell((config, "load", []))


def _tell(message: tuple[Config, str, list[Request]] | None) -> None:
    import torch.distributed as dist

    dist.broadcast_object_list([message], src=0, device="cpu")


def _follow() -> None:
    import torch.distributed as dist

    from moe_lab.models.pool import ModelPool

    os.environ["TQDM_DISABLE"] = "1"
    models = ModelPool()
    while True:
        told: list[Any] = [None]
        dist.broadcast_object_list(told, src=0, device="cpu")
        if told[0] is None:
            return
        config, kind, requests = told[0]
        loaded = models.get(config)
        if kind == "load":
            continue
        with get_method(config.method.name)(config.method).open(loaded, config) as lm:
            lm.answer(kind, requests, lambda index, answer: None)
