"""Tools that reckon: arithmetic, percentages and statistics."""

from __future__ import annotations

import math
import statistics
from typing import Annotated

from langchain_core.tools import BaseTool

from agent.demo.calculation import evaluate, raise_to_power
from agent.demo.common import demo_tools, finite, tidy

__all__ = ["arithmetic_tools", "percentage_tools", "statistics_tools"]


def calculator(
    expression: Annotated[str, "Arithmetic with digits and + - * / ** ( ), such as (2 + 3) * 4"],
) -> int | float:
    """Calculate the value of an arithmetic expression such as (2 + 3) * 4 - 10 / 5."""
    return evaluate(expression)


def add(first: float, second: float) -> int | float:
    """Add two numbers and return their sum (first plus second)."""
    return tidy(first + second)


def subtract(minuend: float, subtrahend: float) -> int | float:
    """Subtract the second number from the first: the difference, minuend minus subtrahend."""
    return tidy(minuend - subtrahend)


def multiply(first: float, second: float) -> int | float:
    """Multiply a number by another and return the product: first times second."""
    return tidy(first * second)


def divide(dividend: float, divisor: float) -> int | float:
    """Divide a number by another and return the quotient: dividend over divisor."""
    if divisor == 0:
        raise ValueError("division by zero: the divisor must not be 0")
    return tidy(dividend / divisor)


def remainder(dividend: int, divisor: int) -> int:
    """Return what is left over when one whole number is divided by another (modulo)."""
    if divisor == 0:
        raise ValueError("division by zero: the divisor must not be 0")
    return dividend % divisor


def power(base: float, exponent: float) -> int | float:
    """Raise a base to an exponent, for example 2 to the power of 10; also squares and cubes."""
    finite((base, exponent))
    return tidy(raise_to_power(base, exponent))


def square_root(number: float) -> int | float:
    """Take the square root of a number that is not negative."""
    if number < 0:
        raise ValueError(f"{tidy(number)} is negative, so it has no real square root")
    return tidy(math.sqrt(number))


def factorial(number: int) -> int:
    """Compute the factorial n! of a whole number: in how many orders n things can stand."""
    if not 0 <= number <= 150:
        raise ValueError(f"the number is {number}; it must be from 0 to 150")
    return math.factorial(number)


def greatest_common_divisor(first: int, second: int) -> int:
    """Find the largest whole number that divides both numbers (gcd)."""
    return math.gcd(first, second)


def prime_factors(number: int) -> str:
    """Break a whole number into its prime factors, which also shows whether it is prime."""
    if not 2 <= number <= 10**10:
        raise ValueError(f"the number is {number}; it must be from 2 to 10000000000")
    factors: list[int] = []
    rest, candidate = number, 2
    while candidate * candidate <= rest:
        while rest % candidate == 0:
            factors.append(candidate)
            rest //= candidate
        candidate += 1 if candidate == 2 else 2
    if rest > 1:
        factors.append(rest)
    if len(factors) == 1:
        return f"{number} is a prime number"
    return f"{number} = {' * '.join(map(str, factors))}"


def round_number(number: float, decimals: int) -> int | float:
    """Round a number to so many decimal places, halves to the even digit."""
    if not 0 <= decimals <= 12:
        raise ValueError(f"decimals is {decimals}; it must be from 0 to 12")
    return tidy(round(number, decimals))


def percentage_of(percent: float, number: float) -> int | float:
    """Work out a given percentage of a number, such as 15 % of 80."""
    return tidy(number * percent / 100)


def percentage_change(old_value: float, new_value: float) -> int | float:
    """Say by how many percent a value rose or fell from an old to a new one."""
    if old_value == 0:
        raise ValueError("the old_value must not be 0: a change from 0 has no percentage")
    return tidy((new_value - old_value) / old_value * 100)


def percentage_share(part: float, whole: float) -> int | float:
    """Say what share in percent a part is of a whole, such as 12 out of 48."""
    if whole == 0:
        raise ValueError("division by zero: the whole must not be 0")
    return tidy(part / whole * 100)


def split_bill(amount: float, people: int, tip_percent: float = 0) -> int | float:
    """Split a restaurant bill evenly among people, with an optional tip in percent."""
    if people < 1:
        raise ValueError(f"people is {people}; it must be at least 1")
    return tidy(round(amount * (1 + tip_percent / 100) / people, 2))


def average(numbers: list[float]) -> int | float:
    """Compute the average (arithmetic mean) of a list of numbers."""
    return tidy(statistics.fmean(finite(numbers)))


def median(numbers: list[float]) -> int | float:
    """Find the median, the middle value of a list of numbers."""
    return tidy(statistics.median(finite(numbers)))


def standard_deviation(numbers: list[float]) -> int | float:
    """Measure the spread of a sample as its standard deviation (n - 1 in the denominator)."""
    return tidy(statistics.stdev(finite(numbers, at_least=2)))


def correlation(first_series: list[float], second_series: list[float]) -> int | float:
    """Compute Pearson's correlation coefficient between two equally long series of numbers."""
    first, second = finite(first_series, at_least=2), finite(second_series, at_least=2)
    if len(first) != len(second):
        raise ValueError(
            f"the series have {len(first)} and {len(second)} numbers; they must be equally long"
        )
    try:
        return tidy(statistics.correlation(first, second))
    except statistics.StatisticsError:
        raise ValueError("a constant series has no correlation; its numbers must differ") from None


def smallest_and_largest(numbers: list[float]) -> dict[str, int | float]:
    """Find the minimum, the maximum and the range of a list of numbers."""
    checked = finite(numbers)
    low, high = min(checked), max(checked)
    return {"minimum": tidy(low), "maximum": tidy(high), "range": tidy(high - low)}


def arithmetic_tools() -> list[BaseTool]:
    """Return the tools of category `arithmetic`."""
    return demo_tools(
        "arithmetic",
        (
            calculator,
            add,
            subtract,
            multiply,
            divide,
            remainder,
            power,
            square_root,
            factorial,
            greatest_common_divisor,
            prime_factors,
            round_number,
        ),
    )


def percentage_tools() -> list[BaseTool]:
    """Return the tools of category `percentages`."""
    return demo_tools(
        "percentages", (percentage_of, percentage_change, percentage_share, split_bill)
    )


def statistics_tools() -> list[BaseTool]:
    """Return the tools of category `statistics`."""
    return demo_tools(
        "statistics", (average, median, standard_deviation, correlation, smallest_and_largest)
    )
