"""Whether OLMoE-1B-7B runs in the GPU memory that `mode=plan` plans: random bfloat16 weights, toy
tasks.

    python -m benchmarks.gpu_memory --work-dir <folder with 14 GB free>

The process gets the planned bytes and a ninth of them more (a tenth of a GPU is left free). Passes
that do not fit into it are halved, so that the run ends, and takes longer. Trainings:
`benchmarks.finetune --full-size`.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer

import moe_lab
from benchmarks.roe_gpu import OLMOE_1B_7B, random_model
from moe_lab.runs.planning.memory import USABLE

GB = 10**9
GENERATE = "task=toy_math num_fewshot=8 limit=64 gen_kwargs=max_gen_toks=64"
SCORE = "task=toy_choice num_fewshot=8 limit=64"
SETTINGS = {
    "base, generation": f"method=base {GENERATE}",
    "RoE n=32, generation": f"method=roe method.n=32 {GENERATE}",
    "RoE n=32, standard cache, "
    "generation": f"method=roe method.n=32 method.cache=standard {GENERATE}",
    "RoE n=32, scoring": f"method=roe method.n=32 {SCORE}",
    "C3PO, scoring": f"method=c3po method.reference_size=32 {SCORE}",
}


def write_model(folder: Path) -> None:
    random_model(OLMOE_1B_7B, torch.device("cuda")).save_pretrained(folder)
    tiny = Path(moe_lab.__file__).parent / "models" / "tiny"
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)


def measure(command: str, model: Path, outputs: Path) -> tuple[int, int | None, float]:
    """(planned bytes, most bytes that were allocated, seconds) of a run; None: it ended out of
    memory."""
    keys = [
        f"model.path={model}",
        "model.name=olmoe",
        f"output_dir={outputs}",
        "dtype=bfloat16",
        "device=cuda",
    ]
    overrides = [*command.split(), *keys]
    plan = moe_lab.plan(overrides).frame()
    planned = int(
        plan[plan["method"] == command.split()[0].removeprefix("method=")]["gpu_memory"].max()
    )
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, planned / USABLE / whole))
    start = time.perf_counter()
    try:
        moe_lab.run([*overrides, "baseline=false"], quiet=True)
    except moe_lab.errors.MoeLabError as error:
        print(error)
        return planned, None, time.perf_counter() - start
    return planned, torch.cuda.max_memory_allocated(), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument(
        "--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS, metavar="SETTING"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "No CUDA device is here: nothing was measured. This benchmark needs one with 30 GB of "
            "memory."
        )
        return
    model = options.work_dir / "olmoe"
    outputs = options.work_dir / "outputs"
    try:
        write_model(model)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
        print("| | planned, GB | given, GB | peak, GB | seconds |\n|---|---:|---:|---:|---:|")
        for name in options.settings:
            planned, peak, seconds = measure(SETTINGS[name], model, outputs)
            outcome = "out of memory" if peak is None else f"{peak / GB:.1f}"
            given = planned / USABLE
            sizes = f"{planned / GB:.1f} | {given / GB:.1f} | {outcome}"
            print(f"| {name} | {sizes} | {seconds:.0f} |", flush=True)
    finally:
        shutil.rmtree(options.work_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
