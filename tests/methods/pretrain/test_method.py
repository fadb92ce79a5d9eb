"""`method=pretrain` from the command line, its keys and architectures, and the folder of its model.

Broken by: a default that the YAML does not have, designs of unequal parameters, one recipe with two
ids, a registered class for a design that transformers has, a model that plain transformers cannot
load, or that computes something else there; a design that is trained again for another task or used
for another design, corpus, tokenizer or seed, a comparison with the tokenizer's model, a request
that is refused only after a training, a trained model that other methods cannot use, checkpoints of
another training that are continued or lost.
"""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.pretrain import training
from moe_lab.methods.pretrain.design import architecture
from moe_lab.methods.pretrain.method import Pretrain
from moe_lab.methods.pretrain.training import parameters_of
from moe_lab.methods.trained import COMPLETE
from moe_lab.models.designs.units import unit_tables
from moe_lab.models.facts import routing_facts
from moe_lab.runs.prepare import prepare
from tests.support.command import run_command
from tests.support.ended import answers, block_of
from tests.support.models import make_tokenizer, small_config
from tests.support.pretrainings import GRANULARITIES, SMALL, design
from tests.support.runs import facts


def test_the_default_width_divides_by_all_granularities():
    for top_k, experts, shared in GRANULARITIES:
        config = Pretrain.Config(experts=experts, experts_per_token=top_k, shared_experts=shared)
        assert config.active_size == 256
        assert config.expert_size * (top_k + shared) == config.active_size
        label = f"{top_k}/{experts}"
        if shared:
            label += "+1"
        assert config.label == label


def test_steps_batches_and_passes_make_rows():
    assert design(steps=3, batch_size=5, gradient_accumulation=7).rows == 3 * 5 * 7
    assert design(steps=100, warmup_ratio=0.051).warmup_steps == 6
    assert design(warmup_ratio=0.0).warmup_steps == 0


@pytest.mark.parametrize(
    "keys, coefficient",
    [
        ({}, 0.1),
        ({"aux_loss": 0.0}, 0.0),
        ({"aux_loss": 0.3, "bias_rate": 0.1}, 0.3),
        ({"bias_rate": 0.1}, 0.0),
        ({"router": "expert"}, 0.0),
        ({"router": "word"}, 0.1),
        ({"router": "word-hash"}, 0.0),
    ],
)
def test_the_balancing_loss_is_left_out_where_something_else_balances(keys, coefficient):
    config = design(**keys)
    assert config.auxiliary == coefficient
    assert config.recipe()["aux_loss"] == coefficient


@pytest.mark.parametrize(
    "keys, label, regularizers",
    [
        ({}, "2/8", "auxiliary loss + z-loss"),
        (
            {"experts": 7, "experts_per_token": 1, "shared_experts": 1, "z_loss": 0.0},
            "1/7+1",
            "auxiliary loss",
        ),
        ({"bias_rate": 0.1}, "2/8", "z-loss + bias"),
        ({"aux_loss": 0.0, "z_loss": 0.0, "device_loss": 0.1}, "2/8", "device loss"),
        ({"router": "expert", "z_loss": 0.0}, "2/8", "-"),
        ({"backbone": "dense"}, "dense", "-"),
    ],
)
def test_a_design_is_named(keys, label, regularizers):
    assert design(**keys).label == label
    assert design(**keys).regularizers == regularizers


def test_a_recipe_leaves_out_what_does_not_determine_the_weights():
    recipe = design().recipe()
    assert design(aux_loss=0.1).recipe() == recipe, "a default and its value are one recipe"
    of_data = {
        "dataset": "minipile",
        "dataset_size": 4,
        "validation_rows": 5,
        "vocab_size": 999,
        "tokenizer": "train",
    }
    assert design(**of_data, save_steps=3).recipe() == recipe, "data count by their content"


@pytest.mark.parametrize(
    ("keys", "other"),
    [
        ({}, {"experts": 16}),
        ({}, {"z_loss": 0.0}),
        ({}, {"routing_noise": 1.0}),
        ({}, {"steps": 5}),
        ({}, {"batch_size": 3}),
        ({}, {"layers": 3}),
        ({}, {"backbone": "deepseek"}),
        ({}, {"router": "word"}),
        ({}, {"sequence_length": 16}),
        ({}, {"weight_decay": 0.0}),
        ({"router": "expert"}, {"capacity_factor": 2.0}),
        ({"device_loss": 0.1}, {"devices": 2}),
    ],
    ids=str,
)
def test_a_recipe_has_what_determines_the_weights(keys, other):
    assert design(**keys, **other).recipe() != design(**keys).recipe()


@pytest.mark.parametrize(
    ("keys", "unread"),
    [
        (
            {"backbone": "dense"},
            {"experts": 16, "router": "expert", "z_loss": 0.5, "routing_noise": 0.5},
        ),
        ({}, {"capacity_factor": 2.0}),
        ({}, {"devices": 2}),
    ],
)
def test_keys_without_effect_make_no_other_recipe(keys, unread):
    """Broken by a dense model that is trained once per granularity."""
    assert design(**keys, **unread).recipe() == design(**keys).recipe()
    assert unread.keys() <= design(**keys).unread


def test_a_dense_model_reads_no_keys_of_experts():
    """One line of a grid over designs."""
    assert design(router="expert").reads_later_tokens
    keys = {"experts": 1, "experts_per_token": 5, "devices": 3}
    assert not design(router="expert", backbone="dense", **keys).reads_later_tokens


SIZES = {"hidden_size": 32, "layers": 3, "heads": 4, "active_size": 64}


def config_of(**keys):
    return architecture(design(**SIZES | keys), make_tokenizer())


def counted(**keys) -> dict[str, int]:
    """Total and active parameters without those of routers."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(**keys))
    in_routers = 0
    for name, parameter in model.named_parameters():
        if name.endswith("gate.weight"):
            in_routers += parameter.numel()
    return {kind: count - in_routers for kind, count in parameters_of(model).items()}


@pytest.mark.parametrize("backbone", ("olmoe", "deepseek"))
def test_all_granularities_have_equal_parameters(backbone):
    """Total and active parameters are equal, routers aside.

    The dense model has the active ones, norms of queries and keys aside.
    """
    attention_and_norms = 4 * 32 * 32 + 2 * 32
    feed_forward = 3 * 32 * 64
    dense = 3 * (attention_and_norms + feed_forward) + 32
    assert counted(backbone="dense") == {"total": dense, "active": dense}

    moe_layers = 3
    active = dense
    if backbone == "olmoe":
        active += 3 * 2 * 32  # norms of queries and keys
    if backbone == "deepseek":
        moe_layers = 2  # its first layer is dense
    total = active + moe_layers * 3 * feed_forward  # four times the experts
    for top_k, experts, shared in GRANULARITIES:
        counts = counted(
            backbone=backbone, experts_per_token=top_k, experts=experts, shared_experts=shared
        )
        assert counts == {"total": total, "active": active}, (top_k, experts, shared)


@pytest.mark.parametrize(
    "keys, model_type",
    [
        ({}, "olmoe"),
        ({"backbone": "deepseek"}, "deepseek"),
        (
            {"backbone": "deepseek", "experts": 3, "experts_per_token": 1, "shared_experts": 1},
            "deepseek",
        ),
        ({"backbone": "dense"}, "llama"),
        ({"experts": 3, "experts_per_token": 1, "shared_experts": 1}, "moe_design"),
        ({"bias_rate": 0.01}, "moe_design"),
        ({"backbone": "deepseek", "bias_rate": 0.01}, "moe_design"),
        ({"router": "expert"}, "moe_design"),
        ({"router": "word"}, "moe_design"),
        ({"router": "word-hash"}, "moe_design"),
        ({"backbone": "deepseek", "router": "sentence"}, "moe_design"),
    ],
)
def test_the_plainest_class_that_has_the_design_is_taken(keys, model_type):
    config = config_of(**keys)
    is_deepseek = keys.get("backbone") == "deepseek"
    assert config.model_type == model_type
    assert config.eos_token_id == 256
    assert config.vocab_size == 257
    assert config.max_position_embeddings == 2048
    assert not config.tie_word_embeddings
    if model_type != "llama":
        model_facts = replace(facts(), **routing_facts(config))
        method = design(**SIZES | keys)
        assert model_facts.family == model_type
        assert model_facts.experts == method.experts
        assert model_facts.top_k == method.experts_per_token
        assert model_facts.moe_layers == (2 if is_deepseek else 3)
        assert model_facts.max_length == 2048
    if model_type == "moe_design":
        assert config.router == keys.get("router", "token")
        assert config.backbone == keys.get("backbone", "olmoe")
        assert config.selection_bias == ("bias_rate" in keys)
    if model_type in ("deepseek", "moe_design"):
        assert config.is_moe_layer(0) == (not is_deepseek)
        assert config.is_moe_layer(1)


KINDS = ({}, {"backbone": "deepseek"}, {"backbone": "dense"}, {"router": "word"})


def test_classes_differ_in_the_design_alone():
    """Broken by a default of one class (the eps of norms, say) that another lacks."""
    first, *others = [config_of(**keys) for keys in KINDS]
    for name in (
        "rms_norm_eps",
        "hidden_act",
        "initializer_range",
        "rope_parameters",
        "attention_bias",
        "attention_dropout",
    ):
        for config in others:
            assert getattr(config, name) == getattr(first, name), (config.model_type, name)
    for config in (first, *others):
        assert not getattr(config, "norm_topk_prob", False)


@pytest.mark.parametrize("keys", KINDS)
def test_the_end_token_has_a_gradient(keys):
    """It has one even where it is the padding token. A token that only pads has none.

    torch.nn.Embedding leaves out the gradient of its padding_idx.
    """
    tokenizer = make_tokenizer()
    for padding, has_gradient in (("<|end|>", True), ("!", False)):
        tokenizer.pad_token = padding
        config = architecture(design(**SIZES | keys), tokenizer)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        ids = torch.tensor([[5, tokenizer.pad_token_id, 1, 2, 256, 9]])
        if keys.get("router") == "word":
            model.set_units(unit_tables(tokenizer, "word"))
        model(ids, labels=ids).loss.backward()
        gradient = model.get_input_embeddings().weight.grad
        assert gradient[[1, 2, 5, 256]].abs().amax(-1).min() > 0
        largest_of_padding = gradient[tokenizer.pad_token_id].abs().max()
        assert (largest_of_padding > 0) == has_gradient


def test_every_id_of_a_tokenizer_has_an_embedding():
    """Also after a gap in the ids, where the number of tokens is less than the highest id."""
    words = Tokenizer(models.WordLevel({"a": 0, "b": 3, "<end>": 7}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    assert len(tokenizer) == 3
    assert architecture(design(), tokenizer).vocab_size == 8
    assert len(make_tokenizer()) == 257
    assert config_of().vocab_size == 257


def test_a_long_row_has_positions():
    assert config_of(sequence_length=5000).max_position_embeddings == 5000


SHORT = [f"method.{key}={value}" for key, value in SMALL.items()]
TASK = ["task=toy_choice", "limit=4"]
FINE_TUNING = (
    "method=finetune-freeze method.schedule=none-router method.max_steps=2 "
    "method.validation_size=0 method.compare_with_full=false method.dataset_size=8"
)


def command(capsys, folder, *keys):
    """The command with a short training. `-m` goes first wherever it is among the keys."""
    flags = [key for key in keys if key == "-m"]
    overrides = [key for key in keys if key != "-m"]
    common = ["method=pretrain", "device=cpu", f"output_dir={folder}", *SHORT]
    return run_command(capsys, *flags, *common, *overrides)


@pytest.mark.slow
def test_it_trains_saves_and_evaluates_once_for_all_tasks(tmp_path, capsys, monkeypatch):
    planned = command(capsys, tmp_path, *TASK, "task=toy_choice,toy_math", "-m", "mode=plan")
    assert planned.code == 0
    assert "To train: 1, 4 optimizer steps over about 96 tokens" in planned.out
    assert list(tmp_path.iterdir()) == []

    ended = command(capsys, tmp_path, *TASK)
    block = block_of(ended)
    pretrained = block["pretrain"]
    training_info = pretrained["training"]
    loss = f"held-out loss {training_info['validation']['loss']:.4f} ["
    output = " ".join(ended.out.split())
    label = "olmoe 2/8, router=token, regularizers=auxiliary loss + z-loss, seed 0"
    assert f"{label}: {loss}" in output
    assert re.search(r"trained at [\d,]+ tokens per second, peak [\d,]+ MiB", output)
    assert pretrained["label"] == "2/8"
    assert pretrained["aux_loss"] == 0.1
    assert pretrained["router"] == "token"
    assert training_info["steps"] == 4
    assert training_info["tokens"] == 96
    assert training_info["parameters"]["active"] < training_info["parameters"]["total"]
    assert len(training_info["validation"]["row_losses"]) == 3
    assert "baseline" not in block, "there is nothing to compare it with"
    assert "paired" not in block
    assert block["model"]["moe_layers"] == 2
    assert block["model"]["experts"] == 8
    assert block["model"]["top_k"] == 2

    folder = tmp_path / "models" / pretrained["model"]
    assert not (folder / "status.json").exists()
    assert not (folder / "checkpoints").exists()
    record = json.loads((folder / "training.json").read_text())
    assert record["validation"] == training_info["validation"]
    assert record["corpus_rows"] == 8

    assert command(capsys, tmp_path, *TASK, "seeds=2").code == 0
    records = [json.loads(path.read_text()) for path in tmp_path.glob("models/*/training.json")]
    assert sorted(record["seed"] for record in records) == [0, 1]
    assert records[0]["validation"]["row_losses"] != records[1]["validation"]["row_losses"]
    assert records[0]["data"] == records[1]["data"], "the same rows, in another order"

    monkeypatch.setattr(training, "train", None)
    repeated = command(capsys, tmp_path, *TASK)
    assert repeated.code == 0
    assert block_of(repeated)["run_id"] == block["run_id"]
    of_other_task = block_of(command(capsys, tmp_path, "task=toy_math", "limit=2"))
    assert of_other_task["pretrain"]["model"] == pretrained["model"]
    assert of_other_task["run_id"] != block["run_id"]
    planned = command(capsys, tmp_path, "task=toy_choice", "limit=9", "mode=plan")
    assert planned.code == 0
    assert "To train" not in planned.out
    assert command(capsys, tmp_path, *TASK, "mode=report").code == 0


@pytest.mark.slow
def test_a_trained_model_serves_all_methods(tmp_path, capsys):
    """The model is given as `model.path`. method=base gives the same answers.

    It is one of the registered type, with a shared expert.
    """
    with_shared = ["method.experts=6", "method.experts_per_token=3", "method.shared_experts=1"]
    trained = block_of(command(capsys, tmp_path, *TASK, *with_shared, "metrics=expert"))
    [metrics_file] = tmp_path.glob("runs/*/expert_metrics.json")
    assert "load_balance" in metrics_file.read_text()
    model = tmp_path / "models" / trained["pretrain"]["model"] / "model"
    out = tmp_path / "others"
    common = [f"model.path={model}", f"output_dir={out}", "device=cpu", *TASK]
    assert run_command(capsys, "method=base", *common).code == 0
    assert answers(out, "base") == answers(tmp_path, "pretrain")
    for keys in (
        "method=roe method.n=4 method.temperature=0.5 method.skip_layers=0",
        "method=c3po method.reference_size=24 method.layers=last2 method.k=2 method.steps=1",
        "method=c2r method.dataset_size=8",
        FINE_TUNING,
    ):
        ended = run_command(capsys, *keys.split(), *common, "baseline=false")
        assert ended.code == 0, (keys, ended.err)


@pytest.mark.slow
@pytest.mark.parametrize("router", ("word", "expert"))
def test_a_router_of_several_tokens_is_evaluated_and_fine_tuned_and_no_more(
    router, tmp_path, capsys, loads
):
    """Expert metrics are refused before the training, other routing before the weights load."""
    is_causal = router == "word"
    chosen = f"method.router={router}"
    refused = command(capsys, tmp_path, *TASK, chosen, "metrics=expert")
    assert refused.code == 2, refused.err
    assert "the routing of single tokens" in refused.err
    assert not (tmp_path / "models").exists()

    ended = command(capsys, tmp_path, *TASK, chosen)
    pretrained = block_of(ended)["pretrain"]
    output = " ".join(ended.out.split())
    assert ("expert choice reads later tokens" in output) == (not is_causal)
    assert (pretrained["training"]["leak"] is None) == is_causal
    model = tmp_path / "models" / pretrained["model"] / "model"
    config = json.loads((model / "config.json").read_text())
    assert config["model_type"] == "moe_design"
    assert config["router"] == router

    out = tmp_path / "others"
    common = [f"model.path={model}", f"output_dir={out}", "device=cpu", *TASK, "baseline=false"]
    assert run_command(capsys, "method=base", *common).code == 0
    assert answers(out, "base") == answers(tmp_path, "pretrain")
    ended = run_command(capsys, *FINE_TUNING.split(), *common)
    assert ended.code == 0, ended.err
    loads.clear()
    for method in ("roe", "c3po", "c2r"):
        ended = run_command(capsys, f"method={method}", *common)
        assert ended.code == 2, ended.err
        assert "does not allow to read or change" in ended.err
    assert loads == []


def training_left(tmp_path, seed=0, model=None, **keys):
    """The name of a training's model -> the steps and tokens that a plan counts."""
    if model is None:
        model = ModelConfig()
    config = Config(method=design(**keys), output_dir=str(tmp_path), seed=seed, model=model)
    return Pretrain(config.method).training_left(config, facts())


def test_the_plan_counts_what_is_left_of_a_training(tmp_path):
    """Broken by a killed training that is planned at full cost."""
    settings = {"steps": 10, "gradient_accumulation": 3}
    tokens_of_step = 2 * 3 * 12
    all_of_it = training_left(tmp_path, **settings)
    [name] = all_of_it
    assert all_of_it == {name: (10, 10 * tokens_of_step)}
    checkpoint = tmp_path / "models" / name / "checkpoints" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    assert training_left(tmp_path, **settings) == all_of_it, "the checkpoint is not complete"
    (checkpoint / COMPLETE).touch()
    assert training_left(tmp_path, **settings) == {name: (6, 6 * tokens_of_step)}


def test_processes_that_do_not_share_the_passes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="gradient_accumulation=3 is not divisible by 2"):
        training_left(tmp_path, gradient_accumulation=3)
    assert training_left(tmp_path, gradient_accumulation=2)


def footnotes(leak=None, left_out=None, **keys):
    """What a run of a design says below its scores."""
    method = Pretrain(design(**keys))
    training_info = {
        "validation": {"loss": 1.5, "ci95": [1.25, 1.75], "rows": 3},
        "leak": leak,
        "last_session": {"tokens_per_second": None},
        "documents_left_out": left_out,
    }
    block = method.report(facts(), {}, {"training": training_info})
    return method.footnotes(block | {"seed": 7})


def footnote(leak=None, **keys):
    """The only one where no document is left out."""
    [line] = footnotes(leak, {"empty": 0, "duplicates": 0}, **keys)
    return line


def test_the_plan_the_run_and_the_results_say_which_documents_are_left_out(
    tmp_path, monkeypatch, capsys
):
    """Broken by documents that are left out in silence."""
    texts = [f"text {number}" for number in range(50)]
    lines = [json.dumps({"text": text}) for text in [*texts[:2], "", *texts]]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(lines))
    config = Config(method=design(dataset=str(file)), output_dir=str(tmp_path))
    left_out = "documents left out: 1 empty ones, 2 duplicates of earlier ones"
    method = Pretrain(config.method)
    name = method.trained(config, facts()).folder.name
    assert method.training_notes(config, facts()) == [f"{name}: {left_out}"]

    monkeypatch.setattr(training, "train_together", lambda inputs: (None, {}))
    monkeypatch.setattr(training, "save_model", lambda *args: None)
    record = method.train(tmp_path, config, facts())
    assert record["documents_left_out"] == {"empty": 1, "duplicates": 2}
    assert left_out in capsys.readouterr().err
    _, *notes = footnotes(left_out=record["documents_left_out"])
    assert notes == [f"olmoe 2/8, seed 7: {left_out}"]
    assert len(footnotes()) == 1, "a training of an earlier version has no counts"


@pytest.mark.parametrize(
    ("counts", "note"),
    [
        ({"empty": 0, "duplicates": 3}, "0 empty ones, 3 duplicates of earlier ones"),
        ({"empty": 1, "duplicates": 0}, "1 empty ones, 0 duplicates of earlier ones"),
    ],
)
def test_documents_that_are_left_out_for_one_reason_alone_are_noted(counts, note):
    _, line = footnotes(left_out=counts)
    assert line == f"olmoe 2/8, seed 7: documents left out: {note}"


def test_footnotes_tell_designs_and_the_effects_of_later_tokens_apart():
    expected = (
        "regularizers=z-loss + bias, routing_noise=0.5, seed 7: "
        "held-out loss 1.5000 [1.2500, 1.7500]"
    )
    assert expected in footnote(bias_rate=0.1, routing_noise=0.5)
    part = {"difference": 0.125, "ci95": [0.0625, 0.25]}
    leak = {"rows": 32, "loss_with_later_tokens": 1.5, "later_tokens": part, "short_prefixes": part}
    assert footnote(leak, router="expert").count("+0.1250 [+0.0625, +0.2500]") == 2


def test_the_weights_of_model_are_not_needed(tmp_path):
    """A folder with a configuration and a tokenizer."""
    small_config("mixtral").save_pretrained(tmp_path / "bare")
    make_tokenizer().save_pretrained(tmp_path / "bare")
    model = ModelConfig(name="bare", path=str(tmp_path / "bare"))
    config = Config(model=model, method=design(), output_dir=str(tmp_path), limit=2, device="cpu")
    run = prepare(config)
    assert run.facts.family == "olmoe"
    assert run.method.training_left(run.config, run.facts)


@pytest.mark.slow
def test_what_determines_the_weights_makes_another_model(tmp_path):
    file = tmp_path / "own.jsonl"
    lines = [json.dumps({"text": f"text {number}"}) for number in range(50)]
    file.write_text("\n".join(lines) + "\n")
    copied_file = tmp_path / "copy.jsonl"
    shutil.copy(file, copied_file)
    make_tokenizer().save_pretrained(tmp_path / "bytes")

    def model_name(**settings) -> str:
        [name] = training_left(tmp_path, **settings)
        return name

    different = [
        {},
        {"seed": 1},
        {"steps": 5},
        {"validation_rows": 4},
        {"dataset_size": 500},
        {"dataset": str(file)},
        {"dataset": str(file), "dataset_size": 9},
        {"dataset": str(file), "tokenizer": "train", "vocab_size": 260},
        {"model": ModelConfig(tokenizer=str(tmp_path / "bytes"))},
    ]
    names = [model_name(**settings) for settings in different]
    assert len(set(names)) == len(different), names
    assert model_name().startswith("tiny-pretrain-")
    for settings in ({"save_steps": 1}, {"aux_loss": 0.1}, {"vocab_size": 999}):
        assert model_name(**settings) == model_name(), settings
    name_of_copy = model_name(dataset=str(copied_file))
    assert name_of_copy == model_name(dataset=str(file)), "the content counts"


@pytest.mark.parametrize("mode", ("run", "plan"))
def test_a_tokenizer_without_word_boundaries_ends_with_2_and_leaves_nothing(mode, tmp_path, capsys):
    plain = make_tokenizer()
    plain.backend_tokenizer.pre_tokenizer = None
    plain.save_pretrained(tmp_path / "plain")
    keys = ["method.router=word", f"model.tokenizer={tmp_path}/plain", f"mode={mode}"]
    ended = command(capsys, tmp_path / "out", *TASK, *keys)
    assert ended.code == 2, ended.err
    assert "pre-tokenizer" in ended.err
    assert not (tmp_path / "out").exists()
