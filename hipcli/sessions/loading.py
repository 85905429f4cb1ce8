"""From a session's files into a store: mapped, every byte held against its checksum, copied by several threads.

Knows tensors, files and positions; no text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hipcli.cache.base import KVStore
from hipcli.cache.files import TokenFile
from hipcli.sessions.folder import Match
from hipcli.sessions.manifest import Chunk

_THREADS = 4  # one checks and copies several GB a second; a fast disk feeds a few


def load_chunks(match: Match, store: KVStore, on_tokens: Callable[[int, int], None]) -> tuple[int, str | None]:
    """Fill an empty store, which has the room, with the chunks of a match up to the first that is damaged.

    on_tokens: gets (tokens done, tokens of the match). Returns the tokens that the store now holds, and what was wrong
    with the next chunk, None when there was nothing.
    """
    files, fault = _map(match, store)

    def copy(file: TokenFile, chunk: Chunk) -> str | None:
        try:
            file.require(chunk.checksum)
            file.copy_into(store, chunk.start)
        except (ValueError, OSError) as error:
            return str(error)
        finally:
            # pages of a mapping count as this process's memory
            file.close()
        return None

    tokens = 0
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for chunk, wrong in zip(match.chunks, pool.map(copy, files, match.chunks)):
            if wrong is not None:
                fault = wrong
                break
            tokens = chunk.stop
            on_tokens(tokens, match.tokens)
    store.claim(tokens)
    return tokens, fault


def _map(match: Match, store: KVStore) -> tuple[list[TokenFile], str | None]:
    """Every chunk's file, mapped before the first is read, so that none can be removed meanwhile."""
    files: list[TokenFile] = []
    for chunk in match.chunks:
        try:
            files.append(TokenFile(match.session.folder / chunk.name, store.shape, chunk.stop - chunk.start))
        except OSError as error:
            return files, f"{chunk.name}: {error.strerror}"
        except ValueError as error:
            return files, str(error)
    return files, None
