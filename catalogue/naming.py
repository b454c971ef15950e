"""Tool names, made once from the workflow's name and then stable (A6.4, B8); names that look alike; and the
rules for names that people enter."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from heapq import nsmallest

MAX_LENGTH = 64  # Clients are stricter than MCP's own 128
SIMILAR = 0.55  # The least share of letter pairs that two similar names have in common
MAX_SIMILAR = 3

CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})  # Of Unicode: control characters, and what breaks lines

BUILT_IN_TOOLS = {  # MCP's built-in tools with their titles; no workflow may have or resemble these names
    "list_workflows": "List workflows",
    "get_workflow_info": "Get everything about a workflow",
    "execute_workflow": "Execute a workflow",
    "preflight": "Check calls",
    "get_execution_status": "Get an execution's status",
    "cancel_execution": "Cancel an execution",
    "control_execution": "Control an execution",
    "list_executions": "List your executions",
    "query_execution": "Ask a run",
    "signal_execution": "Tell a run",
    "ClearCache": "Clear the result cache",
    "show_execution": "Show a run in its card",
    "answer_execution": "Answer a run's questions",
}

RESERVED = frozenset({*BUILT_IN_TOOLS, "enable", "disable"})
"""Built-in tools, and REST's addresses beside the tools'; a workflow of such a name gets its id added."""


def spellings(text: str) -> list[str]:
    """Returns the cases to search for, where a database ignores the case of ASCII letters only."""
    return list(dict.fromkeys([text, text.lower(), text.upper(), text.title(), text.capitalize()]))


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 workflow`, `1,200 workflows`; with a verb, such as `workflow is`, `plural` is needed."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int | None) -> str:
    """`first, second and 3 more`. `most`: of the names; None: all of them."""
    shown = names[:most]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def find_name_problem(name: str) -> str:
    """Why the name is invalid; empty if it is valid."""
    if name.strip() and CONTROLS.isdisjoint(map(unicodedata.category, name)):
        return ""
    return "A name must be one line of text without control characters, and not only white space."


def make_tool_name(
    *, name: str, upstream_id: str, source_name: str, taken: set[str], without_name: str = "workflow"
) -> str:
    """The first free one of: name, name_id, name_id_source, name_id_digest, then with a number."""
    plain = _sanitised(name)[:MAX_LENGTH] or without_name
    # Where the engine knows workflows by their names, the source's tells them apart.
    if plain not in taken and plain not in RESERVED:
        return plain
    with_id = _combined(plain, _sanitised(upstream_id))
    with_source = _combined(with_id, _sanitised(source_name))
    # For ids that differ only in characters that names cannot have: counting up would take ever longer.
    digest = hashlib.sha256(f"{source_name} {upstream_id}".encode()).hexdigest()[:8]
    for candidate in (with_id, with_source, _joined(with_id, digest)):
        if candidate not in taken and candidate not in RESERVED:
            return candidate
    number = 2
    while (candidate := _joined(with_source, str(number))) in taken:
        number += 1
    return candidate


def _sanitised(text: str) -> str:
    """`Kündigung prüfen!` -> `Kundigung_prufen`; empty without letters and digits."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", plain).strip("_.-")


def _combined(name: str, by: str) -> str:
    """Both parts without repetition: ids and sources often contain the name."""
    words, more = _words(name), _words(by)
    if words[-len(more) :] == more:
        return name
    if more[-len(words) :] == words:
        return by[-MAX_LENGTH:].lstrip("_.-")
    return _joined(name, by)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in re.split(r"[_.-]+", text) if word]


def _joined(start: str, end: str) -> str:
    """Both parts, cut to fit; of the second the end stays, where long ids differ."""
    end = end[-MAX_LENGTH // 2 :].lstrip("_.-")
    return f"{start[: MAX_LENGTH - len(end) - 1]}_{end}" if end else start


def find_similar_names(name: str, among: Iterable[str]) -> list[str]:
    """Likely corrections of a mistyped name, the likeliest first; its words may be in another order."""
    # Longer than any name, so not a typo.
    if len(name) > 2 * MAX_LENGTH:
        return []
    wanted = _letter_pairs(name)
    # Dice's coefficient, from 0 to 1.
    scored = (
        (2 * len(wanted & pairs) / ((len(wanted) + len(pairs)) or 1), other)
        for other in among
        for pairs in [_letter_pairs(other)]
    )
    close = nsmallest(MAX_SIMILAR, ((-score, other) for score, other in scored if score >= SIMILAR))
    return [other for _, other in close]


def _letter_pairs(name: str) -> set[str]:
    folded = name.casefold()
    return {folded[start : start + 2] for start in range(len(folded) - 1)}


# Derived from Unicode's table of confusable characters (UTS 39, Unicode 15): of those that compatibility
# decomposition leaves as they are, all whose prototype is of ASCII letters and digits.
_LOOKS_LIKE = {
    "2": "\u01a7\u01bb\u03e8\u14bf\ua644\ua6ef\ua75a",
    "3": "\u01b7\u021c\u0417\u0498\u04e0\u2ccc\ua76a\ua7ab\U000118ca\U00016f3b\U0001d206",
    "4": "\u13ce\U000118af", "5": "\u01bc\U000118bb", "6": "\u0431\u13ee\u2cd2\U000118d5",
    "7": "\U000104d2\U000118c6\U0001d212", "8": "\u0222\u0223\u09ea\u0a6a\u0b03\U0001031a\U0001e8cb",
    "9": "\u09ed\u0a67\u0b68\u0d6d\u2cca\ua76e\U000118ac\U000118cc\U000118d6",
    "a": "\u0251\u0391\u03b1\u0410\u0430\u13aa\u15c5\u2376\u237a\ua4ee\U000102a0\U00016f40",
    "b": "\u0180\u0182\u0183\u0184\u0253\u0392\u0411\u0412\u042c\u0462\u0463\u048c\u048d\u13cf\u13f4\u1472"
         "\u1473\u15af\u15f7\ua4d0\ua7b4\U00010282\U000102a1\U00010301",
    "c": "\xa2\u023c\u0421\u0441\u04aa\u04ab\u13df\u1d04\u20a1\u2ca4\u2ca5\ua4da\uabaf\U000102a2\U00010302"
         "\U00010415\U0001043d\U0001051c\U000118e9\U000118f2\U0001f74c",
    "d": "\xd0\u0110\u0111\u0189\u018c\u0256\u0257\u0501\u13a0\u13e7\u146f\u15de\u15ea\u20ab\ua4d2\ua4d3",
    "e": "\u0246\u0247\u0395\u0415\u0435\u04bd\u04bf\u13ac\u212e\u22ff\u2d39\ua4f0\uab32\U00010286\U000118a6"
         "\U000118ae",
    "f": "\u0191\u0192\u03dc\u0584\u15b4\u1d6e\u1e9d\ua4dd\ua798\ua799\uab35\U00010287\U000102a5\U00010525"
         "\U000118a2\U000118c2\U0001d213",
    "g": "\u018d\u01e4\u01e5\u0260\u0261\u050c\u0581\u13c0\u13f3\u1d83\ua4d6",
    "h": "\u0126\u0127\u0266\u0397\u041d\u045b\u04a2\u04bb\u04c7\u04c9\u0570\u13bb\u13c2\u13f2\u157c\u2c67"
         "\u2c8e\ua4e7\ua695\U000102cf",
    "i": "\u0131\u0268\u0269\u026a\u03b9\u0456\u04cf\u13a5\u1d7b\u1d7c\u2373\u2378\ua647\uab75\U000118c3",
    "j": "\u0248\u0249\u037f\u03f3\u0408\u0458\u13ab\u148d\ua4d9\ua7b2",
    "k": "\u0199\u039a\u041a\u049a\u049e\u13e6\u16d5\u20ad\u2c69\u2c94\ua4d7\ua740\U00010518",
    "l": "\u0141\u0142\u0196\u0197\u019a\u01c0\u026b\u026d\u0399\u0406\u04c0\u05c0\u05d5\u05df\u0627\u0661"
         "\u0673\u06f1\u07ca\u13de\u14aa\u16c1\u2223\u23fd\u2c92\u2cd0\u2d4f\ua4e1\ua4f2\U0001028a\U00010309"
         "\U00010320\U0001041b\U00010526\U000118a3\U000118b2\U00016f16\U00016f28\U0001d22a\U0001e8c7",
    "m": "\u0271\u039c\u03fa\u041c\u04cd\u13b7\u15f0\u16d6\u1d6f\u20a5\u2c98\ua4df\U000102b0\U00010311"
         "\U00011700\U000118e3",
    "n": "\u019d\u019e\u0273\u039d\u03b7\u0578\u057c\u1d70\u2c9a\ua4e0\U0001018e\U00010513",
    "o": "\xd8\xf8\u019f\u0275\u0398\u039f\u03b8\u03bf\u03c3\u041e\u043e\u0472\u0473\u04e8\u04e9\u0555\u0585"
         "\u05e1\u0647\u0665\u06be\u06c1\u06d5\u06f5\u06ff\u07c0\u0966\u09e6\u0a66\u0ae6\u0b20\u0b66\u0be6"
         "\u0c02\u0c66\u0c82\u0ce6\u0d02\u0d20\u0d66\u0d82\u0e50\u0ed0\u101d\u1040\u10ff\u12d0\u13be\u13eb"
         "\u1d0f\u1d11\u2296\u229d\u236c\u2c9e\u2c9f\u2d31\u2d41\u2d54\u3007\ua4f3\ua74a\ua74b\uab3d\uab3e"
         "\uab74\uab8e\uabbb\U00010292\U000102ab\U00010404\U0001042c\U000104c2\U000104ea\U00010516\U000114d0"
         "\U000118b5\U000118c8\U000118d7\U000118e0\U0001d21a\U0001f714",
    "p": "\u01a5\u03a1\u03c1\u0420\u0440\u13e2\u146d\u1d7d\u2374\u2ca2\u2ca3\ua4d1\U00010295",
    "q": "\u02a0\u051b\u0563\u0566\u2d55",
    "r": "\u01a6\u024d\u027c\u027d\u0433\u0493\u13a1\u13d2\u1587\u1d26\u1d72\u2c85\ua4e3\uab47\uab48\uab81"
         "\U000104b4\U00016f35\U0001d216",
    "s": "\u01bd\u0282\u0405\u0455\u054f\u13d5\u13da\u1d74\ua4e2\ua731\uabaa\U00010296\U00010420\U00010448"
         "\U000118c1\U00016f3a",
    "t": "\u0166\u0167\u01ad\u01ae\u023e\u03a4\u0422\u04ac\u13a2\u1d75\u20ae\u22a4\u2361\u27d9\u2ca6\ua4d4"
         "\U00010297\U000102b1\U00010315\U000118bc\U00016f0a\U0001f768",
    "u": "\u0244\u028b\u03c5\u054d\u057d\u1200\u13cc\u144c\u1d1c\u1d7e\u222a\u22c3\ua4f4\ua79f\uab4e\uab52"
         "\uab9c\U000104ce\U000104f6\U000118b8\U000118d8\U00016f42",
    "v": "\u03bd\u0474\u0475\u05d8\u0667\u06f7\u13d9\u142f\u1d20\u2228\u22c1\u2d38\ua4e6\ua6df\uaba9"
         "\U00010197\U0001051d\U00011706\U000118a0\U000118c0\U00016f08\U0001d20d\U0001f708",
    "w": "\u026f\u0461\u047d\u051c\u051d\u0561\u13b3\u13d4\u1d21\u20a9\ua4ea\ua761\uab83\U000114c5\U0001170a"
         "\U0001170e\U0001170f\U000118e6\U000118ef",
    "x": "\xd7\u03a7\u0425\u0445\u04b2\u1541\u157d\u166d\u166e\u16b7\u2573\u292b\u292c\u2a2f\u2a30\u2cac"
         "\u2d5d\ua4eb\ua7b3\U00010196\U00010290\U000102b4\U00010317\U00010322\U00010527\U000118ec",
    "y": "\xa5\u01b4\u024e\u024f\u0263\u028f\u03a5\u03b3\u0423\u0443\u04ae\u04af\u04b0\u04b1\u10e7\u13a9"
         "\u13bd\u1d8c\u1eff\u2ca8\ua4ec\uab5a\U000102b2\U000118a4\U000118dc\U00016f43",
    "z": "\u01b5\u01b6\u0224\u0225\u0290\u0396\u13c3\u1d22\u1d76\ua4dc\uab93\U000102f5\U000118a9\U000118c4"
         "\U000118e5",
    "10": "\u23e8", "aa": "\ua732\ua733", "ae": "\xc6\xe6\u04d4\u04d5", "ao": "\ua734\ua735",
    "ar": "\U0001f707", "au": "\ua736\ua737", "av": "\ua738\ua739\ua73a\ua73b", "ay": "\ua73c\ua73d",
    "bl": "\u042b", "dz": "\u02a3", "ll": "\u01c1\u05f0\u2016\u2225\U00010199", "lo": "\u042e",
    "ls": "\u02aa", "lt": "\u20b6", "lz": "\u02ab", "mb": "\U0001f76b", "oe": "\u0152\u0153",
    "oo": "\u221e\ua698\ua699\ua74e\ua74f", "qe": "\U0001f700", "ss": "\xdf\u03b2\u13f0\u1e9e\ua7b5",
    "t3": "\ua728", "tf": "\ua777", "ts": "\u02a6", "ue": "\u1d6b", "uo": "\uab63", "vb": "\U0001f76c",
    "lls": "\U00010198", "sss": "\U0001f75c",
}  # fmt: skip

PROTOTYPES = str.maketrans({char: prototype for prototype, chars in _LOOKS_LIKE.items() for char in chars})
LETTERS = PROTOTYPES | str.maketrans({"|": "l"})
SEPARATORS = re.compile(r"[\W_]+")
BETWEEN_LETTERS = re.compile(r"(?<!\d) | (?!\d)")
DIGITS = str.maketrans({"0": "o", "1": "l"})
DISGUISES = re.compile(r"[^\x00-\x7f]|(?<=[A-Za-z])[01|](?=[A-Za-z])|(?<=[a-z])I(?=[a-z])")
"""Characters by which a name passes for another rather than the other for it."""


def latin_looks(text: str) -> str:
    """Returns what is read where letters of other alphabets look like Latin ones; empty if they show their
    alphabet, word by word."""
    words = text.split()
    read = [_latin_word(word) for word in words]
    return "" if read == words else " ".join(read)


def _latin_word(word: str) -> str:
    read = "".join(
        char if _is_latin(char) else latin.upper() if char.isupper() else latin
        for char in word
        for latin in [PROTOTYPES.get(ord(char), char) if char.isalpha() else char]
    )
    return read if all(_is_latin(char) for char in read if char.isalpha()) else word


def _is_latin(char: str) -> bool:
    return unicodedata.name(char, "").startswith("LATIN")


def looks_of(text: str) -> set[str]:
    """A name or title reduced to its visual form; texts that share a form look alike. Case, accents,
    invisible characters, separators except between digits, and look-alike letters of other scripts make no
    difference. One of the two forms takes a capital I for an l."""
    plain = text if text.isascii() else unicodedata.normalize("NFKD", text)
    read = {plain.casefold(), plain.replace("I", "l").translate(PROTOTYPES).casefold()}
    joined = {BETWEEN_LETTERS.sub("", _words_of(form.translate(LETTERS))) for form in read}
    return {form.translate(DIGITS).replace("rn", "m") for form in joined} - {""}


def _words_of(text: str) -> str:
    """Drops separators, and accents on Latin letters; in other scripts, marks make other words."""
    if text.isascii():
        return SEPARATORS.sub(" ", text).strip()
    read = " "
    for char in text:
        is_mark = unicodedata.category(char).startswith("M")
        if char.isalnum() or (is_mark and not read[-1].isascii()):
            read += char
        elif not is_mark:
            read += " "
    return " ".join(read.split())


def look_alike(one: str, other: str) -> bool:
    """Compares names of accounts like `looks_of`, but their separators count."""
    first, second = (re.split(r"([.@+_-])", name) for name in (one, other))
    return len(first) == len(second) and all(
        mine == theirs or looks_of(mine) & looks_of(theirs)
        for mine, theirs in zip(first, second, strict=True)
    )
