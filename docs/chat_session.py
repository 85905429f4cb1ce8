"""Plays a chat with the default model in a terminal (tmux) and draws its last screen as docs/chat.svg.

    python docs/chat_session.py [--hip hip] [--out docs/chat.svg]

Questions, Ctrl-C in the middle of an answer, sources, and the end by Ctrl-D. Needs tmux, and rich, which hip brings.
"""

import argparse
import os
import re
import shlex
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, LINES = 104, 30
PROMPT = r"(?m)^>\s*\Z"
FIRST, LONG = "When was the lamp first lit?", "Tell the whole story of the lighthouse, from its first stone to today."
PATIENCE_S = 240


class Screen:
    """A terminal of its own, with one program in it."""

    def __init__(self, command: list[str]) -> None:
        self._socket = f"hip-chat-{os.getpid()}"
        line = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), line)
        self._tmux("set-option", "-g", "status", "off")
        # the screen stays when the program ends
        self._tmux("set-option", "-g", "remain-on-exit", "on")

    def _tmux(self, *words: str) -> str:
        return subprocess.run(["tmux", "-L", self._socket, *words], check=True, capture_output=True, text=True).stdout

    def send(self, text: str, *, key: bool = False) -> None:
        """Type text, or press one named key."""
        self._tmux("send-keys", *([] if key else ["-l"]), text)

    def text(self, styled: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if styled else []))

    def await_(self, pattern: str) -> None:
        """Until the screen shows a pattern; raises TimeoutError."""
        end = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text().rstrip() + "\n"):
            if time.monotonic() > end:
                raise TimeoutError(f"{pattern!r} is not on the screen:\n{self.text()}")
            time.sleep(0.1)
        # the editor shows its prompt before it reads keys
        time.sleep(1)

    def await_end(self) -> None:
        """Until the program ends; raises RuntimeError unless it ends well."""
        while not (ended := self._tmux("display-message", "-p", "#{pane_dead} #{pane_dead_status}").split())[0] == "1":
            time.sleep(0.1)
        if ended != ["1", "0"]:
            raise RuntimeError(f"the chat ended with {ended[1:]}")

    def close(self) -> None:
        self._tmux("kill-server")


def play(hip: str) -> str:
    """The last screen, with its colours."""
    screen = Screen([hip, "chat", "samples/lighthouse.pdf", "--max-tokens", "400"])
    try:
        screen.await_(PROMPT)
        screen.send(FIRST)
        screen.send("Enter", key=True)
        screen.await_(rf"{re.escape(FIRST)}\n(.*\n)+>\s*\Z")
        screen.send("/sources")
        screen.send("Enter", key=True)
        screen.await_(r"Sources\n(.*\n)+>\s*\Z")
        screen.send(LONG)
        screen.send("Enter", key=True)
        # in the middle of the answer: two lines of it stand there, and a part of the third
        screen.await_(rf"{re.escape(LONG)}\n(.{{60,}}\n){{2}}.{{20,}}\n\Z")
        screen.send("C-c", key=True)
        screen.await_(r"the chat goes on\n(.*\n)*>\s*\Z")
        screen.send("C-d", key=True)
        screen.await_end()
        return screen.text(styled=True)
    finally:
        screen.close()


def draw(ansi: str, out: Path) -> None:
    """The screen as an SVG that fetches nothing."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    # tmux says below that the program has ended
    lines = [line.rstrip() for line in ansi.rstrip().splitlines() if "Pane is dead" not in line]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi("\n".join(lines)))
    plain = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.S)
    # every run gives its pieces the same names
    out.write_text(console.export_svg(title="hip chat samples/lighthouse.pdf", code_format=plain, unique_id="chat"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hip", default="hip", help="the command")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/chat.svg")
    given = parser.parse_args()
    draw(play(given.hip), given.out)


if __name__ == "__main__":
    main()
