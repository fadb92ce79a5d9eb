"""`method=pretrain` from the command line, and the folder of its model.

Broken by: a design that is trained again for another task or used for another design, corpus, tokenizer or seed, a
comparison with the tokenizer's model, a request that is refused only after a training, a trained model that other
methods cannot use, checkpoints of another training that are continued or lost.
"""

import json
import re
import shutil

import pytest

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.pretrain import training
from moe_lab.methods.pretrain.method import Pretrain
from moe_lab.methods.trained import COMPLETE
from moe_lab.runs.prepare import prepare
from tests.support.command import run_command
from tests.support.ended import answers, block_of
from tests.support.models import make_tokenizer, small_config
from tests.support.pretrainings import SMALL, design
from tests.support.runs import facts

SHORT = [f"method.{key}={value}" for key, value in SMALL.items()]
TASK = ["task=toy_choice", "limit=4"]


def command(capsys, folder, *keys):
    return run_command(capsys, *(["-m"] if "-m" in keys else []), "method=pretrain", "device=cpu",
                       f"output_dir={folder}", *SHORT, *(key for key in keys if key != "-m"))  # fmt: skip


@pytest.mark.slow
def test_it_trains_saves_and_evaluates_once_for_all_tasks(tmp_path, capsys, monkeypatch):
    planned = command(capsys, tmp_path, *TASK, "task=toy_choice,toy_math", "-m", "mode=plan")
    assert planned.code == 0 and "To train: 1, 4 optimizer steps over about 96 tokens" in planned.out
    assert not list(tmp_path.iterdir())
    ended = command(capsys, tmp_path, *TASK)
    block = block_of(ended)
    own = block["pretrain"]
    assert (
        "olmoe 2/8, router=token, regularizers=auxiliary loss + z-loss, seed 0: held-out loss "
        f"{own['training']['validation']['loss']:.4f} [" in " ".join(ended.out.split())
    )
    assert re.search(r"trained at [\d,]+ tokens per second, peak [\d,]+ MiB", " ".join(ended.out.split()))
    assert own["label"] == "2/8" and own["aux_loss"] == 0.1 and own["router"] == "token"
    assert own["training"]["steps"] == 4 and own["training"]["tokens"] == 96
    assert own["training"]["parameters"]["active"] < own["training"]["parameters"]["total"]
    assert len(own["training"]["validation"]["row_losses"]) == 3
    assert "baseline" not in block and "paired" not in block, "there is nothing to compare it with"
    assert (block["model"]["moe_layers"], block["model"]["experts"], block["model"]["top_k"]) == (2, 8, 2)
    folder = tmp_path / "models" / own["model"]
    assert not (folder / "status.json").exists()
    assert not (folder / "checkpoints").exists()
    record = json.loads((folder / "training.json").read_text())
    assert record["validation"] == own["training"]["validation"] and record["corpus_rows"] == 8

    assert command(capsys, tmp_path, *TASK, "seeds=2").code == 0
    records = [json.loads(path.read_text()) for path in tmp_path.glob("models/*/training.json")]
    assert sorted(each["seed"] for each in records) == [0, 1]
    assert records[0]["validation"]["row_losses"] != records[1]["validation"]["row_losses"]
    assert records[0]["data"] == records[1]["data"], "the same rows, in another order"

    monkeypatch.setattr(training, "train", None)
    again = command(capsys, tmp_path, *TASK)
    assert again.code == 0 and block_of(again)["run_id"] == block["run_id"]
    other = block_of(command(capsys, tmp_path, "task=toy_math", "limit=2"))
    assert other["pretrain"]["model"] == own["model"] and other["run_id"] != block["run_id"]
    plan = command(capsys, tmp_path, "task=toy_choice", "limit=9", "mode=plan")
    assert plan.code == 0 and "To train" not in plan.out, plan.out
    assert command(capsys, tmp_path, *TASK, "mode=report").code == 0


@pytest.mark.slow
def test_a_trained_model_serves_all_methods(tmp_path, capsys):
    """As `model.path`: here one of the registered type, with a shared expert. method=base gives the same answers."""
    own = ["method.experts=6", "method.experts_per_token=3", "method.shared_experts=1"]
    trained = block_of(command(capsys, tmp_path, *TASK, *own, "metrics=expert"))
    metrics = json.loads(next(tmp_path.glob("runs/*/expert_metrics.json")).read_text())
    assert "load_balance" in json.dumps(metrics)
    model = tmp_path / "models" / trained["pretrain"]["model"] / "model"
    out = tmp_path / "others"
    common = [f"model.path={model}", f"output_dir={out}", "device=cpu", *TASK]
    assert run_command(capsys, "method=base", *common).code == 0
    assert answers(out, "base") == answers(tmp_path, "pretrain")
    for keys in (
        "method=roe method.n=4 method.temperature=0.5 method.skip_layers=0",
        "method=c3po method.reference_size=24 method.layers=last2 method.k=2 method.steps=1",
        "method=c2r method.dataset_size=8",
        "method=finetune-freeze method.schedule=none-router method.max_steps=2 method.validation_size=0 "
        "method.compare_with_full=false method.dataset_size=8",
    ):
        ended = run_command(capsys, *keys.split(), *common, "baseline=false")
        assert ended.code == 0, (keys, ended.err)


@pytest.mark.slow
@pytest.mark.parametrize("router", ("word", "expert"))
def test_a_router_of_several_tokens_is_evaluated_and_fine_tuned_and_no_more(router, tmp_path, capsys, loads):
    """Its expert metrics are refused before it is trained, other routing before its weights load."""
    own = f"method.router={router}"
    refused = command(capsys, tmp_path, *TASK, own, "metrics=expert")
    assert refused.code == 2 and "the routing of single tokens" in refused.err, refused.err
    assert not (tmp_path / "models").exists()
    ended = command(capsys, tmp_path, *TASK, own)
    told = block_of(ended)["pretrain"]
    assert ("expert choice reads later tokens" in " ".join(ended.out.split())) == (router == "expert")
    assert (told["training"]["leak"] is None) == (router == "word")
    model = tmp_path / "models" / told["model"] / "model"
    config = json.loads((model / "config.json").read_text())
    assert (config["model_type"], config["router"]) == ("moe_design", router)
    out = tmp_path / "others"
    common = [f"model.path={model}", f"output_dir={out}", "device=cpu", *TASK, "baseline=false"]
    assert run_command(capsys, "method=base", *common).code == 0
    assert answers(out, "base") == answers(tmp_path, "pretrain")
    tuned = ["method.schedule=none-router", "method.max_steps=2", "method.validation_size=0"]
    tuned += ["method.dataset_size=8"]
    ended = run_command(capsys, "method=finetune-freeze", *common, *tuned, "method.compare_with_full=false")
    assert ended.code == 0, ended.err
    loads.clear()
    for method in ("roe", "c3po", "c2r"):
        ended = run_command(capsys, f"method={method}", *common)
        assert ended.code == 2 and "does not allow to read or change" in ended.err, ended.err
    assert not loads


def left(tmp_path, seed=0, model=None, **keys):
    """What the plan says of a training."""
    config = Config(method=design(**keys), output_dir=str(tmp_path), seed=seed, model=model or ModelConfig())
    return Pretrain(config.method).training_left(config, facts())


def test_the_plan_counts_what_is_left_of_a_training(tmp_path):
    """Broken by a killed training that is planned at full cost."""
    [(name, todo)] = left(tmp_path, steps=10, gradient_accumulation=3).items()
    assert todo == (10, 10 * 2 * 3 * 12)
    kept = tmp_path / "models" / name / "checkpoints" / "checkpoint-4"
    kept.mkdir(parents=True)
    assert left(tmp_path, steps=10, gradient_accumulation=3) == {name: todo}, "it is not whole"
    (kept / COMPLETE).touch()
    assert left(tmp_path, steps=10, gradient_accumulation=3) == {name: (6, 6 * 2 * 3 * 12)}


def test_processes_that_do_not_share_the_passes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="gradient_accumulation=3 is not divisible by 2"):
        left(tmp_path, gradient_accumulation=3)
    assert left(tmp_path, gradient_accumulation=2)


def footnote(leak=None, **keys):
    """What a run of a design says below its scores."""
    method = Pretrain(design(**keys))
    validation = {"loss": 1.5, "ci95": [1.25, 1.75], "rows": 3}
    training = {"validation": validation, "leak": leak, "last_session": {"tokens_per_second": None}}
    [line] = method.footnotes(method.report(facts(), {}, {"training": training}) | {"seed": 7})
    return line


def test_footnotes_tell_designs_and_the_effects_of_later_tokens_apart():
    noted = footnote(bias_rate=0.1, routing_noise=0.5)
    assert (
        "regularizers=z-loss + bias, routing_noise=0.5, seed 7: held-out loss 1.5000 [1.2500, 1.7500]"
        in noted
    )
    part = {"difference": 0.125, "ci95": [0.0625, 0.25]}
    leak = {"rows": 32, "loss_with_later_tokens": 1.5, "later_tokens": part, "short_prefixes": part}
    assert footnote(leak, router="expert").count("+0.1250 [+0.0625, +0.2500]") == 2


def test_the_weights_of_model_are_not_needed(tmp_path):
    """A folder with a configuration and a tokenizer."""
    small_config("mixtral").save_pretrained(tmp_path / "bare")
    make_tokenizer().save_pretrained(tmp_path / "bare")
    model = ModelConfig(name="bare", path=str(tmp_path / "bare"))
    run = prepare(Config(model=model, method=design(), output_dir=str(tmp_path), limit=2, device="cpu"))
    assert run.facts.family == "olmoe" and run.method.training_left(run.config, run.facts)


@pytest.mark.slow
def test_what_determines_the_weights_makes_another_model(tmp_path):
    texts = tmp_path / "own.jsonl"
    texts.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(50)))
    shutil.copy(texts, tmp_path / "copy.jsonl")
    make_tokenizer().save_pretrained(tmp_path / "bytes")

    def name(**settings):
        [found] = left(tmp_path, **settings)
        return found

    first = name()
    assert first.startswith("tiny-pretrain-")
    own = name(dataset=str(texts))
    others = [
        *({"seed": 1}, {"steps": 5}, {"validation_rows": 4}, {"dataset_size": 500}),
        *(
            {"dataset": str(texts), **more}
            for more in ({"dataset_size": 9}, {"tokenizer": "train", "vocab_size": 260})
        ),
        {"model": ModelConfig(tokenizer=str(tmp_path / "bytes"))},
    ]
    assert len({first, own, *(name(**other) for other in others)}) == 2 + len(others)
    assert name(save_steps=1) == name(aux_loss=0.1) == name(vocab_size=999) == first
    assert name(dataset=str(tmp_path / "copy.jsonl")) == own, "the content counts"


@pytest.mark.parametrize("mode", ("run", "plan"))
def test_a_tokenizer_without_word_boundaries_ends_with_2_and_leaves_nothing(mode, tmp_path, capsys):
    plain = make_tokenizer()
    plain.backend_tokenizer.pre_tokenizer = None
    plain.save_pretrained(tmp_path / "plain")
    own = ["method.router=word", f"model.tokenizer={tmp_path}/plain", f"mode={mode}"]
    ended = command(capsys, tmp_path / "out", *TASK, *own)
    assert ended.code == 2 and "pre-tokenizer" in ended.err, ended.err
    assert not (tmp_path / "out").exists()
