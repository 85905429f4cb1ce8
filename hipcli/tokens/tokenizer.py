"""Text to ids and back, for one model: documents, prompts, streamed answers.

Text of documents and questions never becomes control tokens; only the model's own template does. Long texts
are encoded in pieces, with the ids of one go. Knows nothing of model weights or terminals.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hipcli.document import Document
from hipcli.errors import ModelError
from hipcli.tokens.bpe import build_fast_encoder, composes, is_byte_level, token_bytes
from hipcli.tokens.layout import lay_out
from hipcli.tokens.pieces import cut_rule, split_pieces
from hipcli.tokens.spec import build_backend, read_json, read_spec, special_ids, without_control
from hipcli.tokens.stream import StreamDecoder, WindowDecoder
from hipcli.tokens.template import SYSTEM_MARK, ChatTemplate, read_template, special_token

if TYPE_CHECKING:
    import tokenizers

OnChars = Callable[[int, int], None]


@dataclass(frozen=True)
class EncodedDocument:
    """A document as ids.

    ids: [T] int32.
    page_starts: [pages] int64, index in ids of each page's first token; an empty page has that of the next.
    """

    ids: np.ndarray
    page_starts: np.ndarray

    def page_of(self, token_index: int) -> int:
        """Index into Document.pages of the page in which a token starts."""
        return max(0, int(np.searchsorted(self.page_starts, token_index, side="right")) - 1)


@dataclass(frozen=True)
class PromptParts:
    """What stands around the document: the prompt is prefix_ids + document ids + suffix_ids(question).

    prefix_ids: start of text at most once, system message, start of the user's turn.
    tail_ids: end of the user's turn and start of the answer.
    turn_ids: end of an answer and start of the user's next turn, None where the template has no second turn.
    """

    prefix_ids: list[int]
    tail_ids: list[int]
    encode_question: Callable[[str], list[int]]
    turn_ids: list[int] | None = None
    encode_text: Callable[[str], list[int]] | None = None

    def suffix_ids(self, question: str) -> list[int]:
        """Ids that follow the document: the question, the end of the turn, the start of the answer."""
        return self.encode_question(question) + self.tail_ids

    def next_ids(self, question: str) -> list[int]:
        """Ids that follow an answer: its end, the next question, the start of the next answer."""
        if self.turn_ids is None or self.encode_text is None:
            raise ValueError("the model's template has no second turn")
        return self.turn_ids + self.encode_text(question) + self.tail_ids


class Tokenizer:
    """One model's tokenizer and chat template; made by load_tokenizer."""

    def __init__(self, model_dir: Path) -> None:
        self._dir = model_dir
        self._config = read_json(model_dir / "tokenizer_config.json")
        spec = read_spec(model_dir)
        self._special = special_ids(spec)
        self._reserved = np.fromiter(self._special, dtype=np.int32, count=len(self._special))
        self._bytes = token_bytes(spec) if is_byte_level(spec) else None
        self._composes = self._bytes is not None and composes(spec)
        plain = without_control(spec)
        self._plain = build_backend(plain)
        self._fast = build_fast_encoder(plain, self._plain)
        self._cut = cut_rule(plain, lambda text, first: self._piece(text, first)[0].tolist())

    @property
    def fast_path(self) -> str:
        """What encodes: "tiktoken" or "tokenizers"."""
        return "tiktoken" if self._fast else "tokenizers"

    @property
    def prompt_format(self) -> str:
        """ "chat" if prompts follow the model's own template, "plain" if it has none that works."""
        return self._template(None).format

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; strings that look like control tokens stay text."""
        return self._encode_parts([self._clean(text)])[0].tolist()

    def encode_document(self, document: Document, on_chars: OnChars | None = None) -> EncodedDocument:
        """Encodes a document's pages as one text.

        Args:
            document: what a reader made.
            on_chars: called with (characters done, characters in all) after each piece.

        Raises:
            ModelError: the tokenizer makes control tokens out of plain text.
        """
        layout = lay_out(document, self._clean)
        ids, starts = self._encode_parts(layout.parts, on_chars and (lambda done: on_chars(done, layout.chars)))
        return EncodedDocument(ids, np.searchsorted(starts, layout.page_offsets))

    def prompt(self, system: str | None = None) -> PromptParts:
        """The prompt around a document, from the model's chat template.

        system: system message; None leaves the template's own, if it has one.
        """
        template = self._template(system)
        prefix = template.prefix
        if self._adds_space and prefix.endswith(" "):
            # the document's first token brings this space with it
            prefix = prefix[:-1]
        prefix_ids = self._prefix_ids(prefix, system)
        if prefix_ids[: len(self._opening_ids)] != self._opening_ids:
            prefix_ids = self._opening_ids + prefix_ids
        tail = self._full_inner.encode(template.tail, add_special_tokens=False).ids

        turn = None if template.turn is None else self._full_inner.encode(template.turn, add_special_tokens=False).ids

        def encode_text(text: str) -> list[int]:
            return self._piece(self._clean(text), False)[0].tolist()

        return PromptParts(prefix_ids, tail, lambda question: encode_text(template.question_lead + question), turn, encode_text)

    def _prefix_ids(self, prefix: str, system: str | None) -> list[int]:
        """Ids of what stands before the document; a system message that spells control tokens stays text, as a document does."""
        if not system or self._special.isdisjoint(self._full.encode(system, add_special_tokens=False).ids):
            return self._full.encode(prefix, add_special_tokens=False).ids
        first, *rest = self._template(SYSTEM_MARK).prefix.split(SYSTEM_MARK)
        ids = self._full.encode(first, add_special_tokens=False).ids
        for part in rest:
            ids += self._piece(self._clean(system.strip()), not ids)[0].tolist()
            ids += self._full_inner.encode(part, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, control tokens left out."""
        if self._bytes is None:
            return self._decode_window([int(token) for token in ids if int(token) not in self._special])
        stream = self.stream()
        return "".join([stream.push(int(token)) for token in ids]) + stream.finish()

    def stream(self) -> StreamDecoder:
        """A decoder for ids that come one by one."""
        if self._bytes is None:
            return WindowDecoder(self._decode_window, self._special)
        return StreamDecoder(self._bytes, self._special)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an answer: every end-of-text id the model's files name, and the template's end of turn."""
        stops: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            named = read_json(self._dir / name).get("eos_token_id")
            stops.update(named if isinstance(named, list) else [] if named is None else [named])
        eos = self._full.token_to_id(special_token(self._config, "eos_token") or "")
        turn_end = self._full.encode(self._template(None).answer_end, add_special_tokens=False).ids
        stops.update([] if eos is None else [eos])
        stops.update([token for token in turn_end if token in self._special][:1])
        if not all(isinstance(token, int) for token in stops):
            raise ModelError(f"the model in {self._dir} names end-of-text ids that are no numbers", hint="fetch the model again")
        return frozenset(stops)

    @cached_property
    def _full(self) -> tokenizers.Tokenizer:
        return build_backend(read_spec(self._dir))

    @cached_property
    def _full_inner(self) -> tokenizers.Tokenizer:
        return build_backend(read_spec(self._dir), prefix_space=False) if self._adds_space else self._full

    @cached_property
    def _inner(self) -> tokenizers.Tokenizer:
        return self._plain if self._bytes else build_backend(without_control(read_spec(self._dir)), prefix_space=False)

    @cached_property
    def _adds_space(self) -> bool:
        """Whether the tokenizer puts a space before a text, as SentencePiece models do."""
        ids = [backend.encode("a", add_special_tokens=False).ids for backend in (self._plain, self._inner)]
        return ids[0] != ids[1]

    @cached_property
    def _opening_ids(self) -> list[int]:
        """What the tokenizer puts before a text: start of text, or nothing."""
        bos = special_token(self._config, "bos_token")
        if isinstance(adds := self._config.get("add_bos_token"), bool):
            token = self._full.token_to_id(bos) if adds and bos else None
            return [] if token is None else [token]
        bare = self._full.encode("a", add_special_tokens=False).ids
        dressed = self._full.encode("a", add_special_tokens=True).ids
        ends = [n for n in range(len(dressed)) if dressed[n : n + len(bare)] == bare]
        return dressed[: ends[0]] if ends else []

    def _template(self, system: str | None) -> ChatTemplate:
        if system not in self._templates:
            self._templates[system] = read_template(self._dir, self._config, system)
        return self._templates[system]

    @cached_property
    def _templates(self) -> dict[str | None, ChatTemplate]:
        return {}

    def _clean(self, text: str) -> str:
        """The text as encoders take it: no lone surrogates, and normalised if the fast path has to do it."""
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return unicodedata.normalize("NFC", text) if self._composes else text

    def _piece(self, text: str, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """Ids of text and the character in which each starts."""
        if self._fast and (encoded := self._fast.encode(text)):
            ids, starts = encoded[0], _start_chars(text, encoded[1])
        else:
            encoding = (self._plain if first else self._inner).encode(text, add_special_tokens=False)
            ids = np.array(encoding.ids, dtype=np.int32)
            starts = np.fromiter((start for start, _ in encoding.offsets), dtype=np.int64, count=len(ids))
        if np.isin(ids, self._reserved).any():
            raise ModelError(
                "the model's tokenizer makes control tokens out of plain text, so a document could pose as instructions",
                hint="use another model",
            )
        return ids, starts

    def _encode_parts(self, parts: Sequence[str], on_chars: Callable[[int], None] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Ids and starts of the joined parts, encoded in pieces where the tokenizer allows it."""
        ids, starts = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        chars = 0
        for text in split_pieces(parts, self._cut):
            piece_ids, piece_starts = self._piece(text, chars == 0)
            ids.append(piece_ids)
            starts.append(piece_starts + chars)
            chars += len(text)
            if on_chars:
                on_chars(chars)
        return np.concatenate(ids), np.concatenate(starts)

    def _decode_window(self, ids: list[int]) -> str:
        return self._full.decode(ids, skip_special_tokens=False)


def _start_chars(text: str, byte_lengths: np.ndarray) -> np.ndarray:
    """The character in which each token starts, from the UTF-8 lengths of all."""
    start_bytes = np.cumsum(byte_lengths, dtype=np.int64) - byte_lengths
    if text.isascii():
        return start_bytes
    raw = np.frombuffer(text.encode(), dtype=np.uint8)
    # a byte that continues a character has the bits 10 in front
    return np.cumsum((raw & 0xC0) != 0x80, dtype=np.int32)[start_bytes].astype(np.int64) - 1


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """The tokenizer of a model directory.

    Raises:
        ModelError: tokenizer.json is missing or damaged.
    """
    try:
        tokenizer = Tokenizer(Path(model_dir))
        # worked out on demand otherwise, which is too late for a damaged file to be told from a fault of ours
        tokenizer.stop_ids  # noqa: B018
        return tokenizer
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"the tokenizer in {model_dir} is damaged: {error}", hint="fetch the model again") from error
