"""`method=finetune-freeze` from the command line, its schedules, rates and groups of parameters.

Broken by: a model that is trained again for another task or taken for that of another recipe,
trained weights that the next run of a grid is given, answers other than those of plain
transformers, a comparison with something else than the untrained model; a schedule that switches
elsewhere than at half, a learning rate that does not follow it; a family whose routers, experts or
shared experts are not found, or another parameter taken for one.
"""

import itertools
import json
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

SHORT = ["task=toy_choice", "limit=3", "method.max_steps=4", "method.learning_rate=0.01"]
SHORT += ["method.validation_size=2", "method.dataset_size=16"]


def command(capsys, folder, *keys):
    return run_command(capsys, "method=finetune-freeze", f"output_dir={folder}", *keys)


@pytest.mark.slow
def test_a_dense_model_is_trained_as_a_whole_and_has_nothing_else_to_freeze(tmp_path, capsys):
    make_model("llama").save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    chat = (
        "{% for one in messages %}{% generation %}{{ one.content }}{% endgeneration %}{% endfor %}"
    )
    (tmp_path / "model" / "chat_template.jinja").write_text(chat)
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
    assert training["validation"]["losses"] and block["paired"]
    for own in ("schedule=router", "router_lr=1e-4", "partners=2"):
        ended = command(capsys, tmp_path, *keys, f"method.{own}")
        assert ended.code == 2 and "No router was found" in ended.err, ended.err


@pytest.mark.slow
def test_it_trains_saves_evaluates_and_compares(tmp_path, capsys, monkeypatch):
    planned = command(capsys, tmp_path, *SHORT, "method.schedule=none-router", "mode=plan")
    assert "To train: 2" in planned.out, planned.out
    ended = command(capsys, tmp_path, *SHORT, "method.schedule=none-router")
    block = block_of(ended)
    own = block["finetune_freeze"]
    assert own["training"]["steps"] == 4 and own["training"]["phases_end_at"] == [2, 4]
    assert (
        own["training"]["schedule"] == "N→R"
        and own["training"]["parameters"]["router"] == 8 * 16 * 128
    )
    assert block["baseline"]["run_id"] and "paired" in block
    assert "router 16,384, experts 3,145,728, shared_experts 0, other" in ended.err
    full = block["compared"]["full_fine_tuning"]
    assert " full fine tuning " in ended.out and full["paired"]["toy_choice"]["acc,none"]["n"] == 3
    assert "learning_rate" not in ended.out, (
        "the Trainer's log is in log.jsonl, and the loss on the bar"
    )
    folder = tmp_path / "models" / own["model"]
    assert not (folder / "status.json").exists() and not (folder / "checkpoints").exists()
    loss, validation = (
        json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()
    )
    assert loss["loss"] == own["training"]["last_loss"]
    assert own["training"]["validation"]["losses"] == [
        {"step": 4, "loss": validation["validation_loss"]}
    ]
    trained = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    gate = "model.layers.0.mlp.gate.weight"
    assert not torch.equal(trained.state_dict()[gate], before.state_dict()[gate]), (
        "free in the first half"
    )
    assert (
        AutoTokenizer.from_pretrained(folder / "model").chat_template and trained.config.use_cache
    )
    tuned = answers(tmp_path, "finetune-freeze", block["run_id"])
    assert tuned != answers(tmp_path, "base")

    plain = tmp_path / "plain"
    keys = ["method=base", f"model.path={folder / 'model'}", f"output_dir={plain}", *SHORT[:2]]
    assert run_command(capsys, *keys).code == 0
    assert answers(plain, "base") == tuned, "the folder is a model like any other"

    plan = command(capsys, tmp_path, *SHORT, "method.schedule=none-router", "mode=plan", "limit=9")
    assert plan.code == 0 and "To train" not in plan.out, plan.out
    monkeypatch.setattr(training, "finetune", None)
    ended = command(
        capsys, tmp_path, *SHORT, "method.schedule=none-router", "task=toy_math", "limit=3"
    )
    again = block_of(ended)
    assert again["finetune_freeze"]["model"] == own["model"], "trained once whatever is evaluated"
    same = "method.phases=[{frozen:[],until:0.5},{frozen:[router],until:1.0}]"
    assert block_of(command(capsys, tmp_path, *SHORT, same))["run_id"] == block["run_id"]

    alone = block_of(command(capsys, tmp_path, *SHORT, "method.schedule=none"))
    assert alone["run_id"] == full["run_id"] and "compared" not in alone, "the full fine-tuning"
    assert alone["paired"], "the full one was compared with the untouched model at once"
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
    found = json.loads(Path(ended.out.splitlines()[-1]).read_text())
    paired = found["moe_lab"]["paired"]["toy_subtract"]["exact_match,none"]
    score = found["results"]["toy_subtract"]["exact_match,none"]
    assert "compared" not in found["moe_lab"]
    assert score > 0.2 and score - paired["difference"] == pytest.approx(0, abs=0.03)


@pytest.mark.slow
def test_a_failed_comparison_is_named_with_what_leaves_it_out(tmp_path, capsys):
    ended = command(
        capsys, tmp_path, *SHORT, "method.schedule=experts", "method.learning_rate=1e30"
    )
    assert ended.code == 1 and "is compared with, failed: The " in ended.err
    assert "Traceback" not in ended.err and ended.err.count("Error: ") == 1
    assert not list(tmp_path.glob("models/*/training.json"))


@pytest.mark.slow
def test_the_plan_counts_each_training_once_and_none_that_is_done(tmp_path, capsys, loads):
    keys = ["mode=plan", "task=toy_choice,toy_math", "limit=2", "method.schedule=none,router"]
    keys += ["method.max_steps=100", f"output_dir={tmp_path}"]
    ended = run_command(capsys, "-m", "method=finetune-freeze", *keys)
    assert ended.code == 0 and "To train: 2, 200 optimizer steps over about " in ended.out
    tokens = int(ended.out.split("over about ")[1].split()[0].replace(",", ""))
    per_row = tokens / (200 * 4)
    assert 10 < per_row < 100, "tokens of a conversation"
    assert not loads and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_grid_trains_every_schedule_from_the_untrained_model(tmp_path, capsys):
    grid = [
        "-m",
        "method=finetune-freeze",
        "method.schedule=none,router",
        f"output_dir={tmp_path / 'grid'}",
    ]
    ended = run_command(capsys, *grid, *SHORT, "baseline=false")
    assert ended.code == 0, ended.err
    assert block_of(
        command(capsys, tmp_path / "alone", *SHORT, "method.schedule=router", "baseline=false")
    )

    def weights(folder: Path, schedule: str) -> bytes:
        for record in folder.glob("models/*/training.json"):
            if json.loads(record.read_text())["schedule"] == schedule:
                return (record.parent / "model" / "model.safetensors").read_bytes()
        raise AssertionError(f"no {schedule}")

    assert weights(tmp_path / "grid", "R→R") == weights(tmp_path / "alone", "R→R")
    assert weights(tmp_path / "grid", "R→R") != weights(tmp_path / "grid", "N→N")
    gate = "model.layers.0.mlp.gate.weight"
    untrained = load((TINY / "model.safetensors").read_bytes())[gate]
    assert torch.equal(load(weights(tmp_path / "grid", "R→R"))[gate], untrained.float()), (
        "frozen all along"
    )


@pytest.mark.slow
def test_seed_data_and_recipe_make_other_models_and_save_steps_does_not(tmp_path):
    def model(seed: int = 0, **keys) -> str:
        method = get_method("finetune-freeze").Config(name="finetune-freeze", max_steps=2, **keys)
        run = prepare(Config(method=method, output_dir=str(tmp_path), limit=2, seed=seed))
        [name] = run.method.training_left(run.config, run.facts)
        return name

    others = ({"seed": 1}, {"dataset_size": 9}, {"weight_decay": 0.1}, {"validation_size": 3})
    names = [model(), *(model(**other) for other in others)]
    assert len(set(names)) == 5
    assert model(save_steps=1) == names[0]


def test_the_trained_model_is_read_without_the_adapter_that_is_merged_into_it(monkeypatch):
    trained = SimpleNamespace(folder=Path("trained"), made="model", load_or_train=lambda *_: {})
    method = module.FinetuneFreeze(FinetuneConfig())
    monkeypatch.setattr(method, "trained", lambda *_: trained)
    model = ModelConfig(path="owner/name", revision="main", peft="adapter")
    found = method.resolve_model(Config(model=model), SimpleNamespace(dtype="bfloat16"), None)
    assert (found.model.path, found.model.revision, found.model.peft) == (
        "trained/model",
        None,
        None,
    )
    assert found.dtype == "bfloat16"


def test_the_defaults_are_the_papers():
    """MoE-Bench, Table 1."""
    recipe = FinetuneConfig(dataset="lima").recipe()
    table = {"length": 2048, "batch_size": 1, "gradient_accumulation": 4, "learning_rate": 2e-5}
    table |= {"warmup_ratio": 0.03, "weight_decay": 0.0, "epochs": 3}
    assert {key: recipe[key] for key in table} == table
    toy, pairs = FinetuneConfig(), FinetuneConfig(batch_size=2)
    assert (toy.pass_size, toy.step_passes, toy.held_out) == (4, 1, 100), (
        "the same steps, in one pass"
    )
    assert (pairs.pass_size, pairs.step_passes) == (2, 2)


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
    assert key in ended.err and "trains in one process" in ended.err


@pytest.mark.slow
def test_two_processes_train_and_evaluate(tmp_path, capsys):
    """The whole command, on the same number of conversations per step as one process."""
    keys = [
        "method=finetune-freeze",
        *SHORT,
        "method.batch_size=2",
        "method.gradient_accumulation=1",
    ]
    log = tmp_path / "ranks.log"
    assert fork_ranks(main, [*keys, f"output_dir={tmp_path}"], log=log) == [0, 0], log.read_text()[
        -2000:
    ]
    [trained] = (tmp_path / "models").iterdir()
    assert json.loads((trained / "training.json").read_text())["processes"] == 2
    alone = [*SHORT, "method.batch_size=2", "method.gradient_accumulation=2"]
    block = block_of(command(capsys, tmp_path, *alone))
    assert block["finetune_freeze"]["model"] == trained.name, "the same training"


def test_the_papers_nine_schedules_have_their_halves():
    assert len(SCHEDULES) == 9
    labels = {label(phases_of(name)) for name in SCHEDULES}
    assert labels == {f"{first}→{second}" for first in "NRE" for second in "NRE"}
    assert phases_of("none-router") == (
        Phase(frozen=(), until=0.5),
        Phase(frozen=("router",), until=1.0),
    )


def test_one_key_about_routers_or_experts_needs_a_model_that_has_them():
    assert FinetuneConfig(schedule="none").names_no_router
    for about in (
        {"router_lr": 1e-4},
        {"router_aux_loss_coef": 0.01},
        {"partners": 2},
        {"schedule": "router"},
    ):
        assert not FinetuneConfig(**{"schedule": "none"} | about).names_no_router, about


def test_listed_phases_win_and_are_the_same_as_a_name_for_them():
    listed = [{"frozen": [], "until": 0.5}, {"frozen": ["router"], "until": 1}]
    assert phases_of("experts", listed) == phases_of("none-router")
    three = phases_of(
        "none", [{"frozen": ["router", "experts"], "until": 0.25, "lr": 1e-3}, *listed]
    )
    assert three[0] == Phase(frozen=("experts", "router"), until=0.25, lr=1e-3)
    assert label(three) == "ER 25%→N 50%→R 100%"
    shared = [
        {"frozen": ["experts", "shared_experts"], "until": 0.5},
        {"frozen": ["router"], "until": 1.0},
    ]
    assert label(phases_of("none", shared)) == "ES→R"


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
    assert boundaries(phases, 10) == [5, 10] and boundaries(phases, 7) == [3, 7]
    assert [phase_at([3, 7], step) for step in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    thirds = phases_of("none", [{"frozen": [], "until": share} for share in (0.1, 0.7, 1.0)])
    assert boundaries(thirds, 10) == [1, 7, 10], "0.7 * 10 is below 7 in floating point"


def test_the_rate_is_the_linear_one_of_transformers():
    recipe = FinetuneConfig(epochs=1, warmup_ratio=0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler("linear", optimizer, 4, 40).lr_lambdas[0]
    assert [rate(recipe, 160, step) for step in range(41)] == pytest.approx(
        list(map(theirs, range(41)))
    )


def test_the_warm_up_begins_at_0_and_a_training_of_that_step_alone_is_refused():
    """Broken by a training that trains nothing and does not say so.

    The rates are those of transformers.
    """
    for rows, ratio in itertools.product((4, 8, 40, 160), (0.0, 0.03, 0.5)):
        recipe = FinetuneConfig(epochs=1, warmup_ratio=ratio, max_steps=30)
        steps = recipe.steps(rows)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        theirs = get_scheduler("linear", optimizer, recipe.warmup_steps(rows), steps).lr_lambdas[0]
        idle = [step for step in range(steps) if theirs(step) == 0]
        assert idle == [step for step in range(steps) if rate(recipe, rows, step) == 0]
        assert idle == ([0] if ratio else [])
        if len(idle) == steps:
            with pytest.raises(
                ConfigError, match=f"warmup_ratio={ratio}: .* one step, .*, or set method.warmup"
            ):
                recipe.check_trains(rows)
        else:
            recipe.check_trains(rows)


def test_a_phase_of_the_first_step_alone_is_said_to_train_nothing():
    for ratio, steps, told in ((0.03, 2, True), (0.03, 3, True), (0.03, 4, False), (0.0, 2, False)):
        recipe = FinetuneConfig(
            schedule="none-router", epochs=1, warmup_ratio=ratio, max_steps=steps
        )
        phase = [rate(recipe, 40, step) for step in range(recipe.ends(40)[0])]
        assert (not any(phase)) == told
        assert [note[:23] for note in recipe.notes(40)] == ["phase 1 trains nothing:"] * told


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
SHARED = {
    line.split(" | ")[1].strip("`")
    for line in TABLE.splitlines()
    if line.startswith("| ") and line.split(" | ")[4:5] == ["yes"]
}
"""Types of models with shared experts."""


@pytest.mark.parametrize("model_type", by_family(ZOO))
def test_every_parameter_is_in_one_group_and_the_groups_are_what_they_say(model_type):
    model = empty_model(small_config(model_type))
    groups = parameter_groups(model)
    every = [id(parameter) for group in groups.values() for parameter in group]
    assert sorted(every) == sorted(map(id, model.parameters()))
    assert {parameter.shape[0] for parameter in groups["experts"]} <= {8, 10, 8 * 24}, (
        "one slice per expert"
    )
    names = names_by_group(model)
    routers, experts = names["router"], names["experts"]
    assert not any("shared" in name or "attn" in name for name in routers | experts)
    parameters = model.named_parameters()
    wide = {name for name, own in parameters if own.dim() == 3 and ".experts." in name}
    assert wide <= experts | {name for name in wide if "self_attention" in name}, (
        "JetMoE's attention"
    )
    assert counts(groups)["router"] < counts(groups)["experts"]
    shared = {name for name, _ in model.named_parameters() if "shared" in name}
    assert names["shared_experts"] == shared
    assert bool(shared) == (model_type in SHARED), "as docs/models.md says"


NAMES = {
    "olmoe": ({"gate.weight"}, {"experts.gate_up_proj", "experts.down_proj"}),
    "gpt_oss": (
        {"router.weight", "router.bias"},
        {f"experts.{half}_proj{end}" for half in ("gate_up", "down") for end in ("", "_bias")},
    ),
}


@pytest.mark.parametrize("model_type", NAMES)
def test_the_names_of_olmoe_and_gpt_oss_are_exactly_these(model_type):
    names = names_by_group(empty_model(small_config(model_type)))
    for group, wanted in zip(("router", "experts"), NAMES[model_type], strict=True):
        assert names[group] == {
            f"model.layers.{layer}.mlp.{name}" for layer in range(4) for name in wanted
        }
