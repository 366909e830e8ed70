"""Tools that convert units: everything goes through one factor to a base unit."""

from __future__ import annotations

from collections.abc import Mapping

from langchain_core.tools import BaseTool

from agent.demo.common import demo_tools, tidy, unknown

__all__ = ["unit_tools"]

_LENGTH = {
    "mm": 0.001, "cm": 0.01, "m": 1, "km": 1000,
    "inch": 0.0254, "foot": 0.3048, "yard": 0.9144, "mile": 1609.344, "nautical mile": 1852,
}  # fmt: skip
_WEIGHT = {
    "mg": 1e-6, "g": 0.001, "kg": 1, "tonne": 1000, "ounce": 0.028349523125, "pound": 0.45359237,
    "stone": 6.35029318,
}  # fmt: skip
_VOLUME = {
    "ml": 0.001, "cl": 0.01, "l": 1, "m3": 1000, "teaspoon": 0.00492892159375,
    "tablespoon": 0.01478676478125, "cup": 0.2365882365, "pint": 0.473176473,
    "gallon": 3.785411784,
}  # fmt: skip
_SPEED = {"m/s": 1, "km/h": 1 / 3.6, "mph": 0.44704, "knot": 1852 / 3600}
_AREA = {
    "cm2": 0.0001, "m2": 1, "km2": 1e6, "hectare": 1e4, "acre": 4046.8564224,
    "square foot": 0.09290304, "square mile": 2589988.110336,
}  # fmt: skip
_DATA = {
    "bit": 0.125, "byte": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_ALIASES = {
    "millimetre": "mm", "centimetre": "cm", "metre": "m", "kilometre": "km", "in": "inch",
    "inches": "inch", "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile",
    "milligram": "mg", "gram": "g", "kilogram": "kg", "kilo": "kg", "t": "tonne", "ton": "tonne",
    "oz": "ounce", "lb": "pound", "lbs": "pound", "st": "stone",
    "millilitre": "ml", "centilitre": "cl", "litre": "l", "cubic metre": "m3", "tsp": "teaspoon",
    "tbsp": "tablespoon", "gal": "gallon",
    "kmh": "km/h", "kph": "km/h", "kt": "knot", "mi/h": "mph",
    "square centimetre": "cm2", "square metre": "m2", "square kilometre": "km2", "ha": "hectare",
    "sq ft": "square foot", "square feet": "square foot",
    "kilobyte": "kb", "megabyte": "mb", "gigabyte": "gb", "terabyte": "tb",
    "kibibyte": "kib", "mebibyte": "mib", "gibibyte": "gib", "tebibyte": "tib",
    "metre per second": "m/s", "kilometre per hour": "km/h", "mile per hour": "mph",
}  # fmt: skip
_TEMPERATURE = {
    "c": "C", "°c": "C", "celsius": "C", "f": "F", "°f": "F", "fahrenheit": "F",
    "k": "K", "kelvin": "K",
}  # fmt: skip


def convert_length(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a length or distance between metres, kilometres, miles, feet, inches and yards."""
    return _converted(value, from_unit, to_unit, _LENGTH, "length")


def convert_weight(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a weight or mass between kilograms, grams, pounds, ounces, stones and tonnes."""
    return _converted(value, from_unit, to_unit, _WEIGHT, "weight")


def convert_volume(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a volume between litres, millilitres, gallons, pints, cups and spoons."""
    return _converted(value, from_unit, to_unit, _VOLUME, "volume")


def convert_speed(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a speed between km/h, mph, metres per second and knots."""
    return _converted(value, from_unit, to_unit, _SPEED, "speed")


def convert_area(value: float, from_unit: str, to_unit: str) -> str:
    """Convert an area between square metres, hectares, acres, square feet and square miles."""
    return _converted(value, from_unit, to_unit, _AREA, "area")


def convert_data_size(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a data or file size between bytes, kilobytes, megabytes, gigabytes and gibibytes."""
    return _converted(value, from_unit, to_unit, _DATA, "data size")


def convert_temperature(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a temperature between degrees Celsius, Fahrenheit and Kelvin."""
    source, target = (_temperature_unit(unit) for unit in (from_unit, to_unit))
    kelvin = {"C": value + 273.15, "F": (value - 32) / 1.8 + 273.15, "K": value}[source]
    if kelvin < -1e-9:
        raise ValueError(f"{tidy(value)} {source} is below absolute zero (0 K, -273.15 C)")
    result = {"C": kelvin - 273.15, "F": (kelvin - 273.15) * 1.8 + 32, "K": kelvin}[target]
    return f"{tidy(value)} {source} = {tidy(round(result, 6))} {target}"


def _temperature_unit(unit: str) -> str:
    try:
        return _TEMPERATURE[unit.strip().casefold()]
    except KeyError:
        raise unknown("temperature unit", unit, ("Celsius", "Fahrenheit", "Kelvin")) from None


def _converted(
    value: float, from_unit: str, to_unit: str, factors: Mapping[str, float], kind: str
) -> str:
    source, target = (_unit(unit, factors, kind) for unit in (from_unit, to_unit))
    result = tidy(value * factors[source] / factors[target])
    return f"{tidy(value)} {source} = {result} {target}"


def _unit(unit: str, factors: Mapping[str, float], kind: str) -> str:
    """Return the table's own name of a unit: `Kilometers`, `kilometre` and `km` are one."""
    folded = " ".join(unit.casefold().replace("²", "2").replace("³", "3").split())
    british = folded.replace("meter", "metre").replace("liter", "litre")
    singular = british.removesuffix("s")
    kept_plural = british.replace("metres", "metre").replace("miles", "mile")
    for name in (folded, british, singular, kept_plural):
        canonical = _ALIASES.get(name, name)
        if canonical in factors:
            return canonical
    raise unknown(f"{kind} unit", unit, factors)


def unit_tools() -> list[BaseTool]:
    """Return the tools of category `units`."""
    return demo_tools(
        "units",
        (
            convert_length,
            convert_weight,
            convert_volume,
            convert_speed,
            convert_area,
            convert_data_size,
            convert_temperature,
        ),
    )
