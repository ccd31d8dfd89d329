"""Slips: what one keystroke, or one line left out, makes of a right function. No person chooses them.

A slip replaces one node of a syntax tree by another. What says something to a reader only (annotations, messages,
names of parameters) has none.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Kind = str

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
NAMES = (
    ("min", "max"),
    ("amin", "amax"),
    ("minimum", "maximum"),
    ("sin", "cos"),
    ("tril", "triu"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("new_zeros", "new_ones"),
    ("exp", "exp2"),
    ("log", "log2"),
    ("sum", "mean"),
    ("sqrt", "rsqrt"),
    ("q_len", "kv_len"),
    ("query", "key"),
    ("key", "value"),
    ("heads", "kv_heads"),
    ("head_dim", "value_dim"),
    ("lo", "hi"),
    ("left", "right"),
    ("rows", "columns"),
)
"""Names that are taken for each other."""
OTHERS = {
    each: [b if each == a else a for a, b in NAMES if each in {a, b}] for pair in NAMES for each in pair
}
NO_TENSORS = frozenset(
    {"torch", "math", "functional", "nn", "functools", "itertools", "clean", "blocked", "self", "do"}
)
"""Names before a dot that no step is applied to."""


@dataclass(frozen=True)
class Slip:
    """One node for another, in place."""

    kind: Kind
    parent: ast.AST
    field: str
    index: int | None
    """Where the field is a list."""
    slipped: ast.AST

    @property
    def changes(self) -> bool:
        """Whether it is another text at all."""
        return ast.unparse(self.right) != ast.unparse(self.slipped)

    @property
    def right(self) -> Any:
        """The node as it stands."""
        held = getattr(self.parent, self.field)
        return held if self.index is None else held[self.index]

    @property
    def told(self) -> str:
        """What stands there, and what the slip makes of it, on one line."""
        return " -> ".join(" ".join(ast.unparse(each).split()) for each in (self.right, self.slipped))

    def make(self, told: str) -> None:
        """Change the tree.

        told: the name of a function that is called with the value of what slipped, and returns it.
        """
        slipped = _telling(self.slipped, told)
        if self.index is None:
            setattr(self.parent, self.field, slipped)
        else:
            getattr(self.parent, self.field)[self.index] = slipped


def _telling(node: ast.AST, told: str) -> ast.AST:
    """The node, with a call of that function around it or in it."""

    def call(value: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(told, ast.Load()), [value], [])

    match node:
        case ast.Pass():
            return ast.Expr(call(ast.Constant(value=None)))
        case ast.If(test, body, orelse):
            return ast.If(call(test), body, orelse)
        case ast.Slice(lower, upper, step):
            bounds = [each or ast.Constant(value=None) for each in (lower, upper, step)]
            return call(ast.Call(ast.Name("slice", ast.Load()), bounds, []))
        case ast.expr():
            return call(node)
    return node


def slips(definition: ast.AST) -> Iterator[Slip]:
    """Every slip in the body of a function or a class, from the top to the bottom."""
    for name, held in ast.iter_fields(definition):
        if name in {"decorator_list", "annotation", "returns", "bases", "keywords"} and isinstance(
            definition, ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.arg
        ):
            continue
        for index, node in enumerate(held if isinstance(held, list) else [held]):
            if not isinstance(node, ast.AST) or _only_says(node):
                continue
            for kind, slipped in _instead(node):
                slip = Slip(kind, definition, name, index if isinstance(held, list) else None, slipped)
                if slip.changes:
                    yield slip
            yield from slips(node)


def _only_says(node: ast.AST) -> bool:
    """A docstring, a message, a check of what was given."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _instead(node: ast.AST) -> Iterator[tuple[Kind, ast.AST]]:
    """What may stand there by a slip."""
    yield from _operations(node)
    yield from _values(node)
    yield from _statements(node)


def _operations(node: ast.AST) -> Iterator[tuple[Kind, ast.AST]]:
    match node:
        case ast.BinOp(left, op, right):
            if type(op) in OPERATORS:
                yield "operator", ast.BinOp(left, OPERATORS[type(op)](), right)
            yield "operand left out", left
            yield "operand left out", right
        case ast.Compare(left, [op], right) if type(op) in COMPARISONS:
            yield "comparison", ast.Compare(left, [COMPARISONS[type(op)]()], right)
        case ast.BoolOp(op, values):
            yield "condition", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            yield "condition", values[0]
            yield "condition", values[-1]
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
            yield "sign", operand
        case ast.IfExp(_, body, orelse):
            yield "condition", body
            yield "condition", orelse


def _values(node: ast.AST) -> Iterator[tuple[Kind, ast.AST]]:
    match node:
        case ast.Constant(value):
            yield from (("constant", ast.Constant(other)) for other in _near(value))
        case ast.Call():
            yield from _calls(node)
        case ast.Attribute(value, "mT" | "T"):
            yield "step left out", value
        case ast.Attribute(value, name, ast.Load()):
            yield from (("name", ast.Attribute(value, each, ast.Load())) for each in OTHERS.get(name, ()))
        case ast.Name(name, ast.Load()):
            yield from (("name", ast.Name(each, ast.Load())) for each in OTHERS.get(name, ()))
        case ast.Slice(lower, upper, step):
            if lower is not None:
                yield "slice", ast.Slice(None, upper, step)
            if upper is not None:
                yield "slice", ast.Slice(lower, None, step)


def _statements(node: ast.AST) -> Iterator[tuple[Kind, ast.AST]]:
    match node:
        case ast.If(test, body, orelse):
            yield "condition", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield "statement left out", ast.If(ast.Constant(value=False), body, orelse)
        case ast.Expr() | ast.AugAssign() | ast.Break() | ast.Continue():
            yield "statement left out", ast.Pass()
        case ast.Assign([ast.Name(name)], value) if name in _read(value):
            yield "statement left out", ast.Pass()


def _calls(node: ast.Call) -> Iterator[tuple[Kind, ast.AST]]:
    match node.func:
        case ast.Attribute(ast.Name(name), _) if name in NO_TENSORS:
            pass
        case ast.Attribute(value, _):
            yield "step left out", value
    if len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
        first, second, *others = node.args
        yield "arguments swapped", ast.Call(node.func, [second, first, *others], node.keywords)
    for index in range(len(node.keywords)):
        kept = [each for place, each in enumerate(node.keywords) if place != index]
        yield "argument left out", ast.Call(node.func, node.args, kept)


def _near(value: object) -> list[Any]:
    """Constants that are nearly the same."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 2 if value else 1.0]
    return []


def _read(value: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
