"""The shape of the tree: layers, names, budgets, and that the README tells the truth about it."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "hipcli": ROOT / "hipcli",
    "hipcli.batching": ROOT / "hipcli/batching",
    "hipcli.models": ROOT / "hipcli/models",
    "hipcli.readers": ROOT / "hipcli/readers",
    "hipcli.serving": ROOT / "hipcli/serving",
    "hipcli.sessions": ROOT / "hipcli/sessions",
    "hipcli.suite": ROOT / "hipcli/suite",
    "hipcli.tokens": ROOT / "hipcli/tokens",
    "hipcli.kernels": ROOT / "kernels",
    "hipcli.cache": ROOT / "cache",
}
LINE_BUDGET = 300
# the program's files that see tensors and ids only: they may not know documents, text or terminals
NUMBERS_ONLY = {
    "attention",
    "engine",
    "model",
    "sampling",
    "memory",
    "dtype_probe",
    "settings",
    "decoding",
    "devices",
    "fused",
    "shapes",
    "meter",
    "trace",
    "gaze",
}
TEXT_AND_TERMINAL = {
    "document",
    "readers",
    "tokens",
    "cli",
    "console",
    "ask",
    "summarize",
    "questions",
    "pipeline",
    "citations",
    "inspection",
    "extraction",
}


def sources():
    return [(package, path) for package, folder in PACKAGES.items() for path in sorted(folder.glob("*.py"))]


def imported(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_listed_packages_are_the_folders_that_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(settings["packages"]) == set(settings["package-dir"]) == set(PACKAGES)
    for package, folder in PACKAGES.items():
        assert ROOT / settings["package-dir"][package] == folder and (folder / "__init__.py").is_file()
    nested = {path.parent for folder in (ROOT / "hipcli", ROOT / "kernels", ROOT / "cache") for path in folder.rglob("*.py")}
    assert nested <= set(PACKAGES.values()), "a sub-folder is missing from pyproject's packages"


@pytest.mark.parametrize("name", ["kernels", "cache"])
def test_bare_names_do_not_find_our_folders(name):
    spec = importlib.util.find_spec(name)
    assert spec is None or not str(spec.origin).startswith(str(ROOT))


def test_the_kernels_package_is_only_a_docstring():
    """A probe for the Hub package of that name must find nothing to run and no version."""
    body = ast.parse((ROOT / "kernels/__init__.py").read_text()).body
    assert len(body) == 1 and isinstance(body[0], ast.Expr)


@pytest.mark.parametrize(("package", "path"), sources(), ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_layers_import_downwards_only(package, path):
    ours = {name for name in imported(path) if name == "hipcli" or name.startswith("hipcli.")}
    assert not {"kernels", "cache", "click"} & {name.split(".")[0] for name in imported(path)}
    if package == "hipcli.kernels":
        assert all(name.startswith("hipcli.kernels") for name in ours), ours
    elif package == "hipcli.cache":
        assert all(name.startswith("hipcli.cache") for name in ours), ours
    else:
        # model.py and bench_layer.py name a type of each; only attention.py hands tensors of one to the other
        both = any(name.startswith("hipcli.kernels") for name in ours) and any(name.startswith("hipcli.cache") for name in ours)
        assert not both or path.name in ("attention.py", "model.py"), "kernels and cache meet in attention.py"
        if path.stem in NUMBERS_ONLY:
            assert not {name.split(".")[1] for name in ours if "." in name} & TEXT_AND_TERMINAL
    if path.name in ("reference.py", "stages.py", "blocks.py"):
        assert not any(name.startswith("triton") for name in imported(path))


def test_only_config_reads_the_environment():
    readers = [path.name for _, path in sources() if re.search(r"os\.environ|getenv", path.read_text())]
    assert set(readers) <= {"config.py"}, readers


def test_files_keep_within_the_line_budget():
    paths = [path for _, path in sources()] + sorted((ROOT / "tests").glob("*.py")) + sorted((ROOT / "samples").glob("*.py"))
    over = {path.name: count for path in paths if (count := len(path.read_text().splitlines())) > LINE_BUDGET}
    assert not over


def test_the_readme_names_every_file_once():
    tree = re.search(r"```text\n(hipcli/.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert tree, "README.md has no file tree"
    folder, named = "", []
    for row in tree[1].splitlines():
        if match := re.match(r"(\S+/)\s", row):
            folder = match[1]
        elif match := re.match(r"\s+(\S+)\s+\S", row):
            named.append(folder + match[1])
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    parts = ("hipcli/", "kernels/", "cache/", "tests/", "samples/")
    tracked = [name for name in listed if name.startswith(parts)] or [str(path.relative_to(ROOT)) for _, path in sources()]
    assert sorted(named) == sorted(tracked)
