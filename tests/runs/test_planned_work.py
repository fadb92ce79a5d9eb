"""The work of a plan against what the command then does: the tokens that its models read,
and its runs.

Broken by a total without its studies, by a control that the plan leaves out, by lm-eval's
own code that reads a context for each answer, and by a training that is planned on two GPUs
and refuses a second process.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import moe_lab
from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.runs.execute import execute
from moe_lab.runs.jobs import Job
from moe_lab.runs.plan import Plan
from moe_lab.runs.planning.rows import Row
from moe_lab.runs.prepare import prepare
from tests.support.families import VOCAB
from tests.support.models import build, save_model, small_model
from tests.support.runs import config, small_data
from tests.support.tiers import first_fast


@pytest.fixture
def tokens_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The tokens that all models of a test have read so far, those of studies included."""
    opened: list[EngineLM] = []
    begin = EngineLM.__init__

    def counted(lm: EngineLM, *args: Any, **options: Any) -> None:
        begin(lm, *args, **options)
        opened.append(lm)

    monkeypatch.setattr(EngineLM, "__init__", counted)
    return lambda: sum(lm.cost["tokens_in"] for lm in opened)


TUNED = ["model=tiny-noisy", "task=toy_text", "limit=3", "tuning.num_samples=2", "seeds=1"]


@pytest.mark.parametrize(
    "method",
    first_fast(
        [
            [
                "method=roe",
                "method.n=2",
                "method.cache=standard",
                "tuning=tpe",
                "tuning.n_trials=2",
            ],
            [
                "method=roe",
                "method.n=2",
                "method.cache=standard",
                "tuning=uniform",
                "tuning.step=0.5",
            ],
            ["method=roe", "method.n=2", "tuning=scale"],
            ["method=top-p", "tuning=grid"],
            ["method=calibration", "tuning=scale"],
        ]
    ),
    ids=lambda method: " ".join(method[::3]),
)
def test_a_tuned_command_reads_as_many_tokens_as_are_planned(method, tokens_read, tmp_path):
    command = [*method, *TUNED, f"output_dir={tmp_path}"]
    plan = moe_lab.plan(command)
    frame = plan.frame()
    assert list(tmp_path.iterdir()) == []
    results = moe_lab.run(command, quiet=True)
    assert plan.tokens == frame["tokens"].sum() == tokens_read()
    done = results.frame().drop_duplicates("run")
    assert f"To run: {len(done)} and 1 study, about {plan.tokens:,} forward tokens." in plan.notes
    by_method = dict(zip(frame["method"], frame["tokens"], strict=True))
    for method_name, tokens in zip(done["method"], done["cost/tokens_in"], strict=True):
        assert by_method[method_name] == tokens
    assert moe_lab.plan(command).notes == ["To run: 0, about 0 forward tokens."]


def test_trials_that_share_activations_read_at_most_what_is_planned(tokens_read, tmp_path):
    shared = ["method=roe", "method.n=2", "tuning=tpe", "tuning.n_trials=2"]
    command = [*shared, *TUNED, "baseline=false", f"output_dir={tmp_path}"]
    planned = moe_lab.plan(command).tokens
    moe_lab.run(command, quiet=True)
    assert 0.5 * planned < tokens_read() <= planned


@pytest.mark.slow
def test_the_base_run_of_a_plan_leaves_out_the_tuning_documents(tiny_olmoe_dir, tmp_path):
    """AddSub's only split is both tuned on and evaluated.

    Two studies tune on the same documents.
    """
    small_data(tmp_path / "data")
    command = [
        f"model.path={tiny_olmoe_dir}",
        "task=addsub",
        f"data_dir={tmp_path / 'data'}",
        "method.n=2",
    ]
    command += [
        "method=roe",
        "tuning=tpe",
        "tuning.n_trials=2",
        "tuning.num_samples=4",
        "tuning.seeds=2",
    ]
    command += [
        "tuning.metric=accuracy",
        "gen_kwargs=max_gen_toks=4",
        f"output_dir={tmp_path / 'out'}",
    ]
    plan = moe_lab.plan(command)
    frame = plan.frame().set_index("method")
    assert plan.missing == 3
    assert frame.loc["roe", "seed"] == "2 after tuning"
    results = moe_lab.run(command, quiet=True)
    base = results[0]["moe_lab"]["baseline"]["run_id"]
    assert base.startswith(frame.loc["base", "run"])
    assert frame.loc["base", "examples"] == 8


GPT2 = {"vocab_size": VOCAB, "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 4}
CASES = [
    ("granitemoehybrid", "base", {}),
    ("granitemoehybrid", "roe", {"n": 2}),
    ("granitemoehybrid", "calibration", {"logit_scale": 0.9}),
    ("gpt2", "base", {}),
    ("jamba", "base", {}),
    ("jamba", "roe", {"n": 2, "cache": "standard", "skip_layers": 0}),
    ("olmoe", "base", {}),
]
"""Models and methods with their keys; most models run without the engine of a KV cache."""


@pytest.mark.parametrize("case", first_fast(CASES, 4), ids=lambda case: "-".join(case[:2]))
@pytest.mark.parametrize("task", first_fast(["toy_choice", "toy_math", "toy_text"], 2))
def test_each_engine_reads_what_is_planned_for_it(case, task, tokenizer, tmp_path):
    """lm-eval's own code reads a context for each answer; the recurrent engine reads it once."""
    family, method, keys = case
    model = build("gpt2", GPT2) if family == "gpt2" else small_model(family)
    folder = save_model(model, tmp_path / "model", tokenizer)
    settings = {"gen_kwargs": {"max_gen_toks": 4, "until": ["never"]}} if task == "toy_math" else {}
    run_config = config(
        folder, tmp_path, tmp_path / "out", task, method, method_keys=keys, limit=3, **settings
    )
    run = prepare(replace(run_config, baseline=False))
    [row] = Plan([Job(run_config, runs=[run])]).rows
    assert row.tokens == execute(run, ModelPool()).results.cost.tokens_in


# Trainings on one device


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_8bit"])
def test_a_training_that_processes_cannot_share_has_to_fit_on_one_gpu(
    optimizer, tiny_olmoe_dir, tmp_path, monkeypatch
):
    sizes = [
        "method.dataset_size=8",
        "method.validation_size=2",
        f"method.optimizer={optimizer}",
        "limit=2",
    ]
    command = ["method=finetune-freeze", "task=toy_choice", f"model.path={tiny_olmoe_dir}", *sizes]

    def said(gpu: float) -> str:
        monkeypatch.setattr("moe_lab.runs.planning.memory_notes.gpu_memory", lambda: [int(gpu)])
        notes = moe_lab.plan([*command, f"output_dir={tmp_path}"]).notes
        return "\n".join(note for note in notes if "GPU memory" in note)

    frame = moe_lab.plan([*command, f"output_dir={tmp_path}"]).frame().set_index("method")
    size = frame.loc["finetune-freeze", "gpu_memory"]
    assert "too much" not in said(size / 0.89)  # 90% of a GPU are used
    too_small = said(size / 1.5)  # 2 GPUs of this size are enough
    if optimizer == "adamw_torch":
        assert "which takes 2 of" in too_small
        assert "too much" not in too_small
    else:
        assert "which is too much for one GPU of" in too_small
        assert (
            "and method.optimizer=adamw_torch_8bit trains in one process. Use a GPU of at least"
            in too_small
        )


def test_the_largest_training_on_one_device_is_said_next_to_the_largest_run(monkeypatch):
    monkeypatch.setattr("moe_lab.runs.planning.memory_notes.gpu_memory", list)
    method = get_method("finetune-freeze").Config(name="finetune-freeze")
    row = Row(config=Config(method=method), state="missing", gpu_memory=120 * 10**9)
    plan = Plan([])
    plan.rows = [row, replace(row, gpu_memory=95 * 10**9, one_device="x trains in one process")]
    largest, training = plan.notes[-2:]
    assert "at most 120 GB" in largest
    assert "takes 2 of 80 GB" in largest
    assert training == (
        "GPU memory of a training: 95 GB (model=tiny method=finetune-freeze), which is too much "
        "for one GPU of 80 GB, "
        "and x trains in one process. Use a GPU of at least 106 GB."
    )


def test_methods_say_which_trainings_need_one_device():
    tuned: Any = get_method("finetune-freeze")
    reasons = [
        tuned(tuned.Config(name="finetune-freeze", **keys)).one_device
        for keys in ({}, {"optimizer": "adamw_torch_8bit"}, {"partners": 2})
    ]
    assert reasons == [
        None,
        "method.optimizer=adamw_torch_8bit trains in one process",
        "method.partners trains in one process",
    ]
    assert (
        get_method("pretrain").one_device == "method=pretrain keeps the whole model in each process"
    )
