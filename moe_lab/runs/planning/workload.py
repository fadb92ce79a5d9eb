"""The workload of runs, estimated without weights."""

from typing import Any

from moe_lab.methods.method import DesignMethod
from moe_lab.models.source import load_config
from moe_lab.runs.run import Run
from moe_lab.runs.trainings import Training
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.loading import once
from moe_lab.tasks.workload import Workload, workload_of_tasks


def workload_of(run: Run) -> Workload:
    """The workload of a run without its baseline."""
    return workload_of_tasks(run.tasks["tasks"], run.samples, run.config, design_of(run))


def design_of(work: Run | Study | Training) -> Any:
    """The configuration of transformers of the work's model, read once for the runs of a
    command."""
    config = work.config
    method = work.method
    key = f"design {config.model} {config.offline} {method.config}"
    if isinstance(method, DesignMethod):
        return once(key, lambda: method.architecture(config))
    return once(key, lambda: load_config(config.model, offline=config.offline))
