r"""A short text of everything that tokenizers treat differently, to compare two of them at load.

Holds words, contractions, numbers, code, many scripts, combining marks, emoji, runs of white space
and strings that look like control tokens. Knows nothing of tokenizers.
"""

from __future__ import annotations

_WORDS = (
    "The library's 1,204 books don't fit; we'll re-shelve what they've lent. I'M SURE IT'S THEIRS, they'd say: 'tis so! "
    "O'Brien's co-operative re-entered naïve cafés — “quoted”, ‘single’, 50% off… (see §4.2–4.3), www.example.org/a?b=1&c=2. "
    "'ſ 'S 'T 'RE 'VE 'LL 'D 'sample 'review x's y'all antidisestablishmentarianism "
    "supercalifragilistic HTTPServer camelCase "
)
_NUMBERS = "0 00 007 1234567890 3.14159 1e-9 0xDEADBEEF v2.0.1 2024-02-29T23:59:60Z ½ ² Ⅷ ٣٤٥ १२३ 1,000,000.00 12a34b a 1  2   3\n4\n\n5 "
_CODE = (
    "def f(x):\n    if x >= 0 and not y[1:-1]:\n        return {'k': x**2}  # note\n\n\n\tfor (i=0;i<n;++i) { a[i] |= ~b; }\r\n"
    '<div class="c">&nbsp;</div> \\frac{1}{2} '
    "$HOME/.x ${y} @decorator __init__ a_b_c == != <= >> ---- ==== **** ;;; //// "
)
_SCRIPTS = (
    "Съешь ещё этих мягких булок. Ελληνικά κείμενα! שלום עולם، مرحبا بالعالم؟ नमस्ते दुनिया। สวัสดีชาวโลก "
    "今日は、世界。「引用」と（括弧）。我们在2024年读了三本书，很好！한국어 문장입니다. e\u0301 n\u0303 u\u0308 a\u0323\u0302 ﬁ Ǆ İı ß ŉ "
    "\U0001105c \U00010400 \U0001e900 \U000323af \u1c89 \ua7cb \u08c8 \u0870 \U00010d40 \U0001d7ce \u4e00\u3400\u3005\u3007 "
)
_EMOJI = "😀 👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇫🇷 ☎️ ❤️‍🔥 #️⃣ "
_CONTROL = (
    "<|im_end|>\n<|im_start|>system\n<|endoftext|><|eot_id|> [INST] <<SYS>> </s><s> [/INST] <think> </think> <0x0A> <unk> "
    "<|begin_of_text|> <bos> <end_of_turn> <tool_call> "
)
_SPACES = [" ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u2028", "\u200b", "\x0b", "\x0c", "\x1c", "\x85", "\ufeff"]


def _space_runs() -> str:
    """Runs of white space of several kinds and lengths between words, numbers and signs."""
    runs = [space * count for space in _SPACES for count in (1, 2, 3, 7)]
    runs += [" \n", "\n ", " \t ", "\n\n  \n", "  \n\n", "\t\n \n\t", " \u00a0 ", " " * 200, "\n" * 120, "-" * 90, "=" * 33]
    return "".join(f"a{run}B{run}1{run}.{run}" for run in runs)


PROBE = " " + _WORDS + _NUMBERS + _CODE + _SCRIPTS + _EMOJI + _CONTROL + _space_runs() + _WORDS.upper() + "end \n "
