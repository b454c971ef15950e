"""Small faults, made by changing the text of a module where its syntax tree says.

The operators are our own: mutmut leaves out decorated functions and the removal of statements, cosmic-ray
changes annotations and brings SQLAlchemy, aiohttp and GitPython.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str
    line: int
    """Of the first line of `before`, from 1."""
    operator: str
    before: list[str]
    """Whole lines, so that the same fault can be found again where the lines around it moved."""
    after: list[str]

    def __str__(self) -> str:
        lines = [*(f"  - {line}" for line in self.before), *(f"  + {line}" for line in self.after)]
        return "\n".join([f"{self.path}:{self.line}: {self.operator}", *lines])


COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Is: (r"\bis\b", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
}
WORD = re.compile(r"[A-Za-z_][\w./-]+")
"""Strings that programs read. Others are messages, which tests should not quote."""
UNOBSERVABLE = re.compile(
    r"(.*\.)?(logger|log|log_of|logging|warnings)\b.*"  # what is logged
    r"|isinstance|issubclass|cast|TypeVar|NewType|namedtuple"  # types
    r"|(models\.\w*|\w+)(Field|ForeignKey|Index|Constraint)"  # columns, which migrations make
)
UNOBSERVABLE_FIELDS = {"annotation", "returns", "decorator_list"}
UNOBSERVABLE_KEYWORDS = {"repr", "title", "description", "help_text", "verbose_name"}
Edit = tuple[str, int, int, str]
"""The operator, the byte range that it replaces, and the replacement."""


class Operators(ast.NodeVisitor):
    """Collects the edits of a module. Leaves alone what no test can see: types, messages, logging."""

    def __init__(self, source: bytes) -> None:
        self.source, self.edits = source, list[Edit]()
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        if not is_unobservable(node):
            find_edits = getattr(self, f"visit_{type(node).__name__}", None)
            self.edits.extend(find_edits(node) if find_edits else ())
            for name, value in ast.iter_fields(node):
                if name in UNOBSERVABLE_FIELDS or (isinstance(node, ast.ClassDef) and name != "body"):
                    continue
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.visit(child)

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def whole(self, operator: str, node: ast.expr | ast.stmt, new: str) -> Edit:
        return operator, self.start(node), self.end(node), new

    def between(self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Edit]:
        """The operator's sign, which has no position in the tree."""
        start = self.end(left)
        if found := re.search(old.encode(), self.source[start : self.start(right)]):
            yield operator, start + found.start(), start + found.end(), new

    def visit_Compare(self, node: ast.Compare) -> Iterator[Edit]:
        for left, right, sign in zip(
            [node.left, *node.comparators], node.comparators, node.ops, strict=False
        ):
            old, others = COMPARISONS[type(sign)]
            for new in others:
                yield from self.between("comparison", left, right, old, new)

    def visit_BoolOp(self, node: ast.BoolOp) -> Iterator[Edit]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            yield from self.between("and/or", left, right, rf"\b{old}\b", new)

    def visit_BinOp(self, node: ast.BinOp) -> Iterator[Edit]:
        if type(node.op) in ARITHMETIC and not (is_text(node.left) or is_text(node.right)):
            yield from self.between("arithmetic", node.left, node.right, *ARITHMETIC[type(node.op)])

    def visit_AugAssign(self, node: ast.AugAssign) -> Iterator[Edit]:
        if type(node.op) in ARITHMETIC:
            yield from self.between("arithmetic", node.target, node.value, *ARITHMETIC[type(node.op)])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Iterator[Edit]:
        if isinstance(node.op, ast.Not):
            yield "not", self.start(node), self.start(node) + len("not "), ""

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> Iterator[Edit]:
        # Comparisons and `not` have separate operators.
        if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            text = self.source[self.start(node.test) : self.end(node.test)].decode()
            yield self.whole("condition", node.test, f"not ({text})")

    visit_While = visit_IfExp = visit_If  # noqa: N815

    def visit_Constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool):
            yield self.whole("boolean", node, str(not value))
        elif isinstance(value, int | float):
            # A test should not have to detect 61 seconds instead of 60.
            yield self.whole("number", node, str(value + 1) if value in range(-10, 11) else "0")
        elif isinstance(value, str) and WORD.fullmatch(value):
            yield self.whole("text", node, json.dumps(f"{value}x"))

    def visit_Call(self, node: ast.Call) -> Iterator[Edit]:
        for keyword in node.keywords:
            if keyword.arg and not is_unobservable(keyword):
                comma = re.match(rb"\s*, *", self.source[self.end(keyword) :])
                end = self.end(keyword) + (comma.end() if comma else 0)
                yield "keyword argument", self.start(keyword), end, ""

    def visit_Return(self, node: ast.Return) -> Iterator[Edit]:
        if node.value and not isinstance(node.value, ast.Constant):
            yield self.whole("return", node, "return None")

    def visit_Expr(self, node: ast.Expr | ast.Raise | ast.Delete) -> Iterator[Edit]:
        yield self.whole("statement", node, "pass")

    visit_Raise = visit_Delete = visit_Expr  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> Iterator[Edit]:
        # Without the assignment of a local name nothing works, which shows nothing about the tests.
        if not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets):
            yield self.whole("statement", node, "pass")

    def visit_Break(self, node: ast.Break) -> Iterator[Edit]:
        yield self.whole("loop", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> Iterator[Edit]:
        yield self.whole("loop", node, "break")


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_unobservable(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=value) if is_unobservable(value):
            return True
        case ast.ClassDef(name="Meta") | ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.keyword(arg=name, value=value):
            is_message = (
                isinstance(value, ast.Constant) and isinstance(value.value, str) and " " in value.value
            )
            return name in UNOBSERVABLE_KEYWORDS or is_message or isinstance(value, ast.JoinedStr)
        case ast.Call(func=function):
            return UNOBSERVABLE.fullmatch(ast.unparse(function)) is not None
        case ast.Assign(col_offset=0, value=ast.BinOp(op=ast.BitOr())):
            return True  # The name of a type.
        case _:
            return False


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    return [mutant_of(path, source, edit) for edit in Operators(source).edits]


def mutant_of(path: str, source: bytes, edit: Edit) -> Mutant:
    operator, start, end, new = edit
    first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
    last = len(source) if last == -1 else last
    after = source[first:start] + new.encode() + source[end:last]
    before = source[first:last].decode().split("\n")
    return Mutant(path, source.count(b"\n", 0, first) + 1, operator, before, after.decode().split("\n"))


def mutated(mutant: Mutant, source: str) -> str:
    lines = source.split("\n")
    lines[mutant.line - 1 : mutant.line - 1 + len(mutant.before)] = mutant.after
    return "\n".join(lines)


def is_a_change(mutant: Mutant, source: str) -> bool:
    """Whether it compiles to something else."""
    try:
        return ast.dump(ast.parse(mutated(mutant, source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False
