"""What a command reads of the hub and how a run knows it: `mode=prefetch`,
judges, adapters, run ids.

Broken by: prefetching that loads weights, stops at the first failure, goes on where the network
is forbidden or leaves out what a run offline needs; a commit that is not the identity of a judge
or adapter; a run of a hub's model with another id.

Breaks when the command as a user types it does not go through the hub, fetches twice,
or needs the network offline.

The options of conf/model: each plans by its real id, and runs with a small folder
in the place of its weights.

Broken by: an id or a configuration that transformers cannot read, a family that does
not run from the command line, a quantization that is refused though it can be loaded,
weights that are fetched to plan.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

import peft
import pytest
from huggingface_hub import constants
from transformers import LlavaConfig

from moe_lab.cli.prefetch import prefetch
from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.errors import ConfigError, ModelError, TaskError
from moe_lab.methods import get_method
from moe_lab.models.facts import model_facts
from moe_lab.models.identity import model_identity
from moe_lab.models.source import load_config
from moe_lab.runs.config import compose_or_explain, to_config
from moe_lab.runs.prepare import prepare
from moe_lab.tasks import loading
from moe_lab.tasks.judges import Exchange
from moe_lab.tasks.judges.reward import RewardModel
from tests.support.adapters import make_adapter
from tests.support.command import run_command
from tests.support.hub.commands import ROOT, new_command
from tests.support.hub.content import GSM8K, OLMOE, small_olmoe
from tests.support.hub.published import PUBLISHED
from tests.support.hub.repositories import Repository
from tests.support.judges.models import reward_directly, reward_folder
from tests.support.models import make_model, make_tokenizer, save_model, small_model
from tests.support.runs import small_data, worked_sums, write_jsonl
from tests.support.tiers import first_fast

MODEL = ModelConfig(name="olmoe", path=OLMOE)
SHARD = "model-00001-of-00005.safetensors"


def config(**keys):
    return Config(
        method=get_method("base").Config(name="base"), **{"model": MODEL, "device": "cpu", **keys}
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.slow
def test_every_model_of_a_grid_is_fetched_and_none_is_loaded(client, hub, loads, capsys):
    assert prefetch([config(), config(seed=1), config(model=ModelConfig())]) == 0
    models = [line for line in capsys.readouterr().out.splitlines() if line.startswith("model ")]
    assert [line.partition(":")[0] for line in models] == ["model olmoe", "model tiny"]
    assert next(Path(models[0].partition(": ")[2]).glob("*.safetensors"))
    assert loads == []
    new_command()
    before = len(hub.ranges(SHARD))
    assert prefetch([config()]) == 0
    assert len(hub.ranges(SHARD)) == before


def test_what_fails_is_told_and_the_rest_is_fetched(client, hub, capsys):
    wrong = config(model=ModelConfig(name="x", path="allenai/nothing"))
    assert prefetch([wrong, config()]) == 2
    captured = capsys.readouterr()
    assert "The model allenai/nothing is not on the hub" in captured.err
    assert "model olmoe: " in captured.out


def test_a_pretraining_takes_the_tokenizer_alone(client, hub, capsys):
    def fetched(name):
        return [answer.path for answer in hub.log if answer.path.endswith(name)]

    pretrain = replace(config(), method=get_method("pretrain").Config(name="pretrain"))
    assert prefetch([pretrain]) == 0
    assert fetched("tokenizer.json")
    assert not fetched(".safetensors")
    assert prefetch([pretrain, config()]) == 0
    assert fetched(".safetensors")


def test_a_task_that_lacks_its_data_is_a_failure(client, monkeypatch, capsys):
    def missing(config):
        raise TaskError("no data")

    monkeypatch.setattr(loading, "load_tasks", missing)
    assert prefetch([config(model=ModelConfig())]) == 2
    assert "no data" in capsys.readouterr().err


def test_it_is_refused_offline(client, monkeypatch):
    with pytest.raises(ConfigError, match="needs the network"):
        prefetch([config(offline=True)])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE=1"):
        prefetch([config()])


def test_offline_the_hub_is_asked_for_nothing(client, hub):
    with pytest.raises(TaskError, match="gsm8k"):
        prepare(config(offline=True, task=TaskConfig(name="gsm8k")))
    assert hub.log == []


@pytest.mark.slow
def test_what_a_method_reads_beside_its_task_is_a_step(client, hub, capsys, tmp_path):
    c3po = get_method("c3po").Config
    asks = Config(
        task=TaskConfig(name="toy_choice"), method=c3po(name="c3po"), output_dir=str(tmp_path)
    )
    assert prefetch([asks]) == 0
    assert "method c3po: its data other than" in capsys.readouterr().out
    assert prefetch([replace(asks, method=c3po(name="c3po", reference="toy_choice:nowhere"))]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_judge_is_fetched_and_then_judges_offline(client, hub, tmp_path, capsys):
    folder = reward_folder(tmp_path / "one")
    repository = hub.add(Repository("someone/reward"))
    first = repository.commit(files_of(folder))
    task = TaskConfig(name="toy_safety", judges=["toy", "reward"], reward_model="someone/reward")
    judged = config(model=ModelConfig(), task=task)
    assert prefetch([judged]) == 0
    out = capsys.readouterr().out
    assert "judge reward: " in out
    assert "judge toy" not in out
    new_command()
    judge = RewardModel(replace(judged, offline=True))
    judge.check()
    [verdict] = judge.judge([Exchange("Who?", "Nobody.")])
    assert abs(verdict["scores"]["reward"] - reward_directly(folder, "Who?", "Nobody.")) < 1e-5
    assert judge.identity["model"] == {"hub": "someone/reward", "revision": first}

    second = repository.commit(files_of(reward_folder(tmp_path / "two", seed=1)))
    new_command()
    assert RewardModel(judged).identity["model"]["revision"] == second
    pinned = replace(judged, task=replace(task, reward_model=f"someone/reward@{first}"))
    assert RewardModel(pinned).identity == judge.identity


@pytest.mark.slow
def test_an_adapter_of_the_hub_is_fetched_once_and_known_by_its_commit(
    client, hub, tmp_path, capsys
):
    make_adapter(make_model("olmoe"), peft.LoraConfig(target_modules=["q_proj"]), tmp_path / "a")
    commit = hub.add(Repository("someone/adapter")).commit(files_of(tmp_path / "a"))
    command = [
        f"model.path={OLMOE}",
        "model.peft=someone/adapter",
        "task=toy_choice",
        "method=base",
    ]
    ended = run_command(capsys, *command, "mode=prefetch")
    assert ended.code == 0, ended.err
    model = ModelConfig(path=OLMOE, peft="someone/adapter")
    assert model_identity(OLMOE, model)["peft"] == {"hub": "someone/adapter", "revision": commit}
    hub.log.clear()
    ended = run_command(
        capsys, *command, "offline=true", "limit=2", f"output_dir={tmp_path / 'outputs'}"
    )
    assert ended.code == 0, ended.err
    assert not hub.log


def test_an_adapter_of_another_base_model_is_refused_by_its_configuration(client, hub):
    settings = b'{"peft_type": "LORA", "base_model_name_or_path": "someone/else"}'
    files = {"adapter_config.json": settings, "adapter_model.safetensors": b"not read"}
    hub.add(Repository("someone/adapter")).commit(files)
    model = ModelConfig(path=OLMOE, peft="someone/adapter")
    with pytest.raises(
        ModelError, match="was trained on someone/else. Use model.path=someone/else"
    ):
        model_facts(model, dtype="auto", device="cpu", offline=False)


RUN_IDS = {
    "method=roe model=olmoe task=addsub method.skip_layers=0": (
        "72b1c427721d9f0ea8b265c62960b6a630aa817529a368ca0abebb3b209265b1"
    ),
    "method=base model=olmoe model.revision=main task=arc_easy limit=3": (
        "f330ee47528d512155fba7be8ec9d358d707ecb43aaf992b268d5abb79e4b794"
    ),
}
"""By command line: the hub's id and the revision as it is typed count, and no commit."""


@pytest.mark.parametrize("line", RUN_IDS)
def test_a_run_of_a_hubs_model_keeps_its_id(line, hub, client, tmp_path):
    data = small_data(tmp_path / "data")
    common = ["device=cpu", "dtype=float32", f"data_dir={data}", f"output_dir={tmp_path}"]
    (cell,) = compose_or_explain([*line.split(), *common])
    assert prepare(to_config(cell)).run_id == RUN_IDS[line]


SMALL = ("model=olmoe", "task=gsm8k", "limit=2", "num_fewshot=2", "gen_kwargs=max_gen_toks=4")
ROE = ("method=roe", "method.n=4", *SMALL)
NO_SOCKETS = """
import socket

def refuse(*arguments, **options):
    raise AssertionError("a socket was opened")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def results_of(ended):
    assert ended.returncode == 0, ended.stderr[-3000:]
    with open(ended.stdout.strip().splitlines()[-1], encoding="utf-8") as file:
        return json.load(file)


def content(hub, since=0):
    """What files were sent."""
    sent = [answer.path for answer in hub.log[since:] if answer.method == "GET" and answer.sent]
    return [path for path in sent if "api" not in path.split("/")]


@pytest.mark.slow
def test_roe_and_base_through_the_hub_fetch_everything_once(
    commands, hub, olmoe_repository, tmp_path
):
    results = results_of(commands.run(*ROE))
    commit = olmoe_repository.branches["main"]
    assert results["moe_lab"]["model"]["commit"] == commit
    assert results["moe_lab"]["model"]["path"] == OLMOE
    assert len(results["moe_lab"]["baseline"]["run_id"]) == 64
    assert results["moe_lab"]["roe"]["n"] == 4
    sent = content(hub)
    assert len(sent) == len(set(sent))
    assert any(path.startswith(f"cdn/datasets/{GSM8K}/") and "/main/test-" in path for path in sent)
    assert not any("socratic" in path for path in sent)
    assert list(
        (commands.folder / "hf" / "datasets").glob("openai___gsm8k/main/*/*/gsm8k-test.arrow")
    )
    before = len(hub.log)
    moved = olmoe_repository.commit(small_olmoe(tmp_path / "other", seed=1))
    second = results_of(commands.run("method=base", *SMALL))["moe_lab"]
    baseline = results["moe_lab"]["baseline"]
    assert baseline["run_id"] == second["run_id"], (
        "a moved branch is another result of the same run"
    )
    assert second["model"]["commit"] == moved != commit
    assert not any("datasets" in path for path in content(hub, before)), "the data did not change"


@pytest.mark.slow
def test_prefetch_then_offline_with_the_network_closed(commands, hub, tmp_path):
    fetched = commands.run("mode=prefetch", *ROE)
    assert fetched.returncode == 0, fetched.stderr[-3000:]
    assert "model olmoe: " in fetched.stdout
    assert "task gsm8k: " in fetched.stdout
    assert not (tmp_path / "outputs" / "runs").exists()
    before = len(hub.log)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_SOCKETS)
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}
    results_of(commands.run(*ROE, "offline=true", **closed))
    assert len(hub.log) == before


@pytest.mark.slow
def test_no_network_and_no_cache_ends_within_seconds(commands):
    """Most of them are spent on imports; one file alone took the clients 23 s of waiting."""
    start = time.monotonic()
    ended = commands.run(
        "method=base", "model=olmoe", "task=toy_math", HF_ENDPOINT="http://127.0.0.1:9"
    )
    assert ended.returncode == 2, ended.stderr
    assert "cannot be reached" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert time.monotonic() - start < 30


MODELS = {
    "olmoe": ("allenai/OLMoE-1B-7B-0924-Instruct", "olmoe", 16),
    "olmoe-base": ("allenai/OLMoE-1B-7B-0924", "olmoe", 16),
    "olmoe-0125-instruct": ("allenai/OLMoE-1B-7B-0125-Instruct", "olmoe", 16),
    "gpt-oss": ("openai/gpt-oss-20b", "gpt_oss", 24),
    "mixtral": ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral", 32),
    "deepseek-moe": ("deepseek-ai/deepseek-moe-16b-base", "deepseek", 27),
    "qwen3-moe": ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe", 48),
    "granite-moe-1b": ("ibm-granite/granite-3.1-1b-a400m-instruct", "granitemoe", 24),
}
"""Option -> hub id, family, MoE layers of the published model."""


@pytest.fixture
def data_dir(tmp_path):
    """GSM8K as `data_dir` has it."""
    for split in ("train", "test"):
        write_jsonl(tmp_path / "data" / "gsm8k" / f"{split}.jsonl", worked_sums(8))
    return tmp_path / "data"


@pytest.mark.slow
def test_all_plan_by_their_real_ids(client, hub, data_dir, tmp_path, capsys):
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    tokenizer = {file.name: file.read_bytes() for file in (tmp_path / "tokenizer").iterdir()}
    for option, (name, _, _) in MODELS.items():
        # of all kinds: dense, with a window, full
        published = PUBLISHED[option] | {"num_hidden_layers": 4}
        if "layer_types" in published:
            published["layer_types"] = published["layer_types"][:4]
        files = tokenizer | {"config.json": json.dumps(published).encode()}
        hub.add(Repository(name)).commit(files | {"model.safetensors": b"never fetched"})
    options = [
        "task=gsm8k",
        f"data_dir={data_dir}",
        "limit=2",
        f"output_dir={tmp_path / 'outputs'}",
    ]
    ended = run_command(
        capsys, "-m", "mode=plan", "method=roe", f"model={','.join(MODELS)}", *options
    )
    assert ended.code == 0, ended.err
    for option, (name, _, _) in MODELS.items():
        assert option in ended.out
        assert name in json.dumps(hub.log, default=str)
    for answer in hub.log:
        assert not ("safetensors" in answer.path and answer.method == "GET")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("option", first_fast(list(MODELS)[3:]))
def test_each_runs_on_a_small_folder(option, data_dir, tmp_path, capsys):
    _, family, _ = MODELS[option]
    save_model(small_model(family), tmp_path / "model")
    options = [
        "task=gsm8k",
        f"data_dir={data_dir}",
        "limit=2",
        "num_fewshot=1",
        "gen_kwargs=max_gen_toks=4",
    ]
    options += [
        f"model.path={tmp_path / 'model'}",
        f"output_dir={tmp_path / 'outputs'}",
        "device=cpu",
    ]
    method = ["method=roe", "method.n=3", "method.skip_layers=0", "method.temperature=0.5"]
    ended = run_command(capsys, *method, f"model={option}", *options)
    assert ended.code == 0, ended.err
    block = json.loads(Path(ended.out.strip().splitlines()[-1]).read_text(encoding="utf-8"))[
        "moe_lab"
    ]
    assert block["model"]["family"] == family
    assert block["roe"]["changed_fraction"] > 0
    assert len(block["baseline"]["run_id"]) == 64


@pytest.mark.parametrize("option", MODELS)
def test_the_published_shape_is_read(option, tmp_path):
    _, family, layers = MODELS[option]
    published = PUBLISHED[option]
    (tmp_path / "config.json").write_text(json.dumps(published))
    model = ModelConfig(path=str(tmp_path))
    facts = model_facts(model, dtype="bfloat16", device="cpu", offline=True)
    experts = (
        published.get("num_local_experts")
        or published.get("num_experts")
        or published["n_routed_experts"]
    )
    assert (facts.family, facts.moe_layers, facts.experts) == (family, layers, experts)
    sizes = published["num_experts_per_tok"], published["max_position_embeddings"]
    assert (facts.top_k, facts.max_length) == sizes
    config = load_config(model, offline=True)
    assert config.rope_parameters["rope_theta"] == published["rope_theta"]
    assert getattr(config, "sliding_window", None) == published.get("sliding_window")
    assert option == "gpt-oss" or str(config.dtype) == f"torch.{published['torch_dtype']}"


@pytest.mark.parametrize("mode", ["plan", "run", "prefetch"])
def test_the_weights_of_a_model_that_cannot_run_are_not_fetched(
    mode, client, hub, tmp_path, capsys
):
    make_tokenizer().save_pretrained(tmp_path / "model")
    LlavaConfig().save_pretrained(tmp_path / "model")
    files = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    hub.add(Repository("someone/llava")).commit(files | {"model.safetensors": b"never fetched"})
    output = f"output_dir={tmp_path / 'outputs'}"
    ended = run_command(capsys, f"mode={mode}", "method=base", "model.path=someone/llava", output)
    assert ended.code == 2
    assert "an image-and-text model of the type llava" in ended.err
    for answer in hub.log:
        assert "safetensors" not in answer.path
