"""Documentation that the program knows: topics and tables say what the code does, generated pages are up to date, shells complete."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli import errors
from hipcli.config_keys import SETTINGS
from hipcli.readers.formats import FORMAT_NAMES
from hipcli.topics import ENVIRONMENT, EXIT_CODES, FORMATS, TOPICS, Table

ROOT = Path(__file__).resolve().parent.parent
HIP = Path(sys.executable).with_name("hip")


def hip(*arguments: str, **extra: str) -> subprocess.CompletedProcess:
    return subprocess.run([HIP, *arguments], capture_output=True, text=True, env=os.environ | extra, timeout=60)


def first_column(table: Table) -> list[str]:
    return [name for row in table.rows for name in re.findall(r"[\w-]+", row[0])]


def test_generated_pages_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run python docs/generate.py"


def test_a_stale_page_is_named(tmp_path):
    (tmp_path / "generate.py").write_text((ROOT / "docs/generate.py").read_text())
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- made by docs/generate.py: exit-codes -->\nold\n<!-- end -->\n\nB\n")
    check = [sys.executable, tmp_path / "generate.py"]
    stale = subprocess.run([*check, "--check"], capture_output=True, text=True, timeout=60)
    assert (stale.returncode, stale.stdout) == (1, "out of date: page.md\n") and "old" in page.read_text()
    assert subprocess.run(check, timeout=60).returncode == 0
    assert EXIT_CODES.as_markdown() in page.read_text() and page.read_text().endswith("<!-- end -->\n\nB\n")
    assert subprocess.run([*check, "--check"], timeout=60).returncode == 0


def test_the_table_of_exit_codes_has_every_code():
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HipError)]
    assert sorted(map(int, first_column(EXIT_CODES))) == sorted({0, 130, 143} | {kind.exit_code for kind in classes})


def test_the_table_of_the_environment_has_every_variable_that_is_read():
    read = set(re.findall(r'environ\.get\("(\w+)"|_folder\("(\w+)"\)', (ROOT / "hipcli/config.py").read_text()))
    named = {name for pair in read for name in pair if name} | {setting.variable for setting in SETTINGS.values()}
    assert set(first_column(ENVIRONMENT)) == named and len(named) == len(SETTINGS) + 7
    assert [row[1].strip("`") for row in ENVIRONMENT.rows if row[1]] == list(SETTINGS)


def test_the_table_of_formats_has_every_format():
    assert tuple(first_column(FORMATS)) == FORMAT_NAMES


@pytest.mark.parametrize("topic", TOPICS)
def test_topics_are_printed_whole(topic):
    done = hip("help", topic)
    assert done.returncode == 0 and done.stderr == "" and "`" not in done.stdout
    for row in TOPICS[topic].rows:
        for cell in row:
            assert cell.replace("`", "") in done.stdout


def test_help_leads_to_topics_and_commands():
    assert hip("help").stdout == hip("--help").stdout == hip().stdout
    assert "hip help environment|exit-codes|formats" in hip("--help").stdout
    assert hip("help", "ask").stdout == hip("ask", "--help").stdout
    assert hip("help", "config", "set").stdout == hip("config", "set", "--help").stdout
    for words in (["nope"], ["config", "nope"], ["ask", "nope"]):
        done = hip("help", *words)
        assert (done.returncode, done.stdout) == (2, "") and f"there is no help on {' '.join(words)!r}" in done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hip as", {"ask"}),
        ("hip config ", {"path", "show", "set", "unset"}),
        ("hip config set max", {"max_tokens"}),
        ("hip help f", {"formats"}),
        ("hip ask --devi", {"--device"}),
        ("hip ask --device c", {"cpu", "cuda"}),
    ],
)
def test_shells_complete_commands_options_and_values(line, words):
    bash = hip(_HIP_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(line.count(" ")))
    fish = hip(_HIP_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", _TYPER_COMPLETE_ARGS=line)
    zsh = hip(_HIP_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert bash.returncode == fish.returncode == zsh.returncode == 0
    assert set(bash.stdout.split()) == {row.split("\t")[0] for row in fish.stdout.splitlines()} == words
    assert all(f'"{word}"' in zsh.stdout for word in words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells_are_printed(shell):
    script = hip(_HIP_COMPLETE=f"source_{shell}").stdout
    assert f"complete_{shell}" in script
    if shell == "bash":
        asked = f'{script}\nCOMP_WORDS=(hip summ); COMP_CWORD=1; _hip_completion {HIP}; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60)
        assert done.stdout == "summarize\n", done.stderr


def test_completion_imports_nothing_heavy():
    heavy = "torch transformers tokenizers pypdf numpy tomlkit platformdirs".split()
    code = f"import atexit, sys\natexit.register(lambda: print([n for n in {heavy} if n in sys.modules], file=sys.stderr))\n"
    code += "import hipcli.cli as cli; sys.argv = ['hip']; cli.main()"
    env = os.environ | {"_HIP_COMPLETE": "complete_bash", "COMP_WORDS": "hip as", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert (done.stdout.strip(), done.stderr.strip()) == ("ask", "[]")


def test_the_sizing_table_adds_up_as_the_planner_does():
    from hipcli.kernels.presets import preset
    from hipcli.memory import plan_memory

    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    spec.loader.exec_module(generate := importlib.util.module_from_spec(spec))
    model, tokens = generate._sizes("smollm2-135m", "cpu"), 100_000
    sizes = {
        "token_bytes": 23_040,
        "device_parts": (30, 30),
        "free": 10**12,
        "host_free": 0,
        "held_bytes": 0,
        "host_held_bytes": 0,
        "rotated_tokens": 8192,
        "dense_tokens": 8192,
        "keys_read": 1.0,
        "rate": 1.0,
    }
    plan = plan_memory(model, tokens, prune=preset("cpu"), chunk_lengths=(1024,), **sizes)
    assert generate._needs(model, None, 8, None, tokens) == (plan.peak_bytes + 2 * model.parameters, 0)
    assert model.parameters == 134_515_008 and plan.kv_bytes == tokens * 23_040


@pytest.mark.parametrize("script", [pytest.param(path, id=path.stem) for path in sorted((ROOT / "docs").rglob("*.py"))])
def test_scripts_that_made_the_figures_find_what_they_import(script):
    """A name that moved breaks a script that nobody runs for weeks."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hipcli"):
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}"), (
                    f"{node.module} has no {name.name}"
                )
