"""The wheel, the Makefile and the files around the package.

Broken by: conf/ or experiments/ missing from the wheel or at its top level, a path that needs
the checkout, a target without help, an import of a package that pyproject.toml does not declare,
a range without the tested version.
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


def text_of(name: str) -> str:
    """A file at the top of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def output_of(command: list[str], folder: Path, **environment: str) -> str:
    """What a command prints that ends well."""
    ended = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout


def test_the_release_is_one():
    """The package, CITATION.cff and the changelog's newest section have one version and date."""
    newest_section = re.search(r"^## \[(\d\S+)\] - (\S+)$", text_of("CHANGELOG.md"), re.M)
    assert newest_section
    version, date = newest_section.groups()
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["version"] == version
    assert str(citation["date-released"]) == date
    assert __version__ == version


def test_in_a_checkout_conf_lies_beside_the_package():
    assert resource_folder("conf") == ROOT / "conf"
    with pytest.raises(FileNotFoundError, match="nothing/ is neither"):
        resource_folder("nothing")


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    output_of([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    [file] = folder.glob("*.whl")
    return file


def files_below(folder: Path, suffixes: tuple[str, ...]) -> set[str]:
    """Paths from the root of the repository."""
    paths = set()
    for file in folder.rglob("*"):
        if file.suffix in suffixes:
            paths.add(file.relative_to(ROOT).as_posix())
    return paths


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    version = wheel.name.split("-")[1]
    at_the_top = {name.split("/")[0] for name in names}
    assert at_the_top == {"moe_lab", f"moe_lab-{version}.dist-info"}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["conf", "experiments"])
def test_the_wheel_holds_conf_and_experiments_inside_the_package(folder, wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = files_below(ROOT / folder, (".yaml",))
    assert files
    assert {f"moe_lab/{file}" for file in files} <= names


@pytest.mark.slow
def test_the_wheel_holds_the_packages_data(wheel):
    """Task YAMLs, the tiny model's files, templates of pages, and the marker
    of types for type checkers."""
    names = set(zipfile.ZipFile(wheel).namelist())
    files = files_below(ROOT / "moe_lab", (".yaml", ".json", ".j2", ".css", ".js", ".mplstyle"))
    assert files
    assert files <= names
    assert "moe_lab/py.typed" in names


@pytest.mark.slow
def test_the_wheel_works_from_a_folder_with_spaces(wheel, tmp_path):
    site = tmp_path / "a site"
    work = tmp_path / "a work folder"
    zipfile.ZipFile(wheel).extractall(site)
    work.mkdir()

    def python(*arguments: str) -> str:
        return output_of([sys.executable, *arguments], work, PYTHONPATH=str(site))

    code = "from moe_lab.config.catalog import resource_folder; print(resource_folder('conf'))"
    assert "figure3" in python("-m", "moe_lab", "--help")
    assert "toy_math" in python("-m", "moe_lab", "--cfg", "job")
    assert python("-c", code).strip() == str(site / "moe_lab" / "conf")
    assert list(work.iterdir()) == []


# The Makefile


@pytest.mark.slow
def test_make_help_lists_every_target():
    help_text = output_of(["make", "help"], ROOT)
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    assert targets >= {
        "run",
        "test",
        "test-all",
        "checks",
        "docs",
        "bench",
        "reproduce-tables",
        "clean-outputs",
    }
    for target in targets:
        assert re.search(rf"^  make {target} +\S", help_text, re.M), target


@pytest.mark.slow
def test_clean_outputs_keeps_the_folder(tmp_path):
    (tmp_path / "outputs" / "runs" / "x").mkdir(parents=True)
    (tmp_path / "outputs" / ".gitkeep").touch()
    output_of(["make", "-f", str(ROOT / "Makefile"), "clean-outputs"], tmp_path)
    assert [file.name for file in (tmp_path / "outputs").iterdir()] == [".gitkeep"]


# Dependencies


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> list[Requirement]:
    """The requirements of the package, and of some of its extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    texts = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        texts += optional[extra]
    return [Requirement(text) for text in texts if not text.startswith("moe-lab[")]


def pinned_versions() -> dict[str, str]:
    versions = {}
    for line in text_of("constraints.txt").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            versions[name] = version
    return versions


def test_every_dependency_has_a_tested_version_in_its_range():
    pins = pinned_versions()
    for requirement in declared("dev", "peft", "gpu"):
        assert requirement.specifier.contains(pins[normal(requirement.name)]), str(requirement)
    for name, version in pins.items():
        assert "+" not in version, f"{name}: a local version label would tie everybody to one build"


def test_every_imported_package_is_declared():
    """A package that is installed only for another one may leave with the next version."""
    extras = [extra for extra in PROJECT["project"]["optional-dependencies"] if extra != "dev"]
    declared_names = {normal(requirement.name) for requirement in declared(*extras)}
    distributions_of = packages_distributions()
    undeclared = set()
    for file in files_in(PACKAGE):
        for package in imported_packages(file):
            names = {normal(name) for name in distributions_of.get(package, [package])}
            if not names & declared_names:
                undeclared.add(f"{package} ({file.relative_to(ROOT)})")
    assert not undeclared, "\n".join(sorted(undeclared))


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
    kept_file = "outputs/.gitkeep"
    ignored = output_of(["git", "check-ignore", *written, kept_file], ROOT).split()
    assert ignored == written
