"""The wheel, the Makefile and the files around the package.

Broken by: conf/ or experiments/ missing from the wheel or at its top level, a path that needs the checkout,
a target without help, an import of a package that pyproject.toml does not declare, a range without the tested version.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from moe_lab import __version__
from moe_lab.config.catalog import resource_folder
from tests.support.sources import PACKAGE, ROOT, files_in, nodes_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


def test_the_release_is_one():
    """The package, CITATION.cff and the newest section of the changelog have one version and date."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(
        r"^## \[(\d\S+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert newest and (cited["version"], str(cited["date-released"])) == newest.groups()
    assert cited["version"] == __version__


def test_in_a_checkout_conf_lies_beside_the_package():
    assert resource_folder("conf") == ROOT / "conf"
    with pytest.raises(FileNotFoundError, match="nothing/ is neither"):
        resource_folder("nothing")


@pytest.mark.slow
def test_the_wheel_holds_conf_and_experiments_inside_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "moe_lab",
        f"moe_lab-{wheel.name.split('-')[1]}.dist-info",
    }
    for folder in ("conf", "experiments"):
        files = [file.relative_to(ROOT).as_posix() for file in (ROOT / folder).rglob("*.yaml")]
        assert files
        assert {f"moe_lab/{file}" for file in files} <= set(names)
    packaged = [
        f.relative_to(ROOT).as_posix()
        for f in (ROOT / "moe_lab").rglob("*")
        if f.suffix in (".yaml", ".json", ".j2", ".css", ".js", ".mplstyle")
    ]
    assert "moe_lab/py.typed" in names, "its types are for type checkers of others, too"
    assert set(packaged) <= set(names), (
        "task YAMLs, the tiny model's files and templates of pages travel too"
    )


@pytest.mark.slow
def test_the_wheel_works_from_a_folder_with_spaces(wheel, tmp_path):
    site, work = tmp_path / "a site", tmp_path / "a work folder"
    zipfile.ZipFile(wheel).extractall(site)
    work.mkdir()
    environment = os.environ | {"PYTHONPATH": str(site)}
    for argv, text in ((["--help"], "figure3"), (["--cfg", "job"], "toy_math")):
        command = [sys.executable, "-m", "moe_lab", *argv]
        ended = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=True
        )
        assert text in ended.stdout
    code = "from moe_lab.config.catalog import resource_folder; print(resource_folder('conf'))"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == str(site / "moe_lab" / "conf")
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_make_help_lists_every_target():
    out = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    wanted = [
        "run",
        "test",
        "test-all",
        "checks",
        "docs",
        "bench",
        "reproduce-tables",
        "clean-outputs",
    ]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for target in {*wanted, *targets}:
        assert re.search(rf"^  make {target} +\S", out, re.M), target


@pytest.mark.slow
def test_clean_outputs_keeps_the_folder(tmp_path):
    (tmp_path / "outputs" / "runs" / "x").mkdir(parents=True)
    (tmp_path / "outputs" / ".gitkeep").touch()
    command = ["make", "-f", str(ROOT / "Makefile"), "clean-outputs"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert [file.name for file in (tmp_path / "outputs").iterdir()] == [".gitkeep"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> list[Requirement]:
    """The requirements of the package, and of some of its extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    lists = [PROJECT["project"]["dependencies"], *(optional[extra] for extra in extras)]
    return [
        Requirement(text) for texts in lists for text in texts if not text.startswith("moe-lab[")
    ]


def test_every_dependency_has_a_tested_version_in_its_range():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    for requirement in declared("dev", "wandb", "peft", "gpu"):
        assert requirement.specifier.contains(pins[normal(requirement.name)]), str(requirement)
    assert "+" not in text, "a local version label would tie everybody to one build"


def test_every_imported_package_is_declared():
    """A package that is there only because another one needs it may leave with that one's next version."""
    extras = [extra for extra in PROJECT["project"]["optional-dependencies"] if extra != "dev"]
    names = {normal(requirement.name) for requirement in declared(*extras)}
    of_module = packages_distributions()
    missing = {
        f"{module} ({file.relative_to(ROOT)})"
        for file in files_in(PACKAGE)
        for module in imported_packages(file)
        if not names & {normal(name) for name in of_module.get(module, [module])}
    }
    assert not missing, "\n".join(sorted(missing))


def imported_packages(file: Path) -> set[str]:
    """The packages of others that a file imports, within functions too."""
    modules = []
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.append(node.module or "")
    packages = {module.partition(".")[0] for module in modules}
    return packages - {"moe_lab", *sys.stdlib_module_names}


@pytest.mark.slow
def test_what_runs_write_is_ignored_by_git():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    written = ["outputs/runs/x/results.json", "site/index.html"]
    command = ["git", "check-ignore", *written, "outputs/.gitkeep"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == written
