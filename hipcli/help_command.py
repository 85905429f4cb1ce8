"""`hip help`: what the program is, one of its commands, or a topic. Knows no command by name."""

from typing import Any

from hipcli.console import visible, write_stdout
from hipcli.errors import UsageError
from hipcli.topics import TOPICS


def help_on(words: list[str], root: Any) -> None:
    """Print help on a topic or a command; root: the parser's context of `hip`. Raises UsageError when there is neither."""
    if len(words) == 1 and words[0] in TOPICS:
        write_stdout(TOPICS[words[0]].as_text())
        return
    context = root
    for word in words:
        group = context.command
        command = group.get_command(context, word) if hasattr(group, "get_command") else None
        if command is None:
            known = [*TOPICS, *group.list_commands(context)] if hasattr(group, "list_commands") else []
            hint = f"one of: {', '.join(known)}" if known else "hip help"
            raise UsageError(f"there is no help on {' '.join(words)!r}", hint)
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
    write_stdout(visible(context.get_help()) + "\n")


def names(incomplete: str) -> list[str]:
    """Topics that begin so, for a shell's completion."""
    return [name for name in TOPICS if name.startswith(incomplete)]
