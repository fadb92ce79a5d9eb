"""Several processes of torchrun or `accelerate launch`: process 0 runs the command.

The others follow it.

    torchrun --nproc-per-node 2 -m moe_lab method=roe model=olmoe task=gsm8k
    torchrun --nproc-per-node 2 -m moe_lab method=finetune-freeze model=olmoe-base \\
        method.dataset=lima task=arc_easy

Process 0 alone computes scores and writes results. It broadcasts the calls that all processes make:
loading a model, training it (method=finetune-freeze), and answering requests
(`evaluation/shared_lm.py`). If a process fails, torchrun ends the others; if torchrun is killed,
they end by themselves. The same command continues.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial, partialmethod
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm
from transformers.utils import logging

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_error, print_message
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError, TrainingError, exit_code
from moe_lab.methods import get_method
from moe_lab.methods.method import Context, TrainingMethod
from moe_lab.models.distributed import broadcast, check_variables, is_split, num_processes, sharded
from moe_lab.models.facts import LoadedModel
from moe_lab.models.memory import ModelPool
from moe_lab.models.source import model_folder
from moe_lab.runs.parent import end_with

PATIENCE = timedelta(days=7)
"""The time that a process waits for process 0, which may be downloading weights or evaluating."""
ASKING = timedelta(seconds=2)
"""The time of one try to reach the store. No signal ends it before."""
ANNOUNCED_AFTER = 5.0
"""Seconds after which a process says for whom it waits; then after 10, 20, ..."""


def follow(configs: Sequence[Config]) -> int | None:
    """Follow process 0: make the calls that it broadcasts, and return the exit code.

    In process 0, and without other processes, return None at once. Raises ConfigError for what
    several processes cannot share.
    """
    check_variables()
    _check(configs)
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # dtype= takes its place
    if num_processes() < 2:
        os.environ.pop("LOCAL_RANK", None)  # else accelerate expects other processes
        return None
    # without torchrun the parent may be a shell, which ends before its command
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(os.getppid())
    sharded()  # forgets accelerate's own setting of FSDP before any Trainer reads it
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns that no parameter is unused
    if torch.cuda.is_available() and configs[0].device != "cpu":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = int(os.environ["RANK"])
    store = joined_store(rank, num_processes(), configs[0].distributed.timeout)
    dist.init_process_group(store=store, rank=rank, world_size=num_processes(), timeout=PATIENCE)
    if not rank:
        return None
    # it waits in C++, where no handler of Python runs
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    code = _follow(rank)
    if code == 0:
        dist.destroy_process_group()
    return code


def joined_store(rank: int, size: int, timeout: float) -> dist.Store:
    """The store of torchrun's environment, once all processes have joined it.

    It is asked again and again, so that a signal ends the waiting. Raises ConfigError after
    `timeout` seconds.
    """
    address = f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT'])}"
    start = time.monotonic()
    announced = ANNOUNCED_AFTER
    joined = 0
    store: dist.Store | None = None
    while True:
        if store is None:
            store = _store_of(rank, size)
        if store is not None:
            joined = sum(store.check([f"rank {other_rank}"]) for other_rank in range(size))
            if joined == size:
                return store
        waited = time.monotonic() - start
        message = f"{joined} of {size} processes have joined at {address} after {waited:.0f} s"
        if waited > timeout:
            raise ConfigError(
                f"Only {message} (distributed.timeout={timeout:g}).\n"
                "Start the others, or unset WORLD_SIZE and RANK if a cluster has left them in the "
                "environment."
            )
        if waited > announced:
            print_message(f"Process {rank} waits: {message}; it gives up after {timeout:g} s.")
            announced *= 2
        time.sleep(0.1)


def _store_of(rank: int, size: int) -> dist.Store | None:
    """The store, which this process joins; None if no process listens there yet."""
    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_master = rank == 0 and not has_agent
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store: dist.Store
    with suppress(dist.DistError):
        store = dist.TCPStore(
            address, port, size, is_master, timeout=ASKING, wait_for_workers=False
        )
        store = dist.PrefixStore(f"moe_lab/{attempt}", store)
        store.set(f"rank {rank}", "joined")
        return store
    return None


def end_processes(code: int) -> None:
    """End the other processes after a command without failures."""
    # after a failure they may wait in a forward pass: torchrun ends them
    if code == 0 and num_processes() > 1:
        broadcast(None)
        dist.destroy_process_group()


def _check(configs: Sequence[Config]) -> None:
    """Raise ConfigError for what several processes of torchrun cannot share."""
    if num_processes() < 2:
        return
    for config in configs:
        if config.model.device_map or config.device.startswith("cuda:"):
            raise ConfigError(
                "Each process of torchrun has one GPU: leave device=cuda:<index> and "
                "model.device_map out."
            )
        if is_split(config.model):
            _check_split(config)
        if configs[0].experiment:
            continue
        if config.tuning.name != "none":
            raise ConfigError(
                "Processes of torchrun divide one evaluation, and no study. "
                "launcher= shares its trials."
            )
        trains = issubclass(get_method(config.method.name), TrainingMethod)
        if config.metrics != "none" and not trains:
            raise ConfigError(
                f"metrics={config.metrics} takes one process: start it without torchrun."
            )


def _check_split(config: Config) -> None:
    """Raise ConfigError for what would load a split model in process 0 alone."""
    trains = issubclass(get_method(config.method.name), TrainingMethod)
    if trains or config.experiment:
        what = f"method={config.method.name}" if trains else f"experiment={config.experiment}"
        raise ConfigError(
            f"{what} needs the whole model in each process, and model.load.tp_plan splits it. "
            "Leave it out."
        )


def load_on_all_ranks(config: Config, models: ModelPool) -> LoadedModel:
    """The model of a run, loaded in all processes."""
    # fetched once, by this process
    model_folder(config.model, offline=config.offline, weights=True)
    broadcast(partial(_load, config))
    loaded = models.get(config)
    dist.barrier()
    return loaded


def free_on_all_ranks(models: ModelPool) -> None:
    """Remove the model in memory from this process and the others."""
    models.free()
    if num_processes() > 1:
        broadcast(_free)


def _follow(rank: int) -> int:
    """Make the calls that process 0 broadcasts until it is done. Returns the exit code."""
    tqdm.__init__ = partialmethod(tqdm.__init__, disable=True)
    logging.set_verbosity_error()
    try:
        while True:
            calls: list[Any] = [None]
            dist.broadcast_object_list(calls, src=0, device="cpu")
            if calls[0] is None:
                return 0
            try:
                calls[0]()
            except TrainingError:
                continue  # process 0 has the same error and reports it
    except KeyboardInterrupt as stop:
        return exit_code(stop)
    except Exception as error:
        if "gloo" in str(error) or isinstance(error, dist.DistError):
            print_message(f"Process {rank} ends, as another one has.")
        else:
            print_message(f"Process {rank}:")
            print_error(error)
        return exit_code(error)


@cache
def _models() -> ModelPool:
    """The model pool of a process that follows process 0."""
    return ModelPool()


def _load(config: Config) -> None:
    """Load the model of a run in this process."""
    with ExitStack() as opened:
        if is_split(config.model):
            _models().get(config)
        else:
            opened.enter_context(follower_lm(config))  # so that its imports count as loading, too
        dist.barrier()


def _free() -> None:
    """Remove the model in memory from this process."""
    _models().free()


@contextmanager
def follower_lm(config: Config) -> Iterator[EngineLM]:
    """The LM of a run in another process than process 0."""
    method = get_method(config.method.name)(config.method)
    with method.open(_models().get(config), Context(config=config)) as lm:
        lm.progress = False
        yield lm
