"""`hip doctor --report` says nothing of who or where its user is, and all that a fault needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.doctor_report import without_names

HIP = Path(sys.executable).with_name("hip")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("data folder: ~/models of mine, 3 GB free", "data folder: <path> of mine, 3 GB free"),
        ("cannot read '/srv/anna/x.toml': permission denied", "cannot read '<path>': permission denied"),
        ("C:\\Users\\anna\\x and HIP_DATA_DIR=/srv/x", "<path> and HIP_DATA_DIR=<path>"),
        ("bfloat16 is used (float32 90 GFLOP/s), 3/4", "bfloat16 is used (float32 90 GFLOP/s), 3/4"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("annas book by anna on anna-laptop", "annas book by <name> on <name>"),
    ],
)
def test_paths_and_names_go(text, shown):
    assert without_names(text, ["anna-laptop", "anna", "x"]) == shown


def test_a_whole_report(tmp_path, tiny_model):
    home = tmp_path / "anna lindqvist" / "secret project"
    home.mkdir(parents=True)
    shutil.copytree(tiny_model, home / "my model")
    (home / "hip.toml").write_text('max_tokens = 9\n[loaders]\nodt = "/opt/anna/odt2txt {path}"\n')
    env = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    env |= {"HOME": str(home), "USER": "lindqvist", "LOGNAME": "lindqvist", "OMP_NUM_THREADS": "1"}
    env |= {"HIP_DATA_DIR": str(home / "data"), "HIP_CACHE_DIR": str(home / "cache"), "HIP_CONFIG": str(home / "hip.toml")}
    done = subprocess.run([HIP, "doctor", "--report"], env=env | {"HIP_MODEL": str(home / "my model")}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("```text\nok    hip: ") and done.stdout.endswith("\n```\n")
    for needed in ("ok    torch: ", "ok    python: ", "set   max_tokens (from the file)", "set   loaders.odt (from the file)", "my model,"):
        assert needed in done.stdout, done.stdout
    for private in ("anna", "lindqvist", "secret", "/work", "/tmp", "~/", "odt2txt"):
        assert private not in done.stdout, done.stdout
    (home / "hip.toml").write_text("preset = 'no'\n")
    broken = subprocess.run([HIP, "doctor", "--report"], env=env, capture_output=True, text=True)
    assert broken.returncode == 1 and "fail  settings: <path>, line 1: preset must be" in broken.stdout and "anna" not in broken.stdout
    both = subprocess.run([HIP, "doctor", "--report", "--json"], env=env, capture_output=True)
    assert both.returncode == 2 and both.stdout == b""
