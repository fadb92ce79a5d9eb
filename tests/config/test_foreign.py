"""Breaks if a command of lm-eval is translated to one that does not compose, or means something else."""

import shlex
from typing import Any

import pytest

from moe_lab.config.compose import compose
from moe_lab.config.foreign import refuse_lm_eval_command
from moe_lab.errors import ConfigError

PASTED = (
    "--model hf --model_args pretrained=X,dtype=bfloat16 --tasks arc_easy,piqa --limit 20 --num_fewshot 5 "
    "--batch_size 8 --apply_chat_template --output_path out --log_samples"
)


def translation(pasted: str) -> tuple[dict[str, Any], str]:
    """The composed values of the translated command, and the sentences after it."""
    with pytest.raises(ConfigError) as refused:
        compose(shlex.split(pasted))
    first, command, *notes = str(refused.value).splitlines()
    assert first == "These are flags of lm-eval. Here the command is:" and len(notes) <= 1
    assert command.startswith("python -m moe_lab ")
    [cell] = compose(shlex.split(command)[3:])
    return cell.values, "".join(notes)


def test_a_whole_command_is_translated():
    values, notes = translation(PASTED)
    task = values["task"]
    assert task["name"] == ["arc_easy", "piqa"]
    assert values["method"]["name"] == "base", "lm-eval evaluates the unmodified model"
    assert values["model"]["path"] == "X"
    keys = ("dtype", "limit", "num_fewshot", "batch_size", "apply_chat_template", "output_dir")
    assert [values[key] for key in keys] == ["bfloat16", 20, 5, 8, True, "out"]
    assert 'lm-eval takes the first ones: "samples=[$(seq -s, 0 19)]"' in notes
    assert "log_samples: Nothing to set" in notes
    assert "samples: Use samples=[1,2]" in translation("""--tasks gsm8k --samples '{"gsm8k": [1, 2]}'""")[1]
    assert translation("--tasks triviaqa")[0]["task"]["name"] == "triviaqa"


def test_short_flags_and_own_keys_stay_together():
    values, notes = translation(
        "run -M vllm -a pretrained=a/b,parallelize=True,load_in_4bit=True -t arc_easy method=roe method.n=4 "
        "--gen-kwargs temperature=0.7 do_sample=true --seed 0,1,2,3 --write_out --system_instruction 'You, (there)' "
        "--limit=0.1 --include_path tasks"
    )
    assert values["task"]["name"] == "arc_easy" and values["task"]["include_path"] == "tasks"
    assert values["task"]["metric"] == "acc_norm,none", "the option, with its headline metric"
    assert (values["method"]["name"], values["method"]["n"]) == ("roe", 4)
    assert values["gen_kwargs"] == "temperature=0.7,do_sample=true"
    assert (values["fewshot_seed"], values["limit"]) == (3, 0.1)
    assert values["system_instruction"] == "You, (there)"
    for sentence in (
        "--model vllm: ",
        "parallelize: Use model.device_map=auto.",
        "write_out: Nothing to set: samples_<task>.jsonl has every prompt.",
    ):
        assert sentence in notes


@pytest.mark.parametrize(
    ("pasted", "key", "value"),
    [
        ("--tasks arc_easy --model_args pretrained=X,dtype=float", "dtype", "float32"),
        ("--tasks arc_easy --model_args pretrained=X,dtype=torch.bfloat16", "dtype", "bfloat16"),
        ("""--tasks arc_easy --model_args '{"pretrained": "X", "dtype": "half"}'""", "dtype", "float16"),
        (
            """--tasks gsm8k --gen_kwargs '{"temperature": 0, "do_sample": false}'""",
            "gen_kwargs",
            "temperature=0,do_sample=false",
        ),
        ("--tasks arc_easy --limit 0.5 --limit 0.7", "limit", 0.7),
        (
            "--tasks gsm8k --model_args pretrained=X,think_end_token='<|channel|>final<|message|>'",
            "think_end_token",
            "<|channel|>final<|message|>",
        ),
        ("--tasks arc_easy --seed -1", "fewshot_seed", -1),
    ],
)
def test_values_are_written_as_this_command_reads_them(pasted, key, value):
    values, _ = translation(pasted)
    assert (values | values["model"])[key] == value
    assert "pretrained" not in pasted or values["model"]["path"] == "X"


@pytest.mark.parametrize(
    "argv", [["-m", "method=base,roe"], ["--config-dir", "x", "limit=3"], ["--limit", "3"]]
)
def test_commands_of_this_package_pass(argv):
    refuse_lm_eval_command(argv)
