"""From a model's name to engines that can read: files → device and number format → weights → engine.

Shared by every command that loads a model. Knows nothing of documents or questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hipcli import config
from hipcli.console import Terminal
from hipcli.options import RunOptions

if TYPE_CHECKING:
    from hipcli.engine import Engine
    from hipcli.model import LoadedModel
    from hipcli.models import ModelFiles


def attention_settings(options: RunOptions):
    """The AttentionSettings of these options; raises UsageError for a name that does not exist."""
    from hipcli.settings import AttentionSettings

    config.require_preset(options.preset)
    mode = "dense" if options.dense else "sparse"
    return AttentionSettings(mode=mode, preset=options.preset, dense_below=options.dense_below, backend=options.backend)


def find_model(options: RunOptions, terminal: Terminal, *, local_only: bool = False) -> ModelFiles:
    """The model's files, fetched if they must be; raises ModelError."""
    from hipcli.models import obtain_model

    return obtain_model(
        options.model or config.default_model(),
        data_dir=config.data_dir(),
        offline=local_only or options.offline or config.offline(),
        progress=terminal.sink(),
    )


def run_device(options: RunOptions) -> str:
    """The device of a run; raises UsageError when it is not there or cannot run the backend that was asked for."""
    from hipcli.devices import choose_device

    return choose_device(options.device, options.backend)


def load(files: ModelFiles, options: RunOptions, terminal: Terminal) -> LoadedModel:
    """The model in memory, for as many engines as there are documents; raises ModelError, DoesNotFit, UsageError."""
    attention_settings(options)
    with terminal.phase(f"loading {files.name}"):
        from hipcli.devices import keep_within, untested
        from hipcli.dtype_probe import settled_dtype
        from hipcli.model import load_model

        device = run_device(options)
        keep_within(device, options.kv_settings.gpu_bytes)
        if notice := untested(device):
            terminal.warn(notice)
        if device == "cpu" and options.dtype == "float16":
            terminal.warn("float16 is a hundred times slower than the other formats on a CPU: --dtype auto takes the fastest")
        if device == "cpu" and options.kv != "auto":
            terminal.warn(f"--kv {options.kv} changes nothing on a CPU: keys and values lie in its memory anyway")
        dtype = settled_dtype(config.cache_dir()) if options.dtype == "auto" and device == "cpu" else options.dtype
        return load_model(files.path, name=files.name, device=device, dtype=dtype, backend=options.backend)


@contextmanager
def new_engine(model: LoadedModel, options: RunOptions, terminal: Terminal) -> Iterator[Engine]:
    """An engine on a loaded model, closed in the end; raises UsageError."""
    from hipcli.engine import Engine

    engine = Engine(model, attention_settings(options), kv=options.kv_settings, on_notice=terminal.warn)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def open_engine(files: ModelFiles, options: RunOptions, terminal: Terminal) -> Iterator[tuple[LoadedModel, Engine]]:
    """Load the model and give it an engine, closed in the end; raises ModelError, DoesNotFit, UsageError."""
    model = load(files, options, terminal)
    with new_engine(model, options, terminal) as engine:
        yield model, engine
