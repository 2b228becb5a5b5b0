"""What an expression of PromQL asks for, and which labels its answer has, by the rules of Prometheus.

Parsed by `promql-parser`, which knows functions and types. Knows no metrics: which labels one has is handed in.
"""

from __future__ import annotations

from collections.abc import Callable

import promql_parser as ast

TARGET = frozenset({"instance", "job"})
"""Labels that Prometheus gives to whatever it scrapes."""

SETS = ("and", "or", "unless")

Labels = frozenset[str]


def parsed(expression: str) -> ast.Expr:
    """Raises ValueError if it is none. Grafana's variables of intervals stand for five minutes."""
    return ast.parse(expression.replace("$__rate_interval", "5m").replace("$__interval", "5m"))


def selectors(expression: ast.Expr) -> list[ast.VectorSelector]:
    """Each place where a metric is named."""
    found: list[ast.VectorSelector] = []

    def look(node: ast.Expr) -> None:
        if isinstance(node, ast.VectorSelector):
            found.append(node)

    ast.walk(expression, look)
    return found


def labels(node: ast.Expr, of_metric: Callable[[str], Labels]) -> Labels | None:
    """Those of each series of the answer; None: it is a number.

    Raises ValueError where a label is named that is not there, or two sides could never match.
    """
    match node:
        case ast.NumberLiteral() | ast.StringLiteral():
            return None
        case ast.ParenExpr() | ast.UnaryExpr() | ast.SubqueryExpr():
            return labels(node.expr, of_metric)
        case ast.MatrixSelector():
            return labels(node.vector_selector, of_metric)
        case ast.VectorSelector():
            there = of_metric(node.name) | TARGET
            _check({matcher.name for matcher in node.matchers.matchers}, there, node)
            return there
        case ast.Call():
            told = [each for each in (labels(argument, of_metric) for argument in node.args) if each is not None]
            there = told[0] if told else frozenset()
            return there - {"le"} if node.func.name == "histogram_quantile" else there
        case ast.AggregateExpr():
            there = labels(node.expr, of_metric) or frozenset()
            if node.modifier is None:
                return frozenset()
            named = frozenset(node.modifier.labels)
            _check(named, there, node)
            assert node.modifier.type == ast.AggModifierType.By, "`without` is not used"
            return named
        case ast.BinaryExpr():
            return _of_both(node, of_metric)
    raise AssertionError(f"what is {type(node).__name__}?")


def _of_both(node: ast.BinaryExpr, of_metric: Callable[[str], Labels]) -> Labels | None:
    left, right = labels(node.lhs, of_metric), labels(node.rhs, of_metric)
    if left is None or right is None:
        return right if left is None else left
    matching = node.modifier.matching if node.modifier else None
    if matching is None:
        if left != right:
            raise ValueError(f"{sorted(left)} and {sorted(right)} never match in: {node}")
        return left
    assert matching.type == ast.LabelModifierType.Include, "`ignoring` is not used"
    on = frozenset(matching.labels)
    _check(on, left & right, node)
    return left if str(node.op) in SETS else on


def _check(named: Labels | set[str], there: Labels, node: ast.Expr) -> None:
    if named - there:
        raise ValueError(f"no {sorted(named - there)} among {sorted(there)} in: {node}")
