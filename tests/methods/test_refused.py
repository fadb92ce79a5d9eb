"""What is refused: settings of every method by themselves, settings that a model
cannot have, and commands.

Broken by: an impossible value that is accepted or named without its key, a message
without the choices, a command that ends otherwise than with 2, or only after weights were
loaded or a folder was made.
"""

import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from tests.support.command import run_command
from tests.support.designs import design
from tests.support.documents import WINOGRANDE
from tests.support.models import small_model
from tests.support.pretrainings import SMALL
from tests.support.routed_by_hand import FACTS
from tests.support.runs import write_jsonl

WHOLE = {"frozen": [], "until": 1.0}
HALF = {"frozen": [], "until": 0.5}


def no_neighbour(optimizer: str, epsilon: float, most_similar: float) -> tuple[dict, str]:
    """A case of C3PO: references within epsilon would be near duplicates."""
    settings = {"optimizer": optimizer, "epsilon": epsilon, "most_similar": most_similar}
    return settings, rf"method.epsilon={epsilon} finds no neighbour.*cosine distance"


SETTINGS = {
    "roe": [
        (
            {"temperature": "warm"},
            "method.temperature=warm (.|\n)*Give a number, a list, or the best.yaml of a study",
        ),
        ({"temperature": [0.1, -1, 0, 0, 0]}, "at least 0"),
        ({"temperature": True}, "method.temperature=True"),
        ({"skip_layers": -1}, "at least 0"),
        ({"prefill": "none", "cache": "standard"}, "Choices: noisy, clean"),
        ({"prefill": "clean"}, "no effect with method.cache=clean"),
        ({"weights": "noisy"}, "clean, perturbed"),
        ({"noise": "antithetik"}, "Did you mean 'antithetic'"),
        ({"n": 1, "include_clean": False}, "method.include_clean=false"),
        ({"skip_layers": 3}, "leaves none of the 5 MoE layers"),
        ({"temperature": [0.1] * 4}, "4 entries; give one for each of 5"),
        ({"temperature": [0.1] * 5, "skip_layers": 1}, "contradicts"),
    ],
    "calibration": [
        ({"logit_scale": 0}, r"method\.logit_scale"),
        ({"logit_scale": -1.0}, r"method\.logit_scale"),
        ({"logit_scale": "nowhere.yaml"}, r"method\.logit_scale"),
    ],
    "top-k": [
        ({"k": 0}, "method.k=0"),
        ({"k": 7}, "method.k=7: a token of this model can have 1 to 6"),
    ],
    "top-p": [
        ({"p": 0}, "method.p=0"),
        ({"p": 1.5}, "at most 1"),
        ({"k_max": 0}, "method.k_max=0"),
        ({"k_max": 7}, "1 to 6"),
    ],
    "scmoe": [
        ({"beta": -0.1}, "method.beta=-0.1"),
        ({"alpha": 1.1}, "at most 1"),
        ({"rank": 0}, "method.rank=0"),
        ({"rank": 7}, "from 1 to 6"),
        ({"cache": "none"}, "Choices: clean, standard"),
        (
            {"profile": "nowhere.yaml"},
            "method.profile=nowhere.yaml is no profile of a study: No such file",
        ),
    ],
    "steer": [
        ({"activate": -1}, "method.activate=-1"),
        ({"activate": 11}, "method.activate=11.*from 0 to 10"),
        ({"deactivate": 21}, "method.deactivate=21.*from 0 to 20"),
        ({"dataset_size": 0}, "method.dataset_size=0"),
    ],
    "c3po": [
        (
            {"kernel": "linear", "bandwidth": 0.4},
            "method.bandwidth=0.4: the linear kernel has none",
        ),
        (
            {"kernel": "polynomial", "bandwidth": 0.4},
            "method.bandwidth=0.4: the polynomial kernel has none",
        ),
        no_neighbour("ngd", epsilon=0.05, most_similar=0.95),
        no_neighbour("ngd", epsilon=0.01, most_similar=0.95),
        no_neighbour("ngd", epsilon=0.3, most_similar=0.7),
        no_neighbour("kernel_regression", epsilon=0.05, most_similar=0.95),
        no_neighbour("kernel_regression", epsilon=0.01, most_similar=0.95),
        no_neighbour("kernel_regression", epsilon=0.3, most_similar=0.7),
    ],
    "finetune-freeze": [
        ({"phases": []}, r"method\.phases"),
        ({"phases": "router"}, r"method\.phases"),
        ({"phases": [HALF, HALF, WHOLE]}, r"method\.phases"),
        ({"phases": [{"frozen": [], "until": 0.0}, WHOLE]}, r"method\.phases"),
        ({"phases": [HALF, {"frozen": [], "until": 1.5}]}, r"method\.phases"),
        ({"phases": [{"frozen": "router", "until": 1.0}]}, r"method\.phases"),
        ({"phases": [WHOLE | {"lr": -1}]}, r"method\.phases"),
        ({"phases": [WHOLE | {"rate": 1}]}, r"method\.phases"),
        ({"phases": [{"frozen": [], "until": True}]}, r"method\.phases"),
        ({"epochs": 0}, "method.epochs="),
        ({"learning_rate": 0.0}, "method.learning_rate="),
        ({"weight_decay": -1.0}, "method.weight_decay="),
        ({"warmup_ratio": 1.0}, "method.warmup_ratio="),
        ({"optimizer": "adam_mini"}, "method.optimizer="),
        ({"max_steps": 0}, "method.max_steps="),
        ({"batch_size": 0}, "method.batch_size="),
        ({"gradient_accumulation": 0}, "method.gradient_accumulation="),
        ({"length": 0}, "method.length="),
        ({"dataset_size": 0}, "method.dataset_size="),
        ({"profile": "runs/x"}, "method.profile=runs/x has no effect without method.partners="),
        ({"partners": -1}, "method.partners"),
    ],
    "pretrain": [
        (
            {"experts": 2, "experts_per_token": 3},
            "method.experts=2 is fewer than method.experts_per_token=3",
        ),
        (
            {"experts_per_token": 3},
            "method.active_size=32 is not divisible by the 3 experts that a token takes",
        ),
        ({"shared_experts": 1}, "is not divisible by the 3 experts"),
        ({"backbone": "deepseek", "layers": 1}, "method.layers=1 leaves no experts"),
        ({"hidden_size": 36}, "method.hidden_size=36 must be a multiple of 2 x method.heads=4"),
        (
            {"router": "expert", "capacity_factor": 0.3},
            "an expert would take 0.90 tokens of a row of 12",
        ),
        ({"router": "expert", "aux_loss": 0.1}, "method.router=expert leaves no load"),
        ({"router": "expert", "bias_rate": 0.1}, "method.router=expert leaves no load"),
        (
            {"router": "expert", "routing_noise": 1.0},
            "method.routing_noise needs method.router=token",
        ),
        (
            {"router": "word", "routing_noise": 1.0},
            "method.routing_noise needs method.router=token",
        ),
        ({"router": "word-hash", "bias_rate": 0.1}, "method.router=word-hash leaves no load"),
        (
            {"device_loss": 0.1, "devices": 3},
            "method.experts=8 is not divisible by method.devices=3",
        ),
        ({"warmup_ratio": 1.0}, "method.warmup_ratio=1.0: must be below 1"),
        ({"vocab_size": 256}, "method.vocab_size=256"),
        ({"capacity_factor": 0.0}, "method.capacity_factor=0.0"),
        ({"learning_rate": 0.0}, "method.learning_rate=0.0"),
        ({"sequence_length": 1}, "method.sequence_length=1"),
        ({"validation_rows": 1}, "method.validation_rows=1"),
        ({"aux_loss": -0.1}, "method.aux_loss=-0.1"),
        ({"routing_noise": -1.0}, "method.routing_noise=-1.0"),
        ({"steps": 0}, "method.steps=0"),
        ({"z_loss": float("nan")}, "method.z_loss=nan"),
    ],
    "pretrain-tiny": [
        ({"steps": 0}, "method.steps"),
        ({"batch_size": -1}, "method.batch_size"),
        ({"learning_rate": -0.1}, "method.learning_rate"),
        ({"decay_steps": 5}, "method.decay_steps"),
    ],
}


def cases_of_all_methods():
    cases = []
    for method_name, settings in SETTINGS.items():
        for keys, message in settings:
            cases.append(pytest.param(method_name, keys, message, id=f"{method_name} {keys}"))
    return cases


@pytest.mark.parametrize(("name", "keys", "message"), cases_of_all_methods())
def test_impossible_settings(name, keys, message):
    method = get_method(name)
    if name == "pretrain":
        keys = SMALL | keys
    with pytest.raises(ConfigError, match=message):
        method(method.Config(**keys)).check(replace(FACTS, moe_layers=5))


COMMANDS = {
    "steer task=toy_safety method.positive=/nowhere/rows.jsonl": (
        "method.positive=/nowhere/rows.jsonl"
    ),
    "steer task=toy_safety method.negative=nothing:wrong": "method.negative=nothing:wrong",
    "steer task=toy_safety method.positive=nothing": "method.positive=nothing is unknown",
    "steer method.negative=toy_math:wrong": "toy_math has no choices",
    "c2r method.partners=2": "from 3 to 15",
    "c2r method.partners=16": "method.partners=16",
    "c2r method.profile=/nowhere": "metrics=expert",
    "c2r method.dataset=/nowhere/rows.jsonl": "/nowhere/rows.jsonl",
    "c2r method.dataset_size=0": "dataset_size",
    "c2r method.profile={tmp}/small.safetensors": "of this model",
    "c2r method.profile={tmp}/none.safetensors": "no pairs",
    "icl method.k=0": "at least 1",
    "icl method.reference_size=0": "at least 1",
    "icl method.reference_size=4 method.k=5": (
        "method.k=5 neighbours are needed, and toy_choice:near have 4"
    ),
    "icl method.reference=nosuchtask": "nosuchtask",
    "icl method.reference=toy_math": "multiple-choice",
    "icl method.embeddings=nosuch.safetensors": "no such file",
    "icl task=toy_math task.answer=text": "multiple-choice",
    "icl task=winogrande task.answer=text data_dir={tmp}": (
        "one prompt per question of winogrande: task.answer=letters"
    ),
    "icl apply_chat_template=true": (
        "method=icl puts demonstrations before a plain prompt, not into a chat: leave apply_chat"
    ),
    "prefix-tuning method.virtual_tokens=0": "at least 1",
    "prefix-tuning method.virtual_tokens=2000 max_length=100": "leaves no room",
    "prefix-tuning method.learning_rate=0": "above 0",
    "prefix-tuning method.epochs=0": "at least 1",
    "prefix-tuning device=cuda:1": "cuda",
    "prefix-tuning task=toy_math task.answer=text": "multiple-choice",
    "c3po method.optimizer=sgd": "Choices: ngd",
    "c3po method.layers=last9": "8 MoE layers",
    "c3po method.k=0": "at least 1",
    "c3po method.tokens=last": "last1 or middle3",
    "c3po method.loss=hinge": "Choices: cross_entropy, l2",
    "c3po method.alpha=2": "at most 1",
    "c3po method.learning_rate=[0.1]": "the first and the last",
    "c3po method.learning_rate=[0.1,0]": "above 0",
    "c3po method.k=500 method.reference_size=100": "toy_choice:near have 100 reference questions",
    "c3po task=toy_text task.answer=text": "likelihood of texts",
    "pretrain method.router=tokens": "method.router",
    "pretrain method.backbone=mixtral": "method.backbone",
    "pretrain method.dataset=pile": "method.dataset=pile is unknown",
    "pretrain method.dataset=minipile offline=true": "JeanKaddour/minipile",
    "pretrain method.dataset={tmp}/none.jsonl": "there is no file",
    "pretrain method.dataset={tmp}/empty.jsonl": "has no text",
    "pretrain mode=plan method.dataset={tmp}/short.jsonl": "The corpus is too short",
    "pretrain dtype=float16": "float16 overflows",
    "pretrain model.experts_per_token=4": "Use method.experts_per_token",
    "pretrain device=cuda:1": "cuda",
    "finetune-freeze method.schedule=none-routers": "Did you mean 'none-router'",
    "finetune-freeze method.phases=[{frozen:[router],until:0.4}]": "1 for the last phase",
    "finetune-freeze method.phases=[{frozen:[gate],until:1}]": (
        "method.phases[0].frozen[0]=gate is unknown"
    ),
    "finetune-freeze method.schedule=none-router method.max_steps=1": "phase 1 has no step",
    "finetune-freeze method.max_steps=1": "method.warmup_ratio=0.03: the training has one step",
    "finetune-freeze mode=plan method.dataset_size=4 method.epochs=1": (
        "nothing would be trained. Train longer"
    ),
    "pretrain-tiny method.steps=1": (
        "method.warmup_steps=200: the warm-up begins with the learning rate 0"
    ),
    "finetune-freeze method.dataset=lima": "mode=prefetch offline=false",
    "finetune-freeze method.dataset=alpaca": (
        "method.dataset=alpaca is unknown. Use toy, toy_subtract, toy_safe, toy_unsafe, lima"
    ),
    "finetune-freeze method.length=3": (
        "No conversation has an answer to train on within method.length=3"
    ),
    "finetune-freeze dtype=float16": "float16",
    "finetune-freeze method.partners=2": "from 3 to 15",
    "finetune-freeze device=cuda:1": "cuda",
    "finetune-freeze model.peft=nowhere/else/adapter": "There is no folder nowhere/else/adapter",
}


@pytest.fixture
def refused(tmp_path, capsys, loads, small_index):
    """A function of a method and keys, which returns what the command says on stderr.

    The message has at most three lines, and the command leaves no file.
    """
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "short.jsonl").write_text('{"text": "Too short."}')
    write_jsonl(tmp_path / "winogrande" / "validation.jsonl", [WINOGRANDE])
    save_file({"pairs": torch.zeros(2, 3, 3, dtype=torch.long)}, tmp_path / "small.safetensors")
    save_file({"selections": torch.zeros(2, 3)}, tmp_path / "none.safetensors")

    def run(line: str) -> str:
        keys = f"task=toy_choice limit=2 method={line.replace('{tmp}', str(tmp_path))}".split()
        ended = run_command(capsys, *keys, f"output_dir={tmp_path / 'out'}")
        assert ended.code == 2, ended.err
        assert len(ended.err.splitlines()) <= 3, ended.err
        assert not loads
        assert not (tmp_path / "out").exists()
        return ended.err

    return run


@pytest.mark.parametrize(("line", "message"), COMMANDS.items())
def test_a_wrong_command_ends_with_2_before_weights_load(line, message, refused):
    assert message in " ".join(refused(line).split())


@pytest.mark.parametrize(
    ("family", "line", "message"),
    [
        ("deepseek_v3", "prefix-tuning", "deepseek_v3.*Sizes of tensors must match"),
        ("deepseek_v3", "c2r", "within groups"),
        ("deepseek_v3", "finetune-freeze method.router_aux_loss_coef=0.01", "no auxiliary loss"),
        (
            "word",
            "finetune-freeze method.partners=2",
            "method.partners needs routers of single tokens",
        ),
    ],
)
def test_what_a_family_cannot_do(family, line, message, refused, tmp_path, tokenizer):
    model = design(family) if family == "word" else small_model(family)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert re.search(message, refused(f"{line} model.path={{tmp}}/model"))
