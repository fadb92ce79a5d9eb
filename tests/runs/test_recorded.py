"""`metrics_from=`: routed experts that a serving engine recorded, as files and as a command.

Broken by: another reading of one of the forms, a dense layer that is counted, tokens of the wrong phase, an entropy of
other counts, weights that are loaded, a file that does not fit the model and is not refused with its line.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from moe_lab.errors import ConfigError
from moe_lab.metrics.recorded import Routers, count_recorded, read_recorded
from tests.support.command import run_command

L, E, K = 8, 16, 4
"""Of the embedded model."""


def drawn(tokens: int, seed: int, layers: int = L) -> np.ndarray:
    """int64 [T, L, K] of distinct experts."""
    rng = np.random.default_rng(seed)
    return np.stack([[rng.permutation(E)[:K] for _ in range(layers)] for _ in range(tokens)])


def int32(routes: np.ndarray) -> str:
    """As SGLang returns them."""
    return base64.b64encode(routes.astype("<i4").tobytes()).decode()


def npy(routes: np.ndarray) -> str:
    """As vLLM's server returns them."""
    file = io.BytesIO()
    np.save(file, routes.astype(np.uint8))
    return base64.b64encode(file.getvalue()).decode()


def lines_of(requests: list[tuple[Any, Any]]) -> str:
    rows = [{"routed_experts": routes, "prompt_tokens": prompt} for routes, prompt in requests]
    return "".join(json.dumps(row) + "\n" for row in rows)


ROUTERS = Routers(experts=[E] * L, top_k=K, places=list(range(L)), layers=L)


@pytest.mark.parametrize("form", [int32, npy, np.ndarray.tolist])
def test_every_form_is_read(form: Callable[[np.ndarray], Any], tmp_path: Path) -> None:
    routes = [drawn(7, 1), drawn(3, 2)]
    file = tmp_path / "a.jsonl"
    file.write_text(lines_of([(form(routes[0]), 5), (form(routes[1]), 0)]))
    found = read_recorded(file, ROUTERS)
    assert [one.prompt for one in found] == [5, 0]
    assert all(np.array_equal(one.index_TLK, own) for one, own in zip(found, routes, strict=True))
    np.savez(tmp_path / "a.npz", a=routes[0].astype(np.int16), b=routes[1], prompt_tokens=np.array([5, 0]))
    again = read_recorded(tmp_path / "a.npz", ROUTERS)
    assert all(np.array_equal(one.index_TLK, own) for one, own in zip(again, routes, strict=True))


@pytest.mark.parametrize("form", [int32, npy])
def test_dense_layers_are_left_out(form: Callable[[np.ndarray], Any], tmp_path: Path) -> None:
    routes = drawn(17, 3, layers=L + 1)
    routes[:, 0] = 0  # a dense layer
    file = tmp_path / "a.jsonl"
    file.write_text(lines_of([(form(routes), 2)]))
    routers = Routers(experts=[E] * L, top_k=K, places=list(range(1, L + 1)), layers=L + 1)
    assert np.array_equal(read_recorded(file, routers)[0].index_TLK, routes[:, 1:])
    file.write_text(lines_of([(form(routes[:, 1:]), 2)]))
    assert np.array_equal(read_recorded(file, routers)[0].index_TLK, routes[:, 1:])


def test_numbers_without_a_shape_that_fit_twice_are_refused(tmp_path: Path) -> None:
    """Broken by a guess: with one expert per token nothing shows whether dense layers are among them."""
    (tmp_path / "a.jsonl").write_text(lines_of([(int32(drawn(16, 3, layers=L + 1)), 2)]))
    routers = Routers(experts=[E] * L, top_k=K, places=list(range(1, L + 1)), layers=L + 1)
    with pytest.raises(ConfigError, match="both multiples of 8 and 9 layers"):
        read_recorded(tmp_path / "a.jsonl", routers)


def test_pairs_are_counted_by_request_and_phase(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    routes = [drawn(5, 1), drawn(3, 2)]
    file.write_text(lines_of([(int32(routes[0]), 2), (int32(routes[1]), 3)]))
    counts = count_recorded(read_recorded(file, ROUTERS), [E] * L)
    expected = np.zeros((2, 2, L, E, E), dtype=int)
    for number, (own, prompt) in enumerate(zip(routes, (2, 3), strict=True)):
        for token, by_layer in enumerate(own):
            for layer, experts in enumerate(by_layer):
                for i in experts:
                    for j in experts:
                        expected[number, int(token >= prompt), layer, i, j] += 1
    assert np.array_equal(counts.pairs_GPLEE, expected)
    assert counts.tokens_P == [5, 3] and counts.documents == 2


def changed(place: tuple[int, ...], value: int) -> list[Any]:
    routes = drawn(4, 5)
    routes[place] = value
    found: list[Any] = routes.tolist()
    return found


WRONG: dict[str, tuple[str, str]] = {
    "layers": (
        lines_of([(drawn(2, 0).tolist(), 1), (drawn(2, 0)[:, :5].tolist(), 1)]),
        "line 2: 5 layers.*has 8",
    ),
    "experts per token": (lines_of([(drawn(2, 0)[..., :3].tolist(), 1)]), "line 1: 3 experts.*takes 4"),
    "an id": (lines_of([(changed((2, 6, 1), 16), 1)]), "line 1: token 2, MoE layer 6.*no such expert"),
    "twice": (lines_of([(changed((1, 0), 0), 1)]), "token 1, MoE layer 0.*listed twice"),
    "prompt": (lines_of([(drawn(2, 0).tolist(), 9)]), "prompt_tokens=9.*0 to 3"),
    "base64": (lines_of([("###", 1)]), "line 1 has routed_experts that cannot be decoded"),
    "numbers": (lines_of([(int32(drawn(1, 0))[:64], 1)]), "no multiples of 8 layers"),
    "shape": (lines_of([([1, 2], 1)]), "Integers .tokens, layers"),
    "keys": ('{"routed_experts": []}\n', "line 1: a request needs the keys"),
    "json": ("{\n", "line 1 is not JSON"),
    "nothing": ("\n", "has no request"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_does_not_fit_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    content, says = WRONG[name]
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=says) as raised:
        read_recorded(file, ROUTERS)
    assert "metrics_from=" in str(raised.value) and "a.jsonl" in str(raised.value)


@pytest.mark.slow
def test_a_command_measures_recorded_routes_without_weights(
    tmp_path: Path, capsys: Any, loads: list[str]
) -> None:
    file = tmp_path / "traffic.jsonl"
    routes = [drawn(9, seed) for seed in range(6)]
    file.write_text(lines_of([(int32(own), 4) for own in routes]))
    keys = ["model=tiny", "method=base", "metrics=expert", f"metrics_from={file}", f"output_dir={tmp_path}"]
    ended = run_command(capsys, *keys)
    assert ended.code == 0, ended.err
    assert loads == [] and "Load Balance, bits" in ended.out and "need the model's weights" in ended.out
    stored = Path(ended.out.splitlines()[-1])
    found = json.loads(stored.read_text())
    assert found["capacity"] is None and found["specialization"] is None
    assert found["tokens"] == {"prefill": 24, "decode": 30, "all": 54} and found["documents"] == 6
    selections = np.stack(
        [np.bincount(np.concatenate(routes)[:, layer].ravel(), minlength=E) for layer in range(L)]
    )
    counted = load_file(stored.parent / "expert_metrics" / "counts.safetensors")
    assert np.array_equal(counted["selections.prefill"] + counted["selections.decode"], selections)
    share = selections / selections.sum(axis=1, keepdims=True)
    entropy = -(share * np.log2(np.where(share > 0, share, 1))).sum(axis=1).mean()
    assert found["load_balance"]["all"]["counted"] == pytest.approx(entropy)
    assert "Expert metrics by layer" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["method=roe", "metrics=expert"], "Use method=base"),
        (["method=base"], "metrics=none"),
        (["method=base", "metrics=expert", "task=toy_choice"], "task= has no effect"),
        (["method=base", "metrics=expert", "mode=plan"], "Leave mode="),
        (["method=base", "metrics=expert"], "/nowhere.jsonl cannot be read"),
    ],
)
def test_what_contradicts_it_is_refused(
    typed: list[str], says: str, tmp_path: Path, capsys: Any, loads: list[str]
) -> None:
    ended = run_command(
        capsys, "model=tiny", "metrics_from=/nowhere.jsonl", f"output_dir={tmp_path / 'out'}", *typed
    )
    assert ended.code == 2 and says in ended.err
    assert loads == [] and not (tmp_path / "out").exists()
