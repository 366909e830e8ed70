"""Arithmetic over a syntax tree, never `eval`; every intermediate value is bounded."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable

from agent.demo.common import tidy

__all__ = ["evaluate", "raise_to_power"]

_MAX_CHARS = 200
_MAX_DIGITS = 300  # stays inside a float's range, so any result can be divided
_BAD_CHARACTER = re.compile(r"[^0-9a-zA-Z_+\-*/%().,\s]")

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "ln": math.log,
    "log10": math.log10,
    "round": round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_CONSTANTS = {"e": math.e, "pi": math.pi}


def evaluate(expression: str) -> int | float:
    """Return the value of an arithmetic expression in Python notation.

    Numbers, `+ - * / // % **`, parentheses, `pi`, `e` and one-argument functions (`sqrt`, `ln`,
    `sin` …); at most 200 characters and 300 digits.

    Raises:
        ValueError: The expression is not arithmetic, divides by zero or grows too large.
    """
    text = expression.strip()
    if not text:
        raise ValueError("the expression is empty; give one such as (2 + 3) * 4")
    if len(text) > _MAX_CHARS:
        raise ValueError(
            f"the expression has {len(text)} characters; at most {_MAX_CHARS} are allowed"
        )
    bad = _BAD_CHARACTER.search(text)
    if bad:
        raise ValueError(
            f"unsupported character {bad.group()!r} in the expression; write it with digits and "
            "+ - * / ** ( ) only, * for times and / for divided by"
        )
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(
            f"{text!r} is not an arithmetic expression; write it with digits and "
            "+ - * / ** ( ) only, * for times and / for divided by"
        ) from None
    return tidy(_value(tree.body))


def raise_to_power(base: float, exponent: float) -> float:
    """Return base ** exponent where the result is real and has at most 300 digits.

    Raises:
        ValueError: The result would be huge, complex, or a division by zero.
    """
    if base == 0 and exponent < 0:
        raise ValueError("division by zero: 0 has no negative power; use an exponent of 0 or more")
    if base < 0 and not float(exponent).is_integer():
        raise ValueError("a negative base needs a whole exponent; the result would be complex")
    if abs(base) > 1 and exponent * math.log10(abs(base)) > _MAX_DIGITS:
        raise ValueError(f"the power is too large: at most {_MAX_DIGITS} digits are computed")
    return base**exponent


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(raise_to_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first, second = _value(left), _value(right)
            if second == 0 and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
                raise ValueError("division by zero: the divisor must not be 0")
            return _bounded(_BINARY[type(op)](first, second))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _bounded(_called(name, _value(argument)))
        case _:
            raise ValueError(
                f"{ast.unparse(node)!r} is not arithmetic; allowed are numbers, + - * / // % **, "
                f"parentheses, {', '.join(_CONSTANTS)} and the functions "
                f"{', '.join(_FUNCTIONS)} of one number"
            )


def _called(name: str, argument: float) -> float:
    try:
        return _FUNCTIONS[name](argument)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}({tidy(argument)}) has no real value") from None


def _bounded(value: float) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the result is too large; use smaller numbers")
    if abs(value) > 10**_MAX_DIGITS:
        raise ValueError(f"the result is too large: at most {_MAX_DIGITS} digits are computed")
    return value
