"""Text of a PDF page that no reader of it sees: invisible, tiny, off the page, or of the colour of what lies under it.

Knows pdfium's objects and one rendering of the page; runs in the worker process. Text under a picture that covers the page is
the layer of a scan whose text was recognised, and is left out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

INVISIBLE, TINY, OUTSIDE, UNDER = (
    "letters that are not drawn",
    "letters too small to see",
    "letters off the page",
    "letters of the paper's colour",
)
_TINY_POINTS = 1.5
_COVERS = 0.5  # of the page's area: a scan
_MOST_QUOTES = 20
_FEWEST_LETTERS = 3
_MOST_OBJECTS = 50_000
_MOST_READ = 1000
_CHARS = 300
_PIXELS = 1200  # of the longer side of the rendering
_FAINT = 12  # steps of 255 between letters and paper below which nobody sees them

Box = tuple[float, float, float, float]  # left, bottom, right, top in points


def hidden_text(page: Any, textpage: Any) -> list[tuple[str, str]]:
    """What hides it and the text, for each run of hidden text objects; a page of thousands is cut short."""
    import pypdfium2.raw as raw

    texts = list(_objects(page, raw.FPDF_PAGEOBJ_TEXT))
    suspects = [(text, kind) for text in texts if (kind := _suspicion(text, page, raw))]
    if not suspects:
        return []
    if any(kind == INVISIBLE for _, kind in suspects) and _is_scan(page, raw):
        suspects = [(text, kind) for text, kind in suspects if kind != INVISIBLE]
    picture = _Picture(page) if any(kind == UNDER for _, kind in suspects) else None
    found: list[tuple[str, str]] = []
    read = 0
    for text, kind in suspects:
        full = bool(found) and found[-1][0] == kind and len(found[-1][1]) >= _CHARS
        if full or (kind == UNDER and not picture.is_flat(_box(text))):
            continue
        # pdfium goes through the whole page for each of them
        words, read = _words(text, textpage, raw), read + 1
        if words.strip():
            if found and found[-1][0] == kind:
                found[-1] = (kind, f"{found[-1][1]} {words}"[:_CHARS])
            else:
                found.append((kind, words[:_CHARS]))
        if read == _MOST_READ:
            break
    # a comma beside the page is a slip of the typesetter
    return [(kind, words) for kind, words in found if sum(map(str.isalnum, words)) >= _FEWEST_LETTERS][:_MOST_QUOTES]


def _objects(page: Any, kind: int) -> Iterator[Any]:
    for number, item in enumerate(page.get_objects(filter=[kind], max_depth=3)):
        if number >= _MOST_OBJECTS:
            return
        yield item


def _suspicion(text: Any, page: Any, raw: Any) -> str | None:
    """Why nobody may see a text object; UNDER where only a rendering tells."""
    mode = raw.FPDFTextObj_GetTextRenderMode(text)
    if mode in (raw.FPDF_TEXTRENDERMODE_INVISIBLE, raw.FPDF_TEXTRENDERMODE_CLIP):
        return INVISIBLE
    if text.level:
        return None  # places inside a form are not places on the page
    left, bottom, right, top = _box(text)
    page_left, page_bottom, page_right, page_top = page.get_bbox()
    if right <= page_left or left >= page_right or top <= page_bottom or bottom >= page_top:
        return OUTSIDE
    if 0 < top - bottom < _TINY_POINTS and 0 < right - left and _size(text, raw) < _TINY_POINTS:
        return TINY
    red, green, blue, alpha = (ctypes.c_uint() for _ in range(4))
    if not raw.FPDFPageObj_GetFillColor(text, red, green, blue, alpha):
        return None
    # dark letters on dark paper are as rare as white ones on white are common
    return UNDER if alpha.value < 40 or min(red.value, green.value, blue.value) > 200 else None


def _size(text: Any, raw: Any) -> float:
    """The height of its font on the page, in points."""
    size = ctypes.c_float()
    raw.FPDFTextObj_GetFontSize(text, size)
    matrix = text.get_matrix()
    return abs(size.value) * max(abs(matrix.b) + abs(matrix.d), abs(matrix.a) + abs(matrix.c))


def _box(item: Any) -> Box:
    return item.get_bounds()


def _is_scan(page: Any, raw: Any) -> bool:
    area = page.get_width() * page.get_height()
    boxes = [_box(image) for image in _objects(page, raw.FPDF_PAGEOBJ_IMAGE)]
    return any((right - left) * (top - bottom) >= _COVERS * area for left, bottom, right, top in boxes)


def _words(text: Any, textpage: Any, raw: Any) -> str:
    count = raw.FPDFTextObj_GetText(text, textpage, None, 0)
    if count <= 2:
        return ""
    buffer = ctypes.create_string_buffer(count)
    raw.FPDFTextObj_GetText(text, textpage, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), count)
    return buffer.raw[: count - 2].decode("utf-16-le", "replace")


class _Picture:
    """The page as a reader sees it, in shades of grey."""

    def __init__(self, page: Any) -> None:
        self._left, self._bottom, right, self._top = page.get_bbox()
        self._scale = min(4.0, _PIXELS / max(right - self._left, self._top - self._bottom, 1.0))
        upright = (360 - page.get_rotation()) % 360  # boxes are those of the page before it is turned
        bitmap = page.render(scale=self._scale, rotation=upright, grayscale=True, may_draw_forms=False)
        self._width, self._height, self._stride = bitmap.width, bitmap.height, bitmap.stride
        self._pixels = bytes(bitmap.buffer)
        bitmap.close()

    def is_flat(self, box: Box) -> bool:
        """Whether nothing is to be seen in a box: all of it has one shade."""
        left, bottom, right, top = box
        columns = slice(max(0, int((left - self._left) * self._scale)), min(self._width, int((right - self._left) * self._scale) + 1))
        rows = range(max(0, int((self._top - top) * self._scale)), min(self._height, int((self._top - bottom) * self._scale) + 1))
        shades = [shade for row in rows for shade in self._pixels[row * self._stride :][columns]]
        return not shades or max(shades) - min(shades) < _FAINT
