"""Kills `hip ask` without warning at random moments, and holds the answer of the run that ends against one never killed.

    python docs/results/session_kills.py samples/lighthouse.pdf "When was the lamp first lit?" --kills 10

Each row: when it was killed, and the tokens that the session then had. They may never become fewer, the run that ends must
start from the last of them, and its answer must be that of an uninterrupted run. A session that is whole is removed, so that
later kills have something to interrupt. Needs a model that is here already.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

from hipcli.sessions import Library
from hipcli.sessions.folder import damage


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("document")
    parser.add_argument("question")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    command = ["hip", "ask", given.document, given.question, "--json", "--max-tokens", "32"]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HIP_OFFLINE": "1", "HIP_CACHE_DIR": f"{folder}/whole"}
        began = time.monotonic()
        whole = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
        seconds = time.monotonic() - began
        env["HIP_CACHE_DIR"], library = f"{folder}/killed", Library(Path(folder) / "killed")
        saved, moments = 0, random.Random(given.seed)
        for number in range(given.kills):
            child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            moment = moments.uniform(0, seconds)
            try:
                child.wait(moment)
            except subprocess.TimeoutExpired:
                child.kill()
            code = child.wait()
            sessions = library.sessions()
            now = max((session.manifest.saved_tokens for session in sessions if session.manifest), default=0)
            row = {"kill": number + 1, "after_seconds": round(moment, 2), "ended_by": code, "saved_tokens": now}
            print(json.dumps(row | {"damage": [fault for session in sessions if session.manifest and (fault := damage(session))]}))
            assert now >= saved, "a kill lost a chunk that was on the disk"
            saved = now
            if saved == whole["session"]["tokens"] and number + 1 < given.kills:
                # nothing is left to interrupt: begin anew
                for session in sessions:
                    library.remove(session)
                saved = 0
        last = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
        same = last["answer"] == whole["answer"]
        print(json.dumps({"reused_tokens": last["session"]["reused_tokens"], "tokens": last["session"]["tokens"], "same_answer": same}))
        assert same and last["session"]["reused_tokens"] == saved


if __name__ == "__main__":
    main()
