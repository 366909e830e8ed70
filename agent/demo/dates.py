"""Tools for dates, times and time zones. Dates are ISO (YYYY-MM-DD), zones IANA names."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from langchain_core.tools import BaseTool

from agent.demo.common import demo_tools
from agent.demo.sample_data import CITIES, find_city

__all__ = ["date_tools"]

IsoDate = Annotated[str, "Date as YYYY-MM-DD"]
Zone = Annotated[str, "IANA time zone such as Europe/Berlin, or a city such as Tokyo"]

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def days_between(start_date: IsoDate, end_date: IsoDate) -> int:
    """Count how many days lie between two calendar dates; negative when the end is earlier."""
    return (_date(end_date) - _date(start_date)).days


def add_days(start_date: IsoDate, days: int) -> str:
    """Return the date that lies so many days after a date, or before it for negative days."""
    try:
        return (_date(start_date) + timedelta(days=days)).isoformat()
    except OverflowError:
        raise ValueError(f"{days} days from {start_date} is outside the years 1 to 9999") from None


def day_of_week(calendar_date: IsoDate) -> str:
    """Name the weekday (Monday to Sunday) on which a date falls."""
    return _WEEKDAYS[_date(calendar_date).weekday()]


def week_number(calendar_date: IsoDate) -> str:
    """Give the ISO calendar week of a date, such as 2026-W42."""
    year, week, _ = _date(calendar_date).isocalendar()
    return f"{year}-W{week:02d}"


def is_leap_year(year: int) -> str:
    """Tell whether a year is a leap year, one with a 29 February."""
    if not 1 <= year <= 9999:
        raise ValueError(f"the year is {year}; it must be from 1 to 9999")
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return f"{year} is a leap year" if leap else f"{year} is not a leap year"


def age_on_date(birth_date: IsoDate, calendar_date: IsoDate) -> int:
    """Work out how old in full years a person born on a date is on another date."""
    born, on = _date(birth_date), _date(calendar_date)
    if on < born:
        raise ValueError(f"calendar_date {on} is before birth_date {born}; swap them")
    return on.year - born.year - ((on.month, on.day) < (born.month, born.day))


def count_working_days(start_date: IsoDate, end_date: IsoDate) -> int:
    """Count the working days, Monday to Friday, from one date to another, both included."""
    start, end = _date(start_date), _date(end_date)
    if end < start:
        raise ValueError(f"end_date {end} is before start_date {start}; swap them")
    weeks, rest = divmod((end - start).days + 1, 7)
    return weeks * 5 + sum((start.weekday() + day) % 7 < 5 for day in range(rest))


def current_time(time_zone: Zone) -> str:
    """Tell what time and date it is right now in a city or time zone."""
    name = _zone(time_zone)
    return f"{datetime.now(UTC).astimezone(ZoneInfo(name)):%Y-%m-%d %H:%M} ({name})"


def convert_time_zone(
    local_time: Annotated[str, "Date and time as YYYY-MM-DD HH:MM"], from_zone: Zone, to_zone: Zone
) -> str:
    """Convert a clock time from one city or time zone to another, with summer time."""
    source, target = _zone(from_zone), _zone(to_zone)
    try:
        moment = datetime.fromisoformat(local_time.strip())
    except ValueError:
        raise ValueError(
            f"{local_time!r} is not a time; write YYYY-MM-DD HH:MM, such as 2026-10-13 14:30"
        ) from None
    if moment.tzinfo is not None:
        raise ValueError(f"{local_time!r} has an offset; leave it out, from_zone says it")
    moved = moment.replace(tzinfo=ZoneInfo(source)).astimezone(ZoneInfo(target))
    return f"{moved:%Y-%m-%d %H:%M} ({target})"


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a date; write YYYY-MM-DD, such as 2026-10-13") from None


def _zone(text: str) -> str:
    city = find_city(text)
    name = city.time_zone if city else text.strip()
    try:
        return ZoneInfo(name).key
    # ValueError: an absolute or climbing path; OSError: a folder of the zone files, "Europe".
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"unknown time zone {text!r}; use an IANA name such as Europe/Berlin or a city: "
            f"{', '.join(sorted(CITIES))}"
        ) from None


def date_tools() -> list[BaseTool]:
    """Return the tools of category `dates`."""
    return demo_tools(
        "dates",
        (
            days_between,
            add_days,
            day_of_week,
            week_number,
            is_leap_year,
            age_on_date,
            count_working_days,
            current_time,
            convert_time_zone,
        ),
    )
