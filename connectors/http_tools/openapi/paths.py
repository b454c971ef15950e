"""Path templates of RFC 6570 and of web frameworks, as the paths of tools."""

import re
from urllib.parse import parse_qsl

from connectors.http_tools.openapi.document import NoTool, quoted
from connectors.http_tools.tool import Constant

Named = dict[tuple[str, str], tuple[str, str]]
"""By place and name: `+` if the value has one or more segments, `*` if it has any number; and its pattern."""
LONGEST = 2_000  # Of an endpoint
MAX_FIELDS = 20
BRACES = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*+)\}")
OTHERS = (  # Flask's `<path:name>` and `<name>`, and `:name` and `*name`, in braces
    (re.compile(r"<path:([^<>{}/:]+)>"), r"{\1+}"),
    (re.compile(r"<(?:[^<>{}/:]+:)?([^<>{}/:]+)>"), r"{\1}"),
    (re.compile(r"(?<=/):(\w+[*+?]?)(?=/|\Z)"), r"{\1}"),
    (re.compile(r"(?<=/)(\*\w+)(?=/|\Z)"), r"{\1}"),
)
PARAMETER = re.compile(r"(\+|\*{1,2})?([^:=?*+/]+?)(\+|\*|\.{2,3})?([:=?].*)?", re.DOTALL)
SEVERAL = {"+": "+", "*": "*", "**": "*", "..": "*", "...": "*", "path": "*"}
CONSTRAINT = re.compile(r"\Z|\w+(?:[(:?=]|\Z)")  # Such as `int` and `min(1)` of ASP.NET
ANY_TEXT = re.compile(r"\^?\(?(?:\.|\[[^\]]+\])\*\??\)?\$?")
# Parts of regular expressions, which are not compiled: they may be hostile.
NO_SLASH = re.compile(r"\[\^[^\[\]/]*+/[^\[\]]*+\]|\[(?!\^)[^\[\]/]*+\]|\\[^SDW]")
CLASS = re.compile(r"\[[^\[\]]*+\]")
SLASH = re.compile(r"[/.]|\\[SDW]|\[\^")


def read_path(path: str, pointer: str) -> tuple[str, list[Constant], Named]:
    """The path with plain names in braces, the constants of its query, and its parameters. Raises NoTool."""
    text = path[: LONGEST + 1]  # A longer one is refused later.
    for form, braces in OTHERS:
        text = form.sub(braces, text)
    named: Named = {}
    written, end = "", 0
    for found in BRACES.finditer(text):
        written, end = written + text[end : found.start()], found.end()
        operator, inner = found[1][:1], found[1][1:]
        before = operator if operator in ("/", ".") else ""
        if operator in ("?", "&"):
            names = (name.strip(" *").partition(":")[0] for name in inner.split(","))
            named |= {("query", name): ("", "") for name in names if name}
        elif operator == ";" or (before and "," in inner):
            raise NoTool(f"Its path {quoted(path)} has {found[0]}, which is not supported.", pointer)
        elif operator != "#":
            name, mark, pattern = read_parameter(found[1].removeprefix(before))
            named["path", name] = mark, pattern
            written += f"{before}{{{name}}}"
    return *_split_query(written + text[end:], pointer), named


def _split_query(path: str, pointer: str) -> tuple[str, list[Constant]]:
    """A fragment distinguishes operations of one address and is never sent."""
    plain, _, query = path.partition("#")[0].partition("?")
    if "{" in query:
        raise NoTool(f"Its path {quoted(path)} has a parameter after the '?'.", pointer)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise NoTool(f"Its path {quoted(path)} has an invalid query after the '?'.", pointer) from None
    return plain, [Constant(place="query", name=name, value=value) for name, value in pairs if name]


def read_parameter(text: str) -> tuple[str, str, str]:
    """The plain name, whether the value has several segments, and otherwise its regular expression."""
    if (found := PARAMETER.fullmatch(text.strip())) is None:
        return text, "", ""
    before, name, after, rest = found.groups(default="")
    pattern = rest[1:].strip() if rest.startswith(":") else ""
    mark = SEVERAL.get(before or after or pattern, "")
    if rest.startswith("=") and "*" in rest:  # Google's `{name=projects/*}`
        mark = "+"
    elif CONSTRAINT.match(pattern):
        pattern = ""
    elif not mark and SLASH.search(NO_SLASH.sub("", pattern.replace("\\/", "/"))):
        mark = "*" if ANY_TEXT.fullmatch(pattern) else "+"
    return name.strip(), mark, "" if mark else pattern


def slashes_in(pattern: str) -> str:
    """Of a schema's pattern: `segments` for `projects/[^/]+`, `characters` for `[a-z/]+`; else empty."""
    if pattern.startswith("/") or "(?!" in pattern:  # Such as `/^a$/`, and what is no slash
        return ""
    rest = NO_SLASH.sub("", pattern[:LONGEST].replace("\\/", "/"))
    return "segments" if "/" in CLASS.sub("", rest) else "characters" if "/" in rest else ""
