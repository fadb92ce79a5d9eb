"""lm-eval evaluates a model under a method as the command does, and the model stays untouched."""

import json
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

import moe_lab
from moe_lab.api.lm import main
from moe_lab.models.source import TINY
from tests.support import rounding
from tests.support.adapters import make_adapter
from tests.support.command import run_command
from tests.support.models import make_model, small_model

TASKS = Path(moe_lab.__file__).parent / "tasks" / "toy"
SCORED = [("hello", " world"), ("what is", " a cat")]


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, 0) for each in arguments]


def test_requests_are_answered_by_the_ensemble(tokenizer):
    model = small_model("mixtral")
    roe = moe_lab.RoE(model, tokenizer, n=3, temperature=0.7, seed=1)
    lm = moe_lab.lm(model, tokenizer, "roe", n=3, temperature=0.7, seed=1)
    scores = [value for value, _ in lm.loglikelihood(instances("loglikelihood", SCORED))]
    assert scores == rounding.approx(roe.loglikelihood(*map(list, zip(*SCORED, strict=True))), tokens=6)
    (text,) = lm.generate_until(instances("generate_until", [("hello", {"until": [], "max_gen_toks": 6})]))
    assert text == roe.generate("hello", max_new_tokens=6)
    plain = moe_lab.lm(model, tokenizer)
    assert abs(plain.loglikelihood(instances("loglikelihood", SCORED))[0][0] - scores[0]) > 1e-3
    assert not any(module._forward_hooks for module in model.modules())
    dense = moe_lab.lm(make_model("llama"), tokenizer)
    assert dense.loglikelihood(instances("loglikelihood", SCORED))[0][0] < 0
    assert lm.loglikelihood_rolling(instances("loglikelihood_rolling", [("what is a cat",)]))[0] < 0


@pytest.mark.slow
def test_simple_evaluate_scores_as_the_command(tmp_path, capsys, tiny_olmoe_dir):
    """By object and by name."""
    import lm_eval
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ended = run_command(
        capsys, "method=roe", "method.n=3", "method.temperature=0.9", "seed=3", f"model.path={tiny_olmoe_dir}",
        "task=toy_choice", "limit=4", "baseline=false", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    stored = [json.loads(line) for file in tmp_path.glob("runs/*/samples_*.jsonl") for line in file.open()]
    samples = {"toy_choice": [sample["doc_id"] for sample in stored]}
    manager = lm_eval.tasks.TaskManager(include_path=str(TASKS), include_defaults=False)
    model = AutoModelForCausalLM.from_pretrained(tiny_olmoe_dir).eval()
    keys = {"n": 3, "temperature": 0.9, "seed": 3}
    lm = moe_lab.lm(model, AutoTokenizer.from_pretrained(tiny_olmoe_dir), "roe", **keys)
    for given in (
        {"model": lm},
        {
            "model": "moe_lab",
            "model_args": {"pretrained": str(tiny_olmoe_dir), "method": "roe", **keys},
            "device": "cuda:0",
            "batch_size": "8",  # lm-eval's command gives text
        },
    ):
        found = lm_eval.simple_evaluate(
            **given, tasks=["toy_choice"], task_manager=manager, samples=samples, bootstrap_iters=0
        )
        for own, other in zip(found["samples"]["toy_choice"], stored, strict=True):
            values = [value for value, _ in own["filtered_resps"]]
            assert values == rounding.approx([float(value) for value, _ in other["filtered_resps"]], tokens=6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", [["q_proj", "v_proj"], ["experts.down_proj", "gate.weight"]], ids=["attention", "MoE"]
)
def test_an_adapter_scores_as_in_lm_evals_own_model(parts, tmp_path):
    """`peft=` of `--model hf`; also under RoE without noise, and as text, which lm-eval's command gives."""
    import lm_eval
    import peft
    from transformers import AutoModelForCausalLM

    key = "target_modules" if parts == ["q_proj", "v_proj"] else "target_parameters"
    kind = peft.LoraConfig(**{"target_modules": [], key: parts}, r=4, task_type="CAUSAL_LM")
    make_adapter(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), kind, tmp_path)
    manager = lm_eval.tasks.TaskManager(include_path=str(TASKS), include_defaults=False)

    def answers(model: str, arguments: str) -> list[float]:
        found = lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=["toy_choice"], task_manager=manager, limit=6, device="cpu",
            bootstrap_iters=0,
        )  # fmt: skip
        return [value for own in found["samples"]["toy_choice"] for value, _ in own["filtered_resps"]]

    plain = answers("hf", f"pretrained={TINY},dtype=float32")
    expected = answers("hf", f"pretrained={TINY},dtype=float32,peft={tmp_path}")
    assert max(abs(one - other) for one, other in zip(plain, expected, strict=True)) > 1e-2
    for more in ("", ",method=roe,n=2,temperature=0"):
        found = answers("moe_lab", f"pretrained={TINY},dtype=float32,peft={tmp_path}{more}")
        assert found == rounding.approx(expected, tokens=6)


def test_lm_eval_knows_the_name():
    from lm_eval.api.registry import get_model

    assert get_model("moe_lab").__name__ == "PretrainedLM"


@pytest.fixture
def own_tasks_alone(monkeypatch):
    """lm-eval's command does not read its own tasks, which takes 10 s."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(TaskManager.__init__, "__defaults__", (None, None, False, None))


@pytest.mark.slow
def test_the_command_of_lm_eval_knows_the_name(tmp_path, own_tasks_alone, monkeypatch, capsys):
    """The function that pyproject.toml installs as `moe-lab-eval`."""
    root = TASKS.parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["moe-lab-eval"].partition(":")
    assert getattr(import_module(module), function) is main
    asked = "--model moe_lab --model_args pretrained=tiny,method=roe,n=2 --tasks toy_choice --limit 2 --log_samples"
    asked += f" --include_path {TASKS} --output_path {tmp_path}"
    monkeypatch.setattr("sys.argv", ["moe-lab-eval", *asked.split()])
    main()
    printed = capsys.readouterr().out
    assert "toy_choice" in printed and "|acc" in printed.replace(" ", "")
    [file] = tmp_path.glob("*/samples_toy_choice_*.jsonl")
    model, tokenizer = moe_lab.tiny()
    roe = moe_lab.RoE(model, tokenizer, n=2)
    for line in map(json.loads, file.read_text().splitlines()):
        asked = [list(one.values()) for one in line["arguments"].values()]
        scores = [float(one[0][0]) for one in line["resps"]]
        found = roe.loglikelihood(*map(list, zip(*asked, strict=True)))
        assert found == pytest.approx(scores, abs=1e-3)


@pytest.mark.slow
def test_a_command_without_a_model_is_one_message(own_tasks_alone, monkeypatch, capsys):
    asked = f"moe-lab-eval --model moe_lab --tasks toy_choice --include_path {TASKS}"
    monkeypatch.setattr("sys.argv", asked.split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "Error: moe_lab needs a model" in capsys.readouterr().err
