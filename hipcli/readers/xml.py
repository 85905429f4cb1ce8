"""XML of documents that may be hostile: no entities, no external files, no unbounded nesting. Knows no vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree
from xml.parsers import expat

from hipcli.errors import InputError

_DEEPEST = 2_000
_SEPARATOR = "}"

OnStart = Callable[[str, "dict[str, str]"], None]
OnEnd = Callable[[str], None]
OnText = Callable[[str], None]


def parse(data: bytes, what: str, on_start: OnStart, on_end: OnEnd, on_text: OnText) -> None:
    """Report tags and texts in order; names come without their namespace, "w:p" and "p" both as "p".

    what: the file, for sentences. Raises InputError for XML that is not well-formed or that declares entities.
    """
    parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
    parser.buffer_text = True
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise InputError(f"cannot read {what}: its elements are nested more than {_DEEPEST:,} deep")
        on_start(_local(name), {_local(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        on_end(_local(name))

    def refuse(*_: object) -> None:
        raise InputError(f"cannot read {what}: it declares entities, as an entity bomb does")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, on_text
    parser.EntityDeclHandler = refuse
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    try:
        parser.Parse(data, True)
    except expat.ExpatError as fault:
        raise InputError(f"cannot read {what}: its XML is damaged ({fault})") from None


def tree(data: bytes, what: str) -> ElementTree.Element:
    """A small XML file as a tree of local names; raises InputError as `parse` does."""
    builder = ElementTree.TreeBuilder()
    parse(data, what, builder.start, builder.end, builder.data)
    return builder.close()


def _local(name: str) -> str:
    return name.rpartition(_SEPARATOR)[2].rpartition(":")[2]
