"""`method=c2r`, and fine-tuning under its constraint, on the embedded model and on small ones.

Broken by: a constraint that does not reach the router or a pass of the training,
a profile that is used for another model, a run that is stored under the id of another profile,
a profile of test documents that is not reported, gradients of experts that were not taken,
an evaluation of the fine-tuned model without the constraint, a resume that ends in other weights.
"""

import json
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from moe_lab.config.schema import Config
from moe_lab.methods import get_method
from moe_lab.methods.c2r import digest_of
from moe_lab.methods.finetune_freeze import training as module
from moe_lab.methods.finetune_freeze.training import finetune
from moe_lab.models.source import TINY
from moe_lab.routing import record, routed
from moe_lab.routing.policies import PartnersOnly, partners_of
from moe_lab.runs.prepare import prepare
from moe_lab.tasks.toy.instructions import instructions
from tests.support.command import Ended, run_command
from tests.support.ended import answers, block_of
from tests.support.models import small_model
from tests.support.opened_methods import facts_of
from tests.support.routed_designs import Seen
from tests.support.tiers import first_fast
from tests.support.trainings import assert_same, interrupted, training_of

FEW = ["model=tiny", "task=toy_choice", "limit=6", "method.dataset_size=12"]


def command(capsys: Any, folder: Path, *keys: str) -> Ended:
    return run_command(capsys, "method=c2r", f"output_dir={folder}", *FEW, *keys)


@pytest.mark.slow
def test_it_counts_a_profile_and_constrains(tmp_path, capsys):
    block = block_of(command(capsys, tmp_path, "method.partners=3", "metrics=expert"))
    assert block["c2r"]["partners"] == 3
    assert 0 < block["c2r"]["changed_fraction"] < 1
    assert answers(tmp_path, "*", block["run_id"]) != answers(
        tmp_path, "*", block["baseline"]["run_id"]
    )
    assert block["c2r"]["profile"] == "toy"
    assert block["c2r"]["profile_sha256"] == digest_of(pairs_of_conversations_read_alone(12))

    # under the constraint no expert goes with more than 3 others that chose it, or that it chose
    folder = next(tmp_path.glob(f"runs/*-{block['run_id'][:8]}"))
    metrics = json.loads((folder / "expert_metrics.json").read_text())
    base = json.loads((next(tmp_path.glob("runs/*-base-*")) / "expert_metrics.json").read_text())
    assert metrics["collaboration"]["all"]["value"] < base["collaboration"]["all"]["value"]
    assert metrics["capacity"] is None
    assert metrics["specialization"] is None
    assert base["capacity"] is not None
    assert metrics["baseline"]["capacity"] == base["capacity"]

    # the base model where all others are partners
    free = block_of(command(capsys, tmp_path, "method.partners=15"))
    assert free["c2r"]["changed_fraction"] == 0
    assert answers(tmp_path, "*", free["run_id"]) == answers(
        tmp_path, "*", free["baseline"]["run_id"]
    )
    default = block_of(command(capsys, tmp_path))
    eight = block_of(command(capsys, tmp_path, "method.partners=8"))
    assert default["run_id"] == eight["run_id"]


def pairs_of_conversations_read_alone(count: int) -> torch.Tensor:
    """[layers, experts, experts]: tokens that take both experts.

    On the diagonal: tokens that take the expert.
    """
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    pairs = torch.zeros(8, 16, 16, dtype=torch.long)
    for row in instructions("train", count):
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad(), record(model) as routes:
            model(torch.tensor([ids]))
        for layer, index_TK in enumerate(routes.indices):
            for experts in index_TK.tolist():
                for i, j in product(experts, repeat=2):
                    pairs[layer, i, j] += 1
    return pairs


@pytest.mark.slow
def test_a_profile_of_a_run_is_taken_by_its_content(tmp_path, capsys):
    plain = run_command(capsys, "method=base", "metrics=expert", f"output_dir={tmp_path}", *FEW[:3])
    assert plain.code == 0, plain.err
    folder = Path(plain.out.splitlines()[-1]).parent
    counts = folder / "expert_metrics" / "counts.safetensors"
    ended = command(capsys, tmp_path, f"method.profile={folder}", "method.partners=4")
    first_block = block_of(ended)
    assert first_block["c2r"]["test_profile"]
    assert "test-profile: routed by" in ended.out
    same_block = block_of(
        command(capsys, tmp_path, f"method.profile={counts}", "method.partners=4")
    )
    assert first_block["run_id"] == same_block["run_id"]
    other_counts = load_file(counts)
    other_counts["pairs.prefill"][0, 1, 2] += 1
    save_file(other_counts, tmp_path / "other.safetensors")
    ended = command(
        capsys, tmp_path, f"method.profile={tmp_path}/other.safetensors", "method.partners=4"
    )
    assert block_of(ended)["run_id"] != first_block["run_id"]
    pairs = {"pairs": other_counts["pairs.prefill"] + other_counts["pairs.decode"] + 1}
    save_file(pairs, tmp_path / "recorded.safetensors")
    ended = command(
        capsys, tmp_path, f"method.profile={tmp_path}/recorded.safetensors", "method.partners=4"
    )
    assert block_of(ended)["c2r"]["test_profile"] is False
    assert "test-profile" not in ended.out


FAMILIES = ("olmoe", "mixtral", "gpt_oss", "qwen3_moe", "deepseek")
SHORT = ["task=toy_choice", "limit=3"]


def pairs_of(model, seed=0):
    facts = facts_of(model)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 99, (facts.moe_layers, facts.experts, facts.experts), generator=generator
    )


def allowed_of(model, seed=0):
    """As few partners as leave the model its number of experts per token."""
    return partners_of(pairs_of(model, seed), max(1, facts_of(model).top_k - 1))


@pytest.mark.parametrize("family", first_fast(FAMILIES, 2))
def test_during_training_each_token_takes_partners_of_its_first_expert(family, tmp_path):
    """All passes, those over held-out conversations included."""
    model = deepcopy(small_model(family))
    allowed = allowed_of(model)
    training = replace(training_of(tmp_path, count=4, held_out=2), allowed_LEE=allowed)
    seen = Seen()
    trainer = module.FreezeTrainer

    def watched(**arguments):
        stack.enter_context(routed(model, seen))
        return trainer(**arguments)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(module, "FreezeTrainer", watched)
        _, summary = finetune(training, model)
    assert summary["validation"]["losses"]
    assert seen.routings
    for router, routing in zip(seen.routers, seen.routings, strict=True):
        scores = router.scores(routing.logits_TE)
        first = routing.index_TK.gather(
            -1, scores.gather(-1, routing.index_TK).argmax(-1, keepdim=True)
        )
        assert allowed[router.layer][first[:, 0]].gather(-1, routing.index_TK).all(), router.name


@pytest.mark.parametrize("family", first_fast(FAMILIES, 2))
def test_gradients_are_those_of_finite_differences(family):
    """Of the routers' and the experts' weights, along the gradient, in float64."""
    model = deepcopy(small_model(family)).double().eval()
    model.set_experts_implementation("eager")
    policy = PartnersOnly(allowed_of(model, seed=1))
    ids = torch.randint(1, 200, (2, 9), generator=torch.Generator().manual_seed(2))

    def loss():
        with routed(model, policy):
            logits = model(ids, use_cache=False).logits[:, :-1]
            return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])

    loss().backward()
    assert policy.counts()["constrained_decisions"], "the constraint changes decisions"
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    chosen = [
        name
        for name in parameters
        if "gate.weight" in name or "router.weight" in name or "down_proj" in name
    ]
    step = 1e-4  # larger ones change choices; routers compute their softmax in float32
    for name in chosen:
        gradient = parameters[name].grad
        direction = gradient / gradient.norm()
        with torch.no_grad():
            parameters[name] += step * direction
            up = loss().item()
            parameters[name] -= 2 * step * direction
            down = loss().item()
            parameters[name] += step * direction
        expected = (up - down) / (2 * step)
        assert gradient.norm().item() == pytest.approx(expected, rel=2e-2, abs=1e-4), name


def config(tmp_path, **keys):
    method = get_method("finetune-freeze").Config(max_steps=2, dataset_size=8, **keys)
    place = {"output_dir": str(tmp_path), "device": "cpu", "offline": True}
    return Config(method=method, limit=2, baseline=False, **place)


def test_activation_checkpointing_repeats_the_constrained_choice(tmp_path):
    allowed = partners_of(pairs_of(small_model("olmoe")), 2)
    trained = []
    for checkpointing in (False, True):
        model = deepcopy(small_model("olmoe"))
        settings = {"partners": 2, "activation_checkpointing": checkpointing}
        finetune(
            replace(training_of(tmp_path / str(checkpointing), **settings), allowed_LEE=allowed),
            model,
        )
        trained.append(model)
    assert_same(*trained)


def test_a_training_that_stops_continues_under_the_constraint(tmp_path):
    allowed = partners_of(pairs_of(small_model("olmoe")), 2)

    def train(name):
        training = replace(
            training_of(tmp_path / name, partners=2, save_steps=2), allowed_LEE=allowed
        )
        return finetune(training, deepcopy(small_model("olmoe")))[0]

    whole = train("whole")
    with interrupted(3):
        train("broken")
    assert_same(whole, train("broken"))


def test_the_profile_is_part_of_the_id(tmp_path):
    ids = {prepare(config(tmp_path, partners=4)).run_id, prepare(config(tmp_path)).run_id}
    for value in (1, 2):
        pairs = torch.arange(8 * 16 * 16).reshape(8, 16, 16) * value % 97
        files = [str(tmp_path / f"{value}{copy}.safetensors") for copy in ("", "-again")]
        for file in files:
            save_file({"pairs": pairs}, file)
        run_ids = {prepare(config(tmp_path, partners=4, profile=file)).run_id for file in files}
        assert len(run_ids) == 1, "its content, not its path"
        ids |= run_ids
    assert len(ids) == 4


@pytest.mark.slow
def test_it_trains_and_answers_under_the_constraint_and_is_compared_with_free_fine_tuning(
    tmp_path, capsys
):
    keys = (
        "method.partners=3 method.dataset_size=12 method.validation_size=2 method.max_steps=4 "
        "metrics=expert"
    )
    trained = ["method=finetune-freeze", *SHORT, *keys.split(), "method.learning_rate=0.01"]
    ended = run_command(capsys, *trained, f"output_dir={tmp_path}")
    block = block_of(ended)
    folder = tmp_path / "models" / block["finetune_freeze"]["model"]
    record = json.loads((folder / "training.json").read_text())
    assert block["c2r"]["partners"] == block["finetune_freeze"]["partners"] == 3
    assert block["c2r"]["profile_sha256"] == record["profile_sha256"]
    assert not block["c2r"]["test_profile"]
    assert 0 < block["c2r"]["changed_fraction"] < 1
    stored = load_file(folder / "counts.safetensors")["pairs"]
    untrained = run_command(
        capsys, "method=c2r", "method.dataset_size=12", f"output_dir={tmp_path}", *SHORT
    )
    assert block_of(untrained)["c2r"]["profile_sha256"] == digest_of(stored), (
        "of the untrained model"
    )
    assert block["compared"]["full_fine_tuning"]["paired"], "the same without a constraint"
    run = next(tmp_path.glob(f"runs/*-{block['run_id'][:8]}"))
    metrics = json.loads((run / "expert_metrics.json").read_text())
    assert metrics["capacity"] is None
    assert metrics["collaboration"]["all"]["value"] > 0

    # the evaluation is that of method=c2r on the trained model with the stored profile
    other_output = tmp_path / "other"
    second_blocks = [
        f"model.path={folder}/model",
        "method.partners=3",
        f"method.profile={folder}/counts.safetensors",
    ]
    assert (
        run_command(capsys, "method=c2r", *second_blocks, f"output_dir={other_output}", *SHORT).code
        == 0
    )
    assert answers(other_output, "c2r") == answers(tmp_path, "finetune-freeze", block["run_id"])
    free = tmp_path / "free"
    keys = [f"model.path={folder / 'model'}", f"output_dir={free}", *SHORT]
    assert run_command(capsys, "method=base", *keys).code == 0
    assert answers(free, "base") != answers(other_output, "c2r")


def test_a_constraint_and_what_it_changed_are_reported_where_there_is_one():
    method = get_method("finetune-freeze")
    free = method(method.Config(name="finetune-freeze", partners=None))
    bound = method(method.Config(name="finetune-freeze", partners=3))
    counted = {"constrained_decisions": 1, "routing_decisions": 4}
    blocks = [finetuning.report(None, counted, {}) for finetuning in (free, bound)]
    assert "c2r" not in blocks[0]
    assert blocks[1]["c2r"] == {"partners": 3, "changed_fraction": 0.25}
    [line] = method.footnotes(blocks[1])
    assert method.footnotes(blocks[0]) == []
    assert line.startswith("changed (finetune-freeze): decisions")
