"""Settings: flag before environment before file before default; and files that are wrong, each with one sentence."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli import config, config_file
from hipcli.command_options import RUN
from hipcli.config_keys import OPTIONS, SETTINGS
from hipcli.errors import UsageError
from hipcli.options import RunOptions

HIP = Path(sys.executable).with_name("hip")


@pytest.fixture
def file(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("HIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HIP_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path / "config.toml"


@pytest.fixture
def hip(file, tmp_path):
    def run(*arguments: str, **extra: str) -> subprocess.CompletedProcess:
        env = os.environ | {"OMP_NUM_THREADS": "1", "HIP_CACHE_DIR": str(tmp_path / "cache")} | extra
        return subprocess.run([HIP, *arguments], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)

    return run


def settings(done: subprocess.CompletedProcess) -> dict[str, dict]:
    assert done.returncode == 0, done.stderr
    return {row["key"]: row for row in json.loads(done.stdout)["settings"]}


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(file, monkeypatch):
    assert config.choice("max_tokens") == config.Choice(256, "default")
    file.write_text("# mine\nmax_tokens = 12\n")
    assert config.choice("max_tokens") == config.Choice(12, "file", line=2)
    monkeypatch.setenv("HIP_MAX_TOKENS", "7")
    assert config.choice("max_tokens") == config.Choice(7, "environment", variable="HIP_MAX_TOKENS")
    monkeypatch.setenv("HIP_MAX_TOKENS", "")
    assert config.choice("max_tokens").value == 12


def test_a_flag_wins_over_all_even_when_it_says_the_default(file):
    file.write_text('max_tokens = 12\ndevice = "cpu"\nstrict = true\n')
    given = {name: default for name, (_, default) in RUN.items()}
    filled = config.fill(given, {"max_tokens"})
    assert (filled["max_tokens"], filled["device"], filled["strict"]) == (256, "cpu", True)


def test_a_switch_of_the_environment_can_take_back_the_file(file, monkeypatch):
    file.write_text("offline = true\n")
    assert config.offline()
    monkeypatch.setenv("HIP_OFFLINE", "0")
    assert not config.offline()
    monkeypatch.delenv("HIP_OFFLINE")
    file.write_text("offline = false\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert config.choice("offline") == config.Choice(True, "environment", variable="HF_HUB_OFFLINE")


def test_folders_and_sizes_of_the_file_are_used(file, tmp_path):
    file.write_text(f'data_dir = "{tmp_path}/models"\ncache_dir = "~/there"\ncache_size = "2GB"\nmodel = "mine"\n')
    assert config.data_dir() == tmp_path / "models" and config.cache_dir() == Path.home() / "there"
    assert (config.cache_budget(), config.default_model()) == (2_000_000_000, "mine")
    file.write_text("cache_size = 5\n")
    assert config.cache_budget() == 5


def test_settings_that_are_options_share_their_names_and_defaults():
    assert set(OPTIONS) <= RUN.keys() and set(OPTIONS) <= SETTINGS.keys()
    for key in OPTIONS:
        assert RUN[key][1] == SETTINGS[key].default == getattr(RunOptions(("a",)), key)
        if SETTINGS[key].default is not None:
            SETTINGS[key].check(SETTINGS[key].default, key)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('\nmodle = "x"\n', 2, "there is no setting 'modle'"),
        ('device = "gpu"\n', 1, "device must be one of auto, cpu, cuda, got 'gpu'"),
        ('# a\nmax_tokens = "3"\n', 2, "max_tokens must be a whole number, at least 1, got the text '3'"),
        ("max_tokens = 0\n", 1, "max_tokens must be a whole number, at least 1, got 0"),
        ("max_tokens = true\n", 1, "got true"),
        ("temperature = nan\n", 1, "temperature must be a number, 0 or more"),
        ("offline = 1\n", 1, "offline must be true or false, got 1"),
        ('data_dir = "models"\n', 1, "data_dir must be a folder's full path"),
        ('cache_size = "much"\n', 1, "cache_size must be a size like 20GB"),
        ('preset = "nope"\n', 1, "preset must be an attention preset, got 'nope' (preset must be one of default"),
        ('model = "a"\nkv = \n', 2, "this is not TOML"),
        ('kv = "gpu"\nkv = "host"\n', 2, 'this is not TOML: key "kv" already exists'),
        ('system = """\nkv = 3\n', 2, "this is not TOML"),
        # what looks like a key within a text is none
        ('system = """\nkv = 3\n"""\nkv = "x"\n', 4, "kv must be one of"),
        ('model = "a"\n[kv]\nx = 1\n', 2, "kv must be one of auto, gpu, host"),
        ("model.name = 3\n", 1, "model must be a text"),
        ('"max tokens" = 3\n', 1, "there is no setting 'max tokens'"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(file, text, line, words):
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        config.choice("model")
    assert caught.value.message.startswith(f"{file}, line {line}: ") and words in caught.value.message
    assert "\n" not in caught.value.message


def test_bytes_folders_and_giants_are_refused(file, tmp_path):
    file.write_bytes(b'# ok\nmodel = "\xff"\n')
    with pytest.raises(UsageError, match="line 2: this is not UTF-8"):
        config.choice("model")
    file.write_bytes(b"#" * 2_000_000)
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        config.choice("model")
    file.unlink()
    file.mkdir()
    with pytest.raises(UsageError, match="cannot read the settings"):
        config.choice("model")


def test_a_byte_order_mark_and_windows_lines_are_read(file):
    file.write_bytes(b'\xef\xbb\xbfmodel = "a"\r\nmax_tokens = 5\r\n')
    assert config.choice("max_tokens") == config.Choice(5, "file", line=2)


def test_changes_keep_comments_order_links_and_permissions(file, tmp_path):
    real = tmp_path / "dotfiles.toml"
    real.write_text('# mine\nmodel = "a"  # why\n\nmax_tokens = 5\n')
    real.chmod(0o640)
    file.symlink_to(real)
    config_file.store(file, "max_tokens", 9)
    assert config_file.remove(file, "kv") is False and config_file.remove(file, "model") is True
    config_file.store(file, "offline", True)
    assert real.read_text() == "# mine\n\nmax_tokens = 9\noffline = true\n"
    assert file.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "dotfiles.toml"]


def test_what_is_no_file_is_never_replaced(file, monkeypatch, hip):
    done = hip("config", "set", "kv", "host", HIP_CONFIG=os.devnull)
    assert done.returncode == 2 and "is not a file" in done.stderr
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    done = hip("config", "set", "kv", "host", HIP_CONFIG="/proc/none/config.toml")
    assert done.returncode == 7 and done.stderr.startswith("hip: cannot write /proc/none/config.toml")


def test_set_show_and_unset(hip, file, tmp_path):
    assert hip("config", "path").stdout == f"{file}\n"
    assert hip("config", "set", "max-tokens", "12").returncode == 0
    (tmp_path / "qwen").mkdir()
    # a path holds from everywhere, a name stays a name
    assert hip("config", "set", "model", "qwen").returncode == hip("config", "set", "data_dir", "models").returncode == 0
    assert file.read_text() == f'max_tokens = 12\nmodel = "{tmp_path}/qwen"\ndata_dir = "{tmp_path}/models"\n'
    assert hip("config", "set", "model", "org/name").returncode == 0
    found = settings(hip("config", "show", "--json", HIP_DEVICE="cpu", HIP_MAX_TOKENS="3"))
    assert found.keys() == SETTINGS.keys()
    assert found["max_tokens"] == {"key": "max_tokens", "value": 3, "origin": "environment", "variable": "HIP_MAX_TOKENS", "line": None}
    assert found["model"] == {"key": "model", "value": "org/name", "origin": "file", "variable": None, "line": 2}
    assert (found["device"]["value"], found["kv"]["origin"]) == ("cpu", "default")
    assert "\nmax_tokens   12  (from line 1 of the file)\n" in hip("config", "show").stdout
    warned = hip("config", "set", "max_tokens", "13", HIP_MAX_TOKENS="3")
    assert "warning: HIP_MAX_TOKENS is set too and wins" in warned.stderr and warned.stdout == ""
    assert json.loads(hip("config", "unset", "max-tokens", "--json").stdout)["removed"] is True
    assert json.loads(hip("config", "unset", "max_tokens", "--json").stdout)["removed"] is False
    assert "max_tokens" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", "modle", "x"], "there is no setting 'modle'"),
        (["set", "device", "gpu"], "device must be one of auto, cpu, cuda, got 'gpu'"),
        (["set", "max_tokens", "many"], "max_tokens must be a whole number, at least 1, got 'many'"),
        (["set", "offline", "perhaps"], "offline must be true or false, got 'perhaps'"),
        (["set", "model", " "], "model must be a text that is not empty"),
        (["unset", "modle"], "there is no setting 'modle'"),
        (["set", "model"], "Missing argument 'VALUE'"),
    ],
)
def test_what_cannot_be_set_leaves_the_file_alone(hip, file, arguments, words):
    file.write_text("max_tokens = 5\n")
    done = hip("config", *arguments)
    assert (done.returncode, done.stdout) == (2, "") and words in done.stderr
    assert file.read_text() == "max_tokens = 5\n"


def test_a_broken_file_stops_work_but_not_help_and_can_be_mended(hip, file, tmp_path):
    (tmp_path / "book.txt").write_text("The library was founded in 1911.")
    file.write_text('modle = "x"\nstrict = 3\n')
    done = hip("extract", "book.txt")
    assert (done.returncode, done.stdout) == (2, "") and f"{file}, line 1: there is no setting 'modle'" in done.stderr
    assert "did you mean model?" in done.stderr
    assert json.loads(hip("extract", "book.txt", "--json").stderr)["error"]["code"] == 2
    assert hip("ask", "--help").returncode == hip("config", "path").returncode == 0
    assert "line 1: there is no setting" in hip("doctor").stdout
    assert hip("config", "unset", "modle").returncode == 0
    # the rest of the file does not matter for what replaces it
    assert hip("config", "set", "strict", "no").returncode == 0
    assert hip("extract", "book.txt", "--no-marks").stdout.strip() == "The library was founded in 1911."


def test_a_file_reaches_the_run_and_a_flag_beats_it(hip, file, tiny_model, tmp_path):
    (tmp_path / "book.txt").write_text("The library was founded in 1911 by Maria Lindqvist, a printer. " * 12)
    file.write_text(f'model = "{tiny_model}"\nmax_tokens = 3\ndata_dir = "{tmp_path}/data"\noffline = true\n')
    for extra, tokens in (([], 3), (["--max-tokens", "2"], 2)):
        record = json.loads(hip("ask", "book.txt", "Who founded it?", "--json", *extra).stdout)
        assert (record["model"]["name"], record["answer_tokens"]) == ("tiny", tokens)
    done = hip("ask", "book.txt", "Who?", HIP_DEVICE="gpu")
    assert done.returncode == 2 and "HIP_DEVICE must be one of auto, cpu, cuda, got 'gpu'" in done.stderr


def test_a_preset_of_the_file_does_not_forbid_the_suite(hip, file):
    file.write_text('preset = "cpu"\n')
    said = hip("bench", "--suite", "nope").stderr
    assert "--preset" not in said and "nope" in said
    assert "--preset cannot be used with --suite" in hip("bench", "--suite", "ruler", "--preset", "cpu").stderr
