"""Mutations of the core: does a test of the same package fail if one line is wrong?

    python -m benchmarks.mutations                  # 100 mutations; the commit's hash is the seed
    python -m benchmarks.mutations --slow           # slow tests, too, for those that survive
    python -m benchmarks.mutations --seed abc1234   # the draw of another commit

One copy of the commit holds all mutations, each switched off. A first run of the tests records
which test reaches which mutation. Then a process per mutation switches it on and runs the tests
that reach it until one fails, and after them all others of the package, since a value that is
computed once is recorded for its first test alone. Every outcome is kept in `outputs/mutations/`:
the same command continues, and tries survivors again at another commit.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("routing", "engine", "methods", "metrics", "results", "runs")
PROBE = """
import os

ACTIVE, LOG, seen = os.environ.get("MUTATION"), os.environ.get("MUTATION_LOG"), set()


def on(number):
    line = LOG and f"{number} {os.environ.get('PYTEST_CURRENT_TEST', '').rpartition(' (')[0]}"
    if line and line not in seen:
        try:
            with open(LOG, "a") as file:
                file.write(line + chr(10))
            seen.add(line)
        except OSError:
            pass  # the test limits the size of files: its next call may write
    return ACTIVE == str(number)
"""
PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
)
SWAPPED: dict[type, type] = dict(PAIRS)
SWAPPED |= {second: first for first, second in PAIRS}
SWAPPED |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNLIKELY = {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "cast"}
"""Nobody swaps their arguments without seeing it at once."""
FAST = ["-m", "not slow"]
NO_TESTS = 5
"""pytest's exit code where no test is selected."""
SPOKEN = {"print", "warn", "info", "debug", "warning", "exception"}
"""Calls whose arguments are messages."""


class Mutation(NamedTuple):
    file: str
    line: int
    kind: str
    before: str
    after: str


def visited(node: ast.AST) -> Iterator[ast.AST]:
    """The node and those below it, without annotations, decorators, patterns, messages and
    assertions."""
    types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    if (
        types
        or isinstance(node, ast.JoinedStr | ast.pattern | ast.Assert)
        or called(node) in SPOKEN
    ):
        return
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visited(child)


def called(node: ast.AST) -> str | None:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", None))


def mutations_of(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """(kind, node to replace, its replacement) of each mutation at a node."""
    new = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            new.ops = [SWAPPED[type(op)]()]
            yield "comparison", node, new
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED:
            if not any(
                isinstance(side, ast.List | ast.Tuple | ast.JoinedStr) or is_text(side)
                for side in (left, right)
            ):
                new.op = SWAPPED[type(op)]()
                yield "arithmetic", node, new
        case ast.BoolOp(op=op):
            new.op = SWAPPED[type(op)]()
            yield "and/or", node, new
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", node, ast.Constant(2 * value + (value == 0))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, copy.deepcopy(operand)
        case ast.Call(func=ast.Name(id=name)) if name in OPPOSITE:
            new.func.id = OPPOSITE[name]
            yield "min/max", node, new
        case ast.Call(args=[first, second, *_]) if called(node) not in UNLIKELY:
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                new.args[:2] = new.args[1::-1]
                yield "arguments", node, new
        case ast.Expr(value=ast.Call() as call) if called(call) not in SPOKEN:
            yield "deletion", node, ast.Pass()
        case ast.AugAssign() | ast.Raise() | ast.Continue():
            yield "deletion", node, ast.Pass()
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition", node.test, ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


class Switches(ast.NodeTransformer):
    """Puts each replacement into a branch of its switch."""

    def __init__(self, chosen: dict[int, list[tuple[int, Any]]]):
        self.chosen = chosen

    def visit(self, node: ast.AST) -> Any:
        result: Any = self.generic_visit(node)
        for number, new in self.chosen.get(id(node), []):
            on = ast.parse(f"__import__('mutation_probe').on({number})", mode="eval").body
            if isinstance(result, ast.expr):
                result = ast.IfExp(on, new, result)
            else:
                result = ast.If(on, [new], [result])
        return result


def draw(folder: Path, count: int, seed: str) -> list[Mutation]:
    """Draw mutations of the copy in `folder`, the kind first and then the place, and write them
    into it."""
    trees = {
        file: ast.parse(file.read_text("utf-8"))
        for name in PACKAGES
        for file in sorted((folder / "moe_lab" / name).rglob("*.py"))
    }
    kinds: dict[str, list[tuple[Path, Any, Any]]] = defaultdict(list)
    for file, tree in trees.items():
        for node in visited(tree):
            for kind, old, new in mutations_of(node):
                kinds[kind].append((file, old, new))
    generator = random.Random(seed)
    drawn: list[Mutation] = []
    chosen: dict[int, list[tuple[int, Any]]] = defaultdict(list)
    while len(drawn) < count:
        kind = generator.choice(sorted(kind for kind in kinds if kinds[kind]))
        file, old, new = kinds[kind].pop(generator.randrange(len(kinds[kind])))
        chosen[id(old)].append((len(drawn), new))
        drawn.append(
            Mutation(
                str(file.relative_to(folder)), old.lineno, kind, ast.unparse(old), ast.unparse(new)
            )
        )
    for file, tree in trees.items():
        file.write_text(
            ast.unparse(ast.fix_missing_locations(Switches(chosen).visit(tree))), "utf-8"
        )
    (folder / "mutation_probe.py").write_text(PROBE)
    return drawn


def tested(folder: Path, arguments: list[str], timeout: float | None, **environment: str) -> str:
    """How pytest ends in the copy: passed, failed or timeout."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    variables = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"} | environment
    with (folder / "pytest.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, start_new_session=True, stdout=log, stderr=log
        )
        try:
            return "passed" if process.wait(timeout) in (0, NO_TESTS) else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "timeout"


def reached(folder: Path, outcomes: Path, chosen: list[str]) -> dict[int, set[str]]:
    """The tests that reach each mutation, from `outcomes` or else from a run without one."""
    if not outcomes.exists():
        begun = outcomes.with_suffix(".part")
        begun.unlink(missing_ok=True)
        packages = [f"tests/{name}" for name in PACKAGES]
        if tested(folder, packages + chosen, None, MUTATION_LOG=str(begun)) != "passed":
            sys.exit(f"Tests fail without a mutation: {folder}/pytest.log")
        begun.rename(outcomes)
    reach: dict[int, set[str]] = defaultdict(set)
    for line in outcomes.read_text().splitlines():
        number, _, test = line.partition(" ")
        reach[int(number)].add(test)
    return reach


def outcome(
    folder: Path, number: int, tests: str, near: list[str], slow: bool, timeout: float
) -> str:
    (folder / "near.txt").write_text("\n".join(near))
    named = f"@{folder}/near.txt" if near else tests
    rounds = [[named, *FAST], [tests, *FAST]]
    if slow:
        rounds.append([named, "-m", "slow"])
    for arguments in rounds:
        result = tested(folder, ["-x", *arguments], timeout, MUTATION=str(number))
        if result != "passed":
            return "killed" if result == "failed" else result
    return "survived"


def main() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commit = head.stdout[:10]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", default=commit)
    parser.add_argument(
        "--slow", action="store_true", help="slow tests, too, for survivors of the fast ones"
    )
    parser.add_argument("--timeout", type=float, default=900, help="seconds of one run of pytest")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "mutations")
    args = parser.parse_args()
    folder = args.folder.resolve() / args.seed
    place = folder / "copy"
    outcomes_file = folder / "outcomes.jsonl"
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, place], check=True)
    drawn = draw(place, args.count, args.seed)
    tier = "all" if args.slow else "fast"
    reach = reached(place, folder / f"reached-{commit}-{tier}.txt", [] if args.slow else FAST)
    known_outcomes: dict[Mutation, str] = {}
    lines = outcomes_file.read_text().splitlines() if outcomes_file.exists() else []
    for line in map(json.loads, lines):
        if line["outcome"] != "survived" or (line["commit"], line["tier"]) == (commit, tier):
            known_outcomes[Mutation(*line["mutation"])] = line["outcome"]
    for number, mutation in enumerate(drawn):
        if mutation not in known_outcomes:
            tests = "tests/" + mutation.file.split("/")[1]
            near = sorted(test for test in reach[number] if test.startswith(tests + "/"))
            known_outcomes[mutation] = outcome(place, number, tests, near, args.slow, args.timeout)
            with outcomes_file.open("a") as file:
                line = {
                    "mutation": mutation,
                    "outcome": known_outcomes[mutation],
                    "commit": commit,
                    "tier": tier,
                }
                file.write(json.dumps(line) + "\n")
        before = " ".join(mutation.before.split())[:70]
        after = " ".join(mutation.after.split())[:70]
        place = f"{mutation.file}:{mutation.line} {mutation.kind}"
        result = known_outcomes[mutation]
        print(f"{number:3} {result:8} {place}: {before} -> {after}", flush=True)
    killed = sum(known_outcomes[mutation] != "survived" for mutation in drawn)
    print(f"{killed} of {len(drawn)} killed")


if __name__ == "__main__":
    main()
