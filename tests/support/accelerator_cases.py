"""Every method on a GPU, or where there is none on a stand-in (`tests/support/accelerator.py`):
with the CPU's scores, and on the stand-in with few reads by the host.
`tests/runs/planning/test_plan.py` runs this file in a process of its own.

Broken by a tensor that is left on the CPU, by numpy on one of the device, by a value that the host
asks for in each layer, token or question.
"""

import json
import random
from collections import Counter
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import moe_lab
from moe_lab.engine.forward.decode_step import RECORDED, DecodeStep
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import NEVER_RECORDED, EnsembleForward
from moe_lab.engine.sampling import Decoding
from moe_lab.engine.scoring import Budget
from moe_lab.errors import ConfigError
from moe_lab.methods.c3po.descent import NeighbourLoss
from moe_lab.models.facts import resolve_device
from moe_lab.routing import GumbelTopK, find_routers, noise, routed
from moe_lab.routing.families import family_of_type
from moe_lab.routing.policies import PartnersOnly, Steered, partners_of
from tests.support.ensembles import ENSEMBLES, answers_of, ensembles, generated, prompts_for
from tests.support.models import make_model, small_model

if GPU := torch.cuda.is_available():
    DEVICE = torch.device("cuda", 0)
else:
    from tests.support.accelerator import DEVICE, host_reads

pytestmark = pytest.mark.slow  # libraries of GPUs start compilers
of_the_stand_in = pytest.mark.skipif(GPU, reason="there is a GPU")
SCORED = "task=toy_choice"
TEXT = "task=toy_text task.metric=bits_per_byte,none"
GENERATED = "task=toy_math gen_kwargs=max_gen_toks=6"
ROE = "method=roe method.n=3 method.temperature=1"
C3PO = (
    "method=c3po method.layers=last2 method.reference_size=12 method.steps=2 "
    f"method.shifts=2 {SCORED}"
)
SHORT = (
    "method=finetune-freeze method.dataset_size=8 method.max_steps=1 method.length=64 "
    "method.compare_with_full=false "
    "method.validation_size=2 method.warmup_ratio=0"
)
DESIGN = (
    "method.steps=1 method.hidden_size=32 method.layers=2 method.active_size=32 "
    "method.validation_rows=2"
)
RUNS = {
    "base": f"method=base {SCORED}",
    "base generates": f"method=base {GENERATED}",
    "base reads texts": f"method=base {TEXT}",
    "calibration": f"method=calibration method.logit_scale=0.5 {SCORED}",
    "roe": f"{ROE} {SCORED}",
    "roe generates": f"{ROE} {GENERATED}",
    "roe with caches of its own": f"{ROE} method.cache=standard {GENERATED}",
    "tuned roe": "method=roe method.n=2 seeds=1 tuning=uniform tuning.max_temperature=1 "
    "tuning.step=1 "
    f"tuning.num_samples=1 {TEXT}",
    "c3po": C3PO,
    "c3po generates": C3PO.replace(SCORED, f"method.reference=toy_choice {GENERATED}").replace(
        "=12", "=40"
    ),
    "c3po, mode finding": f"{C3PO} method.optimizer=mode_finding",
    "c2r": f"method=c2r method.dataset_size=8 {SCORED}",
    "steer": f"method=steer method.dataset_size=8 {SCORED}",
    "scmoe": f"method=scmoe {GENERATED}",
    "top-p": f"method=top-p method.p=0.5 {GENERATED}",
    "tuned top-k": f"method=top-k tuning=grid tuning.num_samples=1 {TEXT}",
    "icl": f"method=icl method.reference_size=12 {SCORED}",
    "prefix-tuning": f"method=prefix-tuning method.reference_size=8 method.epochs=1 {SCORED}",
    "soft-prompt": f"method=soft-prompt method.reference_size=8 method.epochs=1 {SCORED}",
    "fine-tuning": f"{SHORT} {SCORED}",
    "pre-training": f"method=pretrain {DESIGN} {SCORED}",
    "expert metrics": f"method=base metrics=expert {SCORED}",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A saved model of few layers: every operation on the stand-in is a call of Python."""
    folder = tmp_path_factory.mktemp("models") / "olmoe"
    make_model("olmoe", seed=2, num_hidden_layers=3).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The output folder of each device. The methods share the runs of the base model."""
    return {device: tmp_path_factory.mktemp("outputs") for device in ("cpu", str(DEVICE))}


def answers(command: str, device: str, model: Path, folder: Path) -> dict[str, Any]:
    """The answers of the runs of a command, by run and task."""
    keys = [
        f"model.path={model}",
        "dtype=float32",
        f"device={device}",
        "limit=2",
        f"output_dir={folder}",
    ]
    answers_found = {}
    for run in moe_lab.run([*command.split(), *keys], quiet=True).runs:
        for file in run.folder.glob("samples_*.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            answers_found[run.folder.name.rpartition("-")[0]] = [
                line["filtered_resps"] for line in lines
            ]
    return answers_found


def close(actual: Any, expected: Any) -> bool:
    """Whether texts are equal, and numbers but for rounding."""
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(close, actual, expected))
    try:
        return float(actual) == pytest.approx(float(expected), rel=1e-4, abs=1e-4)
    except ValueError:
        return actual == expected


@pytest.mark.parametrize("command", RUNS.values(), ids=RUNS)
def test_answers_are_those_of_the_cpu(command, model, folders):
    expected, answers_here = (
        answers(command, device, model, folder) for device, folder in folders.items()
    )
    assert answers_here.keys() == expected.keys()
    assert expected
    for name in expected:
        assert close(answers_here[name], expected[name]), name


@of_the_stand_in
def test_a_step_of_c3po_reads_the_device_twice(model, tmp_path, monkeypatch):
    """Whether the routers' logits are NaN, and the losses with their gradients."""
    steps: list[Counter[str]] = []
    gradient = NeighbourLoss.gradient

    def counted(self: NeighbourLoss, *arguments: Any) -> Any:
        with host_reads() as reads:
            gradients = gradient(self, *arguments)
        steps.append(reads)
        return gradients

    monkeypatch.setattr(NeighbourLoss, "gradient", counted)
    answers(f"{C3PO} baseline=false", str(DEVICE), model, tmp_path)
    assert len(steps) == 2, steps
    assert all(reads.total() == 2 for reads in steps), steps


FAMILIES = {
    "afmoe",
    "aria_text",
    "axk1",
    "cohere2_moe",
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt_oss",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "hy_v3",
    "kolibri1",
    "laguna",
    "mellum",
    "mimo_v2_flash",
    "minimax_m2",
    "minimax_m3_vl_text",
    "mixtral",
    "moe_design",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "solar_open",
}
"""Without a recurrent state."""
ROUTED_ALIKE = {family_of_type(name).rule.text: name for name in sorted(FAMILIES, reverse=True)}
"""One family of each routing rule."""


def waits_of_steps(
    model: Any, ensemble: Ensemble, monkeypatch: Any, uploads: bool = False
) -> list[int]:
    """How often the host reads the device, or uploads to it, in each of four steps."""
    extend = Decoding.extend
    counts: list[int] = []

    def counted(self: Decoding, states: Any, scores_AV: Any) -> None:
        counts.append(reads.total())
        extend(self, states, scores_AV)

    monkeypatch.setattr(Decoding, "extend", counted)
    with host_reads(uploads) as reads:
        answers_of(model, prompts_for(random.Random(2), 3), Budget(4000), 6, ensemble)
    return [after - before for before, after in pairwise(counts[1:])]


@of_the_stand_in
@pytest.mark.parametrize("family", ROUTED_ALIKE.values())
def test_a_step_of_generation_reads_the_device_once(family, monkeypatch):
    """The chosen tokens.

    Broken by a shape that depends on values, and by a check that is read at once.
    """
    model = deepcopy(small_model(family)).to(DEVICE)
    model.set_experts_implementation("grouped_mm")
    ensemble = Ensemble(4, GumbelTopK([0.5] * len(find_routers(model)), 0))
    assert waits_of_steps(model, ensemble, monkeypatch) == [1] * 4


@of_the_stand_in
def test_policies_upload_their_tables_once(monkeypatch):
    model = deepcopy(small_model("olmoe")).to(DEVICE)
    model.set_experts_implementation("grouped_mm")
    layers = len(find_routers(model))
    partners = partners_of(torch.rand(layers, 8, 8), 3)
    for policy in (
        PartnersOnly(partners),
        Steered(torch.arange(layers * 8).view(layers, 8) % 3 - 1),
    ):
        with routed(model, policy):
            waits = waits_of_steps(model, Ensemble(), monkeypatch, uploads=True)
        assert waits == [2] * 4, "the chosen tokens are read, and uploaded with their positions"


@of_the_stand_in
@pytest.mark.parametrize(
    ("family", "name"),
    [
        *((family, "roe") for family in ROUTED_ALIKE.values() if family != "phimoe"),
        *(("olmoe", name) for name in ENSEMBLES),
    ],
)
def test_a_step_in_place_neither_reads_nor_uploads(family, name, monkeypatch):
    """PhiMoE's own code reads the largest position."""
    model = deepcopy(small_model(family)).to(DEVICE)
    model.set_experts_implementation("grouped_mm")
    counts = []

    def record(step):
        with host_reads(uploads=True) as reads:
            step._run()
        counts.append(dict(reads))

    monkeypatch.setattr(EnsembleForward, "_may_be_recorded", lambda self: True)
    monkeypatch.setattr(DecodeStep, "_check", lambda self: setattr(self, "scores_BV", self._run()))
    monkeypatch.setattr(DecodeStep, "_record", record)
    answers_of(
        model, prompts_for(random.Random(2), 3), Budget(4000), 2 * RECORDED, ensembles(model)[name]
    )
    assert counts, counts
    assert not any(counts), counts


@pytest.mark.skipif(not GPU, reason="there is no GPU")
@pytest.mark.parametrize("name", ENSEMBLES)
@pytest.mark.parametrize("family", sorted(FAMILIES | {"dbrx", "llama4_text"}))
def test_recorded_steps_are_those_of_the_host(family, name, monkeypatch):
    """Steps of DBRX and PhiMoE cannot be recorded.

    DBRX asks for the sizes of its experts, PhiMoE for positions.
    """
    model = deepcopy(small_model(family)).to(DEVICE)
    if family != "dbrx":
        model.set_experts_implementation("batched_mm")
    generated_steps = generated(model, ensembles(model)[name])
    assert (model in NEVER_RECORDED) == (family in ("dbrx", "phimoe"))
    monkeypatch.setattr(EnsembleForward, "_may_be_recorded", lambda self: False)
    expected = generated(model, ensembles(model)[name])
    assert generated_steps[0] == expected[0]
    assert generated_steps[2:] == expected[2:]
    for ours, expected_step in zip(generated_steps[1], expected[1], strict=True):
        torch.testing.assert_close(ours, expected_step, rtol=1e-3, atol=1e-3)


@of_the_stand_in
@pytest.mark.parametrize("device", ["mps", "xpu:1", "npu", "meta", "gpu"])
def test_a_device_that_is_not_here_is_refused(device):
    with pytest.raises(ConfigError, match=f"device={device}: torch"):
        resolve_device(device)
    assert resolve_device(str(DEVICE)) == DEVICE, "what torch has is taken"


@of_the_stand_in
@pytest.mark.parametrize(
    "mixed",
    [
        lambda on_device, on_cpu: on_device + on_cpu,
        lambda on_device, on_cpu: on_device.numpy(),
        lambda on_device, on_cpu: on_cpu.copy_(on_device) @ on_device,
    ],
)
def test_the_stand_in_refuses_what_a_gpu_refuses(mixed):
    with pytest.raises((RuntimeError, TypeError), match="same device|numpy"):
        mixed(torch.ones(2, 2, device=DEVICE), torch.ones(2, 2))


@of_the_stand_in
def test_the_stand_in_counts_what_the_host_waits_for():
    values = torch.arange(4.0).to(DEVICE)
    with host_reads() as reads:
        values * 2 + values[torch.tensor([0, 1, 2, 3])]
        assert not reads
        assert values.tolist() == [0, 1, 2, 3]
        assert bool((values >= 0).all())
        assert values[values > 1].sum().item() == 5
    assert reads.total() == 4


@of_the_stand_in
def test_noise_of_a_device_without_float64_is_the_cpus(monkeypatch):
    keys: Any = dict(seed=0, document=123, repeat=0, row=2, layer=2, n_experts=3, antithetic=True)
    expected = noise.gumbel(positions=range(9), **keys)
    double = torch.Tensor.double

    def double_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.device.type == "cpu"
        return double(tensor)

    monkeypatch.setattr(noise, "WITHOUT_FLOAT64", {DEVICE.type})
    monkeypatch.setattr(torch.Tensor, "double", double_on_cpu)
    device_noise = noise.gumbel(positions=torch.arange(9, device=DEVICE), **keys)
    assert device_noise.device == DEVICE
    assert torch.equal(device_noise.cpu(), expected)
