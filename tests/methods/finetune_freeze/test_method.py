"""`method=finetune-freeze` from the command line, its schedules, rates and groups of parameters.

Broken by: a model that is trained again for another task or taken for that of another recipe,
trained weights that the next run of a grid is given, answers other than those of plain
transformers, a comparison with something else than the untrained model; a schedule that switches
elsewhere than at half, a learning rate that does not follow it; a family whose routers, experts or
shared experts are not found, or another parameter taken for one.
"""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

from moe_lab.cli.main import main
from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.finetune_freeze import method as module
from moe_lab.methods.finetune_freeze import training
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.parameter_groups import (
    check_phases_train,
    counts,
    empty_model,
    parameter_groups,
)
from moe_lab.methods.finetune_freeze.phases import (
    SCHEDULES,
    Phase,
    boundaries,
    label,
    phase_at,
    phases_of,
)
from moe_lab.methods.finetune_freeze.trainer import rate
from moe_lab.models.source import TINY
from moe_lab.runs.prepare import prepare
from tests.support.command import run_command
from tests.support.ended import answers, block_of
from tests.support.families import ZOO
from tests.support.models import make_model, make_tokenizer, small_config, small_model
from tests.support.ranks import fork_ranks
from tests.support.tiers import by_family
from tests.support.trainings import names_by_group

SHORT = [
    "task=toy_choice",
    "limit=3",
    "method.max_steps=4",
    "method.learning_rate=0.01",
    "method.validation_size=2",
    "method.dataset_size=16",
]


def command(capsys, folder, *keys):
    return run_command(capsys, "method=finetune-freeze", f"output_dir={folder}", *keys)


@pytest.mark.slow
def test_a_dense_model_is_trained_as_a_whole_and_has_nothing_else_to_freeze(tmp_path, capsys):
    make_model("llama").save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    template = (
        "{% for message in messages %}"
        "{% generation %}{{ message.content }}{% endgeneration %}"
        "{% endfor %}"
    )
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    keys = [f"model.path={tmp_path / 'model'}", *SHORT]
    block = block_of(command(capsys, tmp_path, *keys))
    training = block["finetune_freeze"]["training"]
    total = sum(parameter.numel() for parameter in make_model("llama").parameters())
    assert training["parameters"] == {
        "router": 0,
        "experts": 0,
        "shared_experts": 0,
        "other": total,
    }
    assert training["validation"]["losses"]
    assert block["paired"]
    for about_routers in ("schedule=router", "router_lr=1e-4", "partners=2"):
        ended = command(capsys, tmp_path, *keys, f"method.{about_routers}")
        assert ended.code == 2, ended.err
        assert "No router was found" in ended.err


@pytest.mark.slow
def test_it_trains_saves_evaluates_and_compares(tmp_path, capsys, monkeypatch):
    keys = [*SHORT, "method.schedule=none-router"]
    planned = command(capsys, tmp_path, *keys, "mode=plan")
    assert "To train: 2" in planned.out

    ended = command(capsys, tmp_path, *keys)
    block = block_of(ended)
    tuned = block["finetune_freeze"]
    training_info = tuned["training"]
    assert training_info["steps"] == 4
    assert training_info["phases_end_at"] == [2, 4]
    assert training_info["schedule"] == "N→R"
    assert training_info["parameters"]["router"] == 8 * 16 * 128
    assert block["baseline"]["run_id"]
    assert "paired" in block
    assert "router 16,384, experts 3,145,728, shared_experts 0, other" in ended.err
    full = block["compared"]["full_fine_tuning"]
    assert full["paired"]["toy_choice"]["acc,none"]["n"] == 3
    assert " full fine tuning " in ended.out
    # the Trainer's log is in log.jsonl, and the loss on the bar
    assert "learning_rate" not in ended.out

    folder = tmp_path / "models" / tuned["model"]
    assert not (folder / "status.json").exists()
    assert not (folder / "checkpoints").exists()
    log = (folder / "log.jsonl").read_text().splitlines()
    loss_line, validation_line = [json.loads(line) for line in log]
    assert loss_line["loss"] == training_info["last_loss"]
    validation_loss = {"step": 4, "loss": validation_line["validation_loss"]}
    assert training_info["validation"]["losses"] == [validation_loss]

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    base_model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    gate = model.state_dict()["model.layers.0.mlp.gate.weight"]
    gate_before = base_model.state_dict()["model.layers.0.mlp.gate.weight"]
    assert not torch.equal(gate, gate_before), "free in the first half"
    assert AutoTokenizer.from_pretrained(folder / "model").chat_template
    assert model.config.use_cache
    tuned_answers = answers(tmp_path, "finetune-freeze", block["run_id"])
    assert tuned_answers != answers(tmp_path, "base")

    # the folder is a model like any other
    plain = tmp_path / "plain"
    evaluation = ["method=base", f"model.path={folder / 'model'}", "task=toy_choice", "limit=3"]
    assert run_command(capsys, *evaluation, f"output_dir={plain}").code == 0
    assert answers(plain, "base") == tuned_answers

    # it is trained once, whatever is evaluated
    planned = command(capsys, tmp_path, *keys, "mode=plan", "limit=9")
    assert planned.code == 0
    assert "To train" not in planned.out
    monkeypatch.setattr(training, "finetune", None)
    of_other_task = block_of(command(capsys, tmp_path, *keys, "task=toy_math", "limit=3"))
    assert of_other_task["finetune_freeze"]["model"] == tuned["model"]
    same_phases = "method.phases=[{frozen:[],until:0.5},{frozen:[router],until:1.0}]"
    of_same_phases = block_of(command(capsys, tmp_path, *SHORT, same_phases))
    assert of_same_phases["run_id"] == block["run_id"]

    # the full fine-tuning has been compared with the base model already
    full_block = block_of(command(capsys, tmp_path, *SHORT, "method.schedule=none"))
    assert full_block["run_id"] == full["run_id"]
    assert "compared" not in full_block
    assert full_block["paired"]
    assert len(answers(tmp_path, "finetune-freeze", full["run_id"])) == 3
    assert len(list((tmp_path / "models").iterdir())) == 2


@pytest.mark.slow
def test_subtractions_are_learned_and_were_not_known(tmp_path, capsys):
    """The data set and the task have one form, so that a few steps show in the answers."""
    keys = [
        "task=toy_subtract",
        "limit=40",
        "method.dataset=toy_subtract",
        "method.dataset_size=640",
        "method.epochs=1",
        "method.batch_size=16",
        "method.validation_size=0",
        "method.learning_rate=1e-3",
        "method.compare_with_full=false",
    ]
    ended = command(capsys, tmp_path, *keys)
    assert ended.code == 0, ended.err
    results = json.loads(Path(ended.out.splitlines()[-1]).read_text())
    paired = results["moe_lab"]["paired"]["toy_subtract"]["exact_match,none"]
    score = results["results"]["toy_subtract"]["exact_match,none"]
    score_of_base_model = score - paired["difference"]
    assert "compared" not in results["moe_lab"]
    assert score > 0.2
    assert score_of_base_model == pytest.approx(0, abs=0.03)


@pytest.mark.slow
def test_a_failed_comparison_is_named_with_what_leaves_it_out(tmp_path, capsys):
    diverging = ["method.schedule=experts", "method.learning_rate=1e30"]
    ended = command(capsys, tmp_path, *SHORT, *diverging)
    assert ended.code == 1
    assert "is compared with, failed: The " in ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("Error: ") == 1
    assert not list(tmp_path.glob("models/*/training.json"))


@pytest.mark.slow
def test_the_plan_counts_each_training_once_and_none_that_is_done(tmp_path, capsys, loads):
    ended = run_command(
        capsys,
        "-m",
        "method=finetune-freeze",
        "mode=plan",
        "task=toy_choice,toy_math",
        "limit=2",
        "method.schedule=none,router",
        "method.max_steps=100",
        f"output_dir={tmp_path}",
    )
    assert ended.code == 0
    planned = re.search("To train: 2, 200 optimizer steps over about ([0-9,]+) ", ended.out)
    assert planned, ended.out
    tokens = int(planned[1].replace(",", ""))
    tokens_of_conversation = tokens / (200 * 4)
    assert 10 < tokens_of_conversation < 100
    assert loads == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_grid_trains_every_schedule_from_the_untrained_model(tmp_path, capsys):
    in_grid = tmp_path / "grid"
    ended = run_command(
        capsys,
        "-m",
        "method=finetune-freeze",
        "method.schedule=none,router",
        f"output_dir={in_grid}",
        *SHORT,
        "baseline=false",
    )
    assert ended.code == 0, ended.err
    alone = tmp_path / "alone"
    ended = command(capsys, alone, *SHORT, "method.schedule=router", "baseline=false")
    assert ended.code == 0, ended.err

    def weights(folder: Path, schedule: str) -> bytes:
        for record in folder.glob("models/*/training.json"):
            if json.loads(record.read_text())["schedule"] == schedule:
                return (record.parent / "model" / "model.safetensors").read_bytes()
        raise AssertionError(f"no {schedule}")

    frozen_routers = weights(in_grid, "R→R")
    assert frozen_routers == weights(alone, "R→R")
    assert frozen_routers != weights(in_grid, "N→N")
    gate = load(frozen_routers)["model.layers.0.mlp.gate.weight"]
    untrained = load((TINY / "model.safetensors").read_bytes())
    untrained_gate = untrained["model.layers.0.mlp.gate.weight"]
    assert torch.equal(gate, untrained_gate.float()), "frozen all along"


@pytest.mark.slow
def test_seed_data_and_recipe_make_other_models_and_save_steps_does_not(tmp_path):
    def model(seed: int = 0, **keys) -> str:
        method = get_method("finetune-freeze").Config(name="finetune-freeze", max_steps=2, **keys)
        run = prepare(Config(method=method, output_dir=str(tmp_path), limit=2, seed=seed))
        [name] = run.method.training_left(run.config, run.facts)
        return name

    different = [
        {},
        {"seed": 1},
        {"dataset_size": 9},
        {"weight_decay": 0.1},
        {"validation_size": 3},
    ]
    names = [model(**settings) for settings in different]
    assert len(set(names)) == len(different), names
    assert model(save_steps=1) == model()


def test_the_trained_model_is_read_without_the_adapter_that_is_merged_into_it(monkeypatch):
    trained = SimpleNamespace(folder=Path("trained"), made="model", load_or_train=lambda *_: {})
    method = module.FinetuneFreeze(FinetuneConfig())
    monkeypatch.setattr(method, "trained", lambda *_: trained)
    model = ModelConfig(path="owner/name", revision="main", peft="adapter")
    facts = SimpleNamespace(dtype="bfloat16")
    resolved = method.resolve_model(Config(model=model), facts, None)
    assert resolved.model.path == "trained/model"
    assert resolved.model.revision is None
    assert resolved.model.peft is None
    assert resolved.dtype == "bfloat16"


def test_the_defaults_are_the_papers():
    """MoE-Bench, Table 1."""
    recipe = FinetuneConfig(dataset="lima").recipe()
    table_1 = {
        "length": 2048,
        "batch_size": 1,
        "gradient_accumulation": 4,
        "learning_rate": 2e-5,
        "warmup_ratio": 0.03,
        "weight_decay": 0.0,
        "epochs": 3,
    }
    assert {key: recipe[key] for key in table_1} == table_1


def test_a_step_of_the_toy_data_has_four_conversations():
    """In one pass by default: the steps are those of four passes of one."""
    default = FinetuneConfig()
    assert default.pass_size == 4
    assert default.step_passes == 1
    assert default.held_out == 100
    pairs = FinetuneConfig(batch_size=2)
    assert pairs.pass_size == 2
    assert pairs.step_passes == 2


def test_an_optimizer_of_a_missing_package_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("moe_lab.errors.find_spec", lambda name: None)
    ended = command(capsys, tmp_path, *SHORT, "method.optimizer=adamw_torch_8bit", "baseline=false")
    assert ended.code == 2
    assert "pip install 'moe-lab[torchao]'" in ended.err


@pytest.mark.parametrize(
    ("key", "value"), [("method.optimizer", "adamw_torch_8bit"), ("method.partners", "8")]
)
def test_what_trains_in_one_process_is_refused_in_two(key, value, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("moe_lab.errors.find_spec", lambda name: object())
    monkeypatch.setattr(module, "num_processes", lambda: 2)
    ended = command(capsys, tmp_path, *SHORT, f"{key}={value}")
    assert ended.code == 2
    assert key in ended.err
    assert "trains in one process" in ended.err


@pytest.mark.slow
def test_two_processes_train_and_evaluate(tmp_path, capsys):
    """The whole command, on the same number of conversations per step as one process."""
    by_two_processes = [
        "method=finetune-freeze",
        *SHORT,
        "method.batch_size=2",
        "method.gradient_accumulation=1",
        f"output_dir={tmp_path}",
    ]
    log = tmp_path / "ranks.log"
    codes = fork_ranks(main, by_two_processes, log=log)
    assert codes == [0, 0], log.read_text()[-2000:]
    [trained] = (tmp_path / "models").iterdir()
    record = json.loads((trained / "training.json").read_text())
    assert record["processes"] == 2

    by_one_process = [*SHORT, "method.batch_size=2", "method.gradient_accumulation=2"]
    block = block_of(command(capsys, tmp_path, *by_one_process))
    assert block["finetune_freeze"]["model"] == trained.name, "the same training"


def test_the_papers_nine_schedules_have_their_halves():
    expected = []
    for first_half in ("N", "R", "E"):
        for second_half in ("N", "R", "E"):
            expected.append(f"{first_half}→{second_half}")
    labels = [label(phases_of(name)) for name in SCHEDULES]
    assert sorted(labels) == sorted(expected)
    assert phases_of("none-router") == (
        Phase(frozen=(), until=0.5),
        Phase(frozen=("router",), until=1.0),
    )


def test_one_key_about_routers_or_experts_needs_a_model_that_has_them():
    assert FinetuneConfig(schedule="none").names_no_router
    for keys in (
        {"schedule": "none", "router_lr": 1e-4},
        {"schedule": "none", "router_aux_loss_coef": 0.01},
        {"schedule": "none", "partners": 2},
        {"schedule": "router"},
    ):
        assert not FinetuneConfig(**keys).names_no_router, keys


def test_listed_phases_win_and_are_the_same_as_a_name_for_them():
    two_listed = [
        {"frozen": [], "until": 0.5},
        {"frozen": ["router"], "until": 1},
    ]
    assert phases_of("experts", two_listed) == phases_of("none-router")

    three_listed = [{"frozen": ["router", "experts"], "until": 0.25, "lr": 1e-3}, *two_listed]
    three = phases_of("none", three_listed)
    assert three[0] == Phase(frozen=("experts", "router"), until=0.25, lr=1e-3)
    assert label(three) == "ER 25%→N 50%→R 100%"

    shared_listed = [
        {"frozen": ["experts", "shared_experts"], "until": 0.5},
        {"frozen": ["router"], "until": 1.0},
    ]
    assert label(phases_of("none", shared_listed)) == "ES→R"


def test_a_phase_that_freezes_all_parameters_is_refused():
    groups = parameter_groups(small_model("olmoe"))
    without_routers = [{"frozen": ["experts", "shared_experts", "other"], "until": 1.0}]
    check_phases_train(groups, phases_of("none", without_routers))
    everything = [
        {"frozen": [], "until": 0.5},
        {"frozen": ["experts", "other", "router"], "until": 1.0},
    ]
    with pytest.raises(ConfigError, match="phase 2 freezes experts, other, router, and the model"):
        check_phases_train(groups, phases_of("none", everything))


def test_the_switch_is_at_half_of_the_steps_rounded_down():
    phases = phases_of("none-router")
    assert boundaries(phases, 10) == [5, 10]
    assert boundaries(phases, 7) == [3, 7]
    assert [phase_at([3, 7], step) for step in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    thirds = phases_of("none", [{"frozen": [], "until": share} for share in (0.1, 0.7, 1.0)])
    assert boundaries(thirds, 10) == [1, 7, 10]


def test_rounding_of_a_share_takes_no_step_away():
    assert 0.29 * 100 < 29, "in floating point"
    phases = phases_of("none", [{"frozen": [], "until": 0.29}, {"frozen": [], "until": 1.0}])
    assert boundaries(phases, 100) == [29, 100]


def test_the_rate_is_the_linear_one_of_transformers():
    recipe = FinetuneConfig(epochs=1, warmup_ratio=0.1)
    transformers_rate = linear_rate(warmup_steps=4, steps=40)
    rates = [rate(recipe, 160, step) for step in range(41)]
    assert rates == pytest.approx([transformers_rate(step) for step in range(41)])


def linear_rate(warmup_steps: int, steps: int) -> Callable[[int], float]:
    """transformers' factor of the learning rate at a step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return get_scheduler("linear", optimizer, warmup_steps, steps).lr_lambdas[0]


def test_the_warm_up_begins_at_0_and_a_training_of_that_step_alone_is_refused():
    """Broken by a training that trains nothing and does not say so.

    The rates are those of transformers.
    """
    for rows, ratio in itertools.product((4, 8, 40, 160), (0.0, 0.03, 0.5)):
        recipe = FinetuneConfig(epochs=1, warmup_ratio=ratio, max_steps=30)
        steps = recipe.steps(rows)
        transformers_rate = linear_rate(recipe.warmup_steps(rows), steps)
        idle_steps = [step for step in range(steps) if rate(recipe, rows, step) == 0]
        assert idle_steps == [step for step in range(steps) if transformers_rate(step) == 0]
        assert idle_steps == ([0] if ratio else [])
        if len(idle_steps) < steps:
            recipe.check_trains(rows)
            continue
        message = f"warmup_ratio={ratio}: .* one step, .*, or set method.warmup"
        with pytest.raises(ConfigError, match=message):
            recipe.check_trains(rows)


@pytest.mark.parametrize(
    ("ratio", "steps", "is_idle"),
    [(0.03, 2, True), (0.03, 3, True), (0.03, 4, False), (0.0, 2, False)],
)
def test_a_phase_of_the_first_step_alone_is_said_to_train_nothing(ratio, steps, is_idle):
    recipe = FinetuneConfig(schedule="none-router", epochs=1, warmup_ratio=ratio, max_steps=steps)
    steps_of_first_phase = recipe.ends(40)[0]
    rates = [rate(recipe, 40, step) for step in range(steps_of_first_phase)]
    notes = recipe.notes(40)
    if is_idle:
        assert rates == [0.0] * steps_of_first_phase
        [note] = notes
        assert note.startswith("phase 1 trains nothing:")
    else:
        assert max(rates) > 0
        assert notes == []


def test_a_phases_own_rate_holds_in_it_and_the_routers_everywhere():
    phases = [{"frozen": [], "until": 0.5}, {"frozen": [], "until": 1.0, "lr": 1e-4}]
    recipe = FinetuneConfig(phases=phases, learning_rate=1e-3, router_lr=1e-5, epochs=1)
    plain = FinetuneConfig(learning_rate=1e-3, epochs=1)
    assert rate(recipe, 40, 4) == rate(plain, 40, 4)
    assert rate(recipe, 40, 6) == pytest.approx(rate(plain, 40, 6) / 10)
    routers = [rate(recipe, 40, step, router=True) for step in range(10)]
    assert routers == [rate(plain, 40, step) for step in range(10)]


def test_steps_count_smaller_ones_at_the_end_of_an_epoch():
    assert FinetuneConfig(epochs=3, batch_size=1, gradient_accumulation=4).steps(9) == 9
    assert FinetuneConfig(epochs=3, max_steps=5).steps(9) == 5


TABLE = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")


def types_with_shared_experts() -> set[str]:
    """Types of models that docs/models.md says have shared experts."""
    types = set()
    for line in TABLE.splitlines():
        cells = line.split(" | ")
        if line.startswith("| ") and cells[4:5] == ["yes"]:
            types.add(cells[1].strip("`"))
    return types


@pytest.mark.parametrize("model_type", by_family(ZOO))
def test_every_parameter_is_in_one_group_and_the_groups_are_what_they_say(model_type):
    model = empty_model(small_config(model_type))
    groups = parameter_groups(model)
    grouped = []
    for parameters in groups.values():
        grouped += [id(parameter) for parameter in parameters]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    for parameter in groups["experts"]:
        if parameter.dim() == 1:  # the norm after Muse-Spark's experts, which they share
            continue
        assert parameter.shape[0] in (8, 10, 8 * 24), "one slice per expert"
    assert counts(groups)["router"] < counts(groups)["experts"]

    names = names_by_group(model)
    for name in names["router"] | names["experts"]:
        assert "shared" not in name
        assert "attn" not in name
    shared = set()
    for name, parameter in model.named_parameters():
        if "vision" in name:  # ERNIE's experts of images
            continue
        if "shared" in name:
            shared.add(name)
        # JetMoE's attention has experts of its own
        is_of_experts = ".experts." in name and "self_attention" not in name
        if is_of_experts and parameter.dim() == 3:
            assert name in names["experts"]
    assert names["shared_experts"] == shared
    has_shared = model_type in types_with_shared_experts()
    assert bool(shared) == has_shared, "as docs/models.md says"


@pytest.mark.parametrize(
    ("model_type", "routers", "experts"),
    [
        ("olmoe", ["gate.weight"], ["experts.gate_up_proj", "experts.down_proj"]),
        (
            "gpt_oss",
            ["router.weight", "router.bias"],
            [
                "experts.gate_up_proj",
                "experts.gate_up_proj_bias",
                "experts.down_proj",
                "experts.down_proj_bias",
            ],
        ),
    ],
)
def test_the_names_of_olmoe_and_gpt_oss_are_exactly_these(model_type, routers, experts):
    expected_routers = set()
    expected_experts = set()
    for layer in range(4):
        prefix = f"model.layers.{layer}.mlp"
        expected_routers.update(f"{prefix}.{name}" for name in routers)
        expected_experts.update(f"{prefix}.{name}" for name in experts)
    names = names_by_group(empty_model(small_config(model_type)))
    assert names["router"] == expected_routers
    assert names["experts"] == expected_experts
