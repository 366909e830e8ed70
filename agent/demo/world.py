"""Tools about weather and places; weather and facts are sample data."""

from __future__ import annotations

import math
from typing import Annotated

from langchain_core.tools import BaseTool

from agent.demo.common import SAMPLE, demo_tools, unknown
from agent.demo.sample_data import CITIES, COUNTRIES, City, Country, find_city

__all__ = ["geography_tools", "weather_tools"]

CityName = Annotated[str, "City name such as Tokyo"]
CountryName = Annotated[str, "Country name such as Japan"]

_EARTH_RADIUS_KM = 6371.0


def get_weather(city: CityName) -> dict[str, str | int]:
    """Get the current weather in a city: temperature in degrees Celsius and the sky."""
    found = _city(city)
    return {
        "city": found.name,
        "temperature_c": found.weather.temperature_c,
        "sky": found.weather.sky,
        "source": SAMPLE,
    }


def weather_forecast(city: CityName) -> dict[str, str | int]:
    """Forecast how warm it will get in a city tomorrow and the day after tomorrow."""
    found = _city(city)
    tomorrow, after = found.weather.next_highs_c
    return {
        "city": found.name,
        "high_tomorrow_c": tomorrow,
        "high_day_after_c": after,
        "source": SAMPLE,
    }


def air_quality(city: CityName) -> dict[str, str | int]:
    """Report the air quality index of a city: how polluted the air is, large is bad."""
    found = _city(city)
    index = found.weather.air_quality_index
    level = "good" if index <= 50 else "moderate" if index <= 100 else "unhealthy"
    return {"city": found.name, "air_quality_index": index, "level": level, "source": SAMPLE}


def sunrise_and_sunset(city: CityName) -> dict[str, str]:
    """Tell when the sun rises and sets in a city, in local time."""
    found = _city(city)
    sunrise, sunset = found.sun
    return {"city": found.name, "sunrise": sunrise, "sunset": sunset, "source": SAMPLE}


def distance_between_cities(from_city: CityName, to_city: CityName) -> dict[str, str | int]:
    """Compute how far two cities are apart in a straight line, in kilometres."""
    start, end = _city(from_city), _city(to_city)
    lat_1, lat_2 = math.radians(start.latitude), math.radians(end.latitude)
    d_lon = math.radians(end.longitude - start.longitude)
    haversine = (
        math.sin((lat_2 - lat_1) / 2) ** 2
        + math.cos(lat_1) * math.cos(lat_2) * math.sin(d_lon / 2) ** 2
    )
    distance_km = round(2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(haversine)))
    return {"from": start.name, "to": end.name, "distance_km": distance_km, "source": SAMPLE}


def city_coordinates(city: CityName) -> dict[str, str | float]:
    """Give the geographic position of a city: latitude and longitude in degrees."""
    found = _city(city)
    return {
        "city": found.name,
        "latitude": found.latitude,
        "longitude": found.longitude,
        "source": SAMPLE,
    }


def capital_city(country: CountryName) -> str:
    """Name the capital of a country."""
    found = _country(country)
    return f"The capital of {found.name} is {found.capital}. ({SAMPLE})"


def country_population(country: CountryName) -> dict[str, str | float]:
    """Tell how many people live in a country, in millions of inhabitants."""
    found = _country(country)
    return {
        "country": found.name,
        "population_millions": found.population_millions,
        "source": SAMPLE,
    }


def country_facts(country: CountryName) -> dict[str, str]:
    """Tell which languages are spoken in a country, its currency and its telephone code."""
    found = _country(country)
    return {
        "country": found.name,
        "languages": ", ".join(found.languages),
        "currency": found.currency,
        "calling_code": found.calling_code,
        "source": SAMPLE,
    }


def _city(text: str) -> City:
    found = find_city(text)
    if found is None:
        raise unknown("city", text, CITIES)
    return found


def _country(text: str) -> Country:
    folded = text.strip().casefold()
    for name, country in COUNTRIES.items():
        if name.casefold() == folded:
            return country
    raise unknown("country", text, COUNTRIES)


def weather_tools() -> list[BaseTool]:
    """Return the tools of category `weather`."""
    return demo_tools("weather", (get_weather, weather_forecast, air_quality, sunrise_and_sunset))


def geography_tools() -> list[BaseTool]:
    """Return the tools of category `geography`."""
    return demo_tools(
        "geography",
        (
            distance_between_cities,
            city_coordinates,
            capital_city,
            country_population,
            country_facts,
        ),
    )
