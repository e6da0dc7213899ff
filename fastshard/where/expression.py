"""Conditions as text: ``score > 1 and label in ("cat", "dog")``."""

from __future__ import annotations

import ast
from typing import Any

from fastshard.where.predicate import FieldProxy, Predicate

__all__ = ["parse_condition"]

MAX_TEXT = 10_000  # characters
MAX_DEPTH = 100
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Gt: "gt",
    ast.Lt: "lt",
    ast.GtE: "ge",
    ast.LtE: "le",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Is: "eq",
    ast.IsNot: "ne",
}
MIRRORED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "eq": "eq", "ne": "ne"}
GRAMMAR = (
    "a condition compares fields with values: score > 1, 0 < score <= 1, "
    'label in ("cat", "dog"), "day" in tags, score is None, joined by and, or, not'
)


def parse_condition(text: str) -> Predicate:
    """Parse the text of a condition; nothing in it is run."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"a condition has at most {MAX_TEXT:,} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        at = error.offset or 1
        raise ValueError(f"{error.msg}, at column {at}; {GRAMMAR}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{error or 'nested too deep'}; {GRAMMAR}") from None
    return parse_node(tree.body, 0)


def parse_node(node: ast.expr, depth: int) -> Predicate:
    if depth > MAX_DEPTH:
        raise refusal(node, f"nested deeper than {MAX_DEPTH}")
    if isinstance(node, ast.BoolOp):
        parts = [parse_node(value, depth + 1) for value in node.values]
        found = parts[0]
        for part in parts[1:]:
            found = found & part if isinstance(node.op, ast.And) else found | part
        return found
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~parse_node(node.operand, depth + 1)
    if isinstance(node, ast.Compare):
        return parse_comparisons(node)
    if isinstance(node, ast.Name):
        return FieldProxy(node.id)._compare("eq", True)
    raise refusal(node, "not a condition")


def parse_comparisons(node: ast.Compare) -> Predicate:
    """Return the condition of ``a < b <= c``: each pair, joined."""
    found = None
    left = node.left
    for op, right in zip(node.ops, node.comparators, strict=True):
        part = parse_comparison(left, op, right)
        found = part if found is None else found & part
        left = right
    assert found is not None
    return found


def parse_comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Predicate:
    if isinstance(op, (ast.In, ast.NotIn)):
        if isinstance(left, ast.Name):
            found = FieldProxy(left.id).isin(parse_list(right))
        elif isinstance(right, ast.Name):
            found = FieldProxy(right.id).contains(parse_value(left))
        else:
            raise refusal(left, "the comparison has no field")
        return ~found if isinstance(op, ast.NotIn) else found
    name = COMPARISONS[type(op)]
    if isinstance(left, ast.Name) and isinstance(right, ast.Name):
        raise refusal(right, "a field is compared with a value, not with another field")
    if isinstance(left, ast.Name):
        value, field = parse_value(right), left.id
    elif isinstance(right, ast.Name):
        value, field, name = parse_value(left), right.id, MIRRORED[name]
    else:
        raise refusal(left, "the comparison has no field")
    if isinstance(op, (ast.Is, ast.IsNot)) and type(value) not in (bool, type(None)):
        raise refusal(right, "is compares with None, True and False; write ==")
    return FieldProxy(field)._compare(name, value)


def parse_list(node: ast.expr) -> list[Any]:
    if not isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        raise refusal(node, 'expected values in parentheses, as in ("cat", "dog")')
    return [parse_value(each) for each in node.elts]


def parse_value(node: ast.expr) -> Any:
    sign = 1
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = -sign if isinstance(node.op, ast.USub) else sign
        node = node.operand
        if not isinstance(node, ast.UnaryOp) and not is_number(node):
            raise refusal(node, "expected a number after the sign")
    if isinstance(node, ast.Constant) and type(node.value) in KINDS:
        return node.value if sign > 0 else -node.value  # type: ignore[operator]
    if isinstance(node, (ast.Tuple, ast.List)):
        return parse_list(node)
    raise refusal(node, "expected a value: a number, a text, True, False or None")


KINDS = (str, int, float, bool, type(None))


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def refusal(node: ast.expr, reason: str) -> ValueError:
    """Return the error of a part of the text."""
    return ValueError(f"{reason}, at column {node.col_offset + 1}; {GRAMMAR}")
