"""Breaks if a module is added without tests at its mirrored place, or if test modules import each other.

`moe_lab/a/b.py` is tested by `tests/a/test_b.py` or by the files of `tests/a/b/`.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "moe_lab"
UNTESTED = {
    "": "__main__ errors",
    "cli/doctor": "model report",
    "cli": "help_options prefetch worker",
    "cli/launchers": "ray",
    "config": "catalog compose hydra_errors paths schema version",
    "engine": "engine hf kv_engine recurrent_engine",
    "engine/forward": "batch ensemble layers observer token_hash",
    "engine/generation": "prefill prefix_cache",
    "engine/suffix": "recorder",
    "methods": "base hub_files prefix_tuning soft_prompt trainer training_method",
    "methods/c2r": "lm profiles",
    "methods/c3po": "engine lm loss optimizer",
    "methods/finetune_freeze": "config fsdp_optimizer phase_switch sampler store trainer",
    "methods/icl": "lm",
    "methods/references": "checks questions sources store",
    "methods/virtual_tokens": "adapters lm store support",
    "metrics": "accuracy_drop capacity collaboration correlations documents entropy "
    "load_balance metric routes specialization stored_metrics training_metrics",
    "models": "distributed experts_per_token facts probe tokenizer weight_files",
    "models/deepseek": "configuration",
    "models/hub": "headers offline",
    "reports/figures": "accuracy coactivation equivalent forest",
    "reports/loggers": "logger",
    "reports/papers": "cell cell_table csv_table experiment means published setup_table table_files",
    "results": "identity verdicts versions",
    "routing": "counts families override record remix rules seams",
    "runs": "config estimate grid jobs memory_errors prepare stored_result",
    "runs/evaluation": "evaluate judges_block result_block run_lm_eval",
    "runs/experiments": "cells deepen equivalent places",
    "runs/tuning": "solve",
    "tasks": "estimate factory generation own_files requests",
    "tasks/judges": "judge llama_guard lm_eval_hooks reward session toy_training",
    "tasks/safety": "prompts",
    "tasks/sandbox": "inside limits namespaces probe programs",
    "tasks/toy": "datasets instructions names relations requests seeded stories world",
}
"""Modules without tests of their own by folder; tests of other modules run them. This list may only become shorter."""


def has_tests(module: Path) -> bool:
    """`module` is relative to moe_lab/, without suffix."""
    mirrored = TESTS / module
    return mirrored.with_name(f"test_{module.name}.py").exists() or any(mirrored.glob("test_*.py"))


def without_tests() -> set[str]:
    modules = (
        file.relative_to(PACKAGE).with_suffix("")
        for file in PACKAGE.rglob("*.py")
        if file.name != "__init__.py"
    )
    return {module.as_posix() for module in modules if not has_tests(module)}


def test_every_module_has_tests_or_is_listed():
    listed = {f"{folder}/{name}".lstrip("/") for folder, names in UNTESTED.items() for name in names.split()}
    new = sorted(without_tests() - listed)
    assert not new, f"No tests at the mirrored place: {', '.join(new)}"
    gone = sorted(listed - without_tests())
    assert not gone, f"Tested, moved or deleted; to be taken off UNTESTED: {', '.join(gone)}"


def test_tests_import_support_alone():
    wrong = [
        f"{file.relative_to(TESTS.parent)}:{node.lineno} imports {module}"
        for file in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for module in imported(node)
        if module.split(".")[0] == "tests" and module.split(".")[1:2] != ["support"]
    ]
    assert not wrong, "\n".join(wrong)


def imported(node: ast.AST) -> list[str]:
    """Dotted names that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
