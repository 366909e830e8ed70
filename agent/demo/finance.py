"""Tools for money: prices and rates are sample data, interest is really computed."""

from __future__ import annotations

from typing import Annotated

from langchain_core.tools import BaseTool

from agent.demo.common import SAMPLE, demo_tools, tidy, unknown
from agent.demo.sample_data import STOCKS, USD_RATES, Stock

__all__ = ["finance_tools"]

Symbol = Annotated[str, "Ticker symbol such as AAPL"]
Currency = Annotated[str, "Currency code such as EUR"]


def get_stock_price(symbol: Symbol) -> dict[str, str | float]:
    """Get the current share price of a listed company by its ticker symbol on the stock market."""
    stock = _stock(symbol)
    return {
        "symbol": stock.symbol,
        "company": stock.company,
        "price_usd": stock.closes_usd[-1],
        "source": SAMPLE,
    }


def stock_price_history(symbol: Symbol) -> dict[str, str | list[float]]:
    """Show how a share developed: its closing prices over the last five trading days."""
    stock = _stock(symbol)
    return {"symbol": stock.symbol, "closes_usd": list(stock.closes_usd), "source": SAMPLE}


def find_ticker_symbol(company: Annotated[str, "Company name such as Apple"]) -> str:
    """Find the ticker symbol and the business sector that belong to a company name."""
    folded = company.strip().casefold()
    for stock in STOCKS.values():
        if stock.company.casefold() == folded:
            return f"{stock.company}: {stock.symbol}, {stock.sector} ({SAMPLE})"
    raise unknown("company", company, (stock.company for stock in STOCKS.values()))


def convert_currency(amount: float, from_currency: Currency, to_currency: Currency) -> str:
    """Convert an amount of money into another currency, such as dollars into euros or yen."""
    source, target = _currency(from_currency), _currency(to_currency)
    result = tidy(round(amount / USD_RATES[source] * USD_RATES[target], 2))
    return f"{tidy(amount)} {source} = {result} {target} ({SAMPLE})"


def compound_interest(principal: float, annual_rate_percent: float, years: float) -> int | float:
    """Compute what savings grow to with yearly compound interest."""
    if years < 0 or annual_rate_percent <= -100:
        raise ValueError("years must not be negative and the rate must be above -100 percent")
    try:
        return tidy(round(principal * (1 + annual_rate_percent / 100) ** years, 2))
    except OverflowError:
        raise ValueError("the result is too large; use fewer years or a smaller rate") from None


def loan_payment(principal: float, annual_rate_percent: float, months: int) -> int | float:
    """Compute the monthly instalment of a loan or mortgage with equal payments."""
    if not 1 <= months <= 1200 or annual_rate_percent < 0:
        raise ValueError("months must be from 1 to 1200 and the rate must not be negative")
    rate = annual_rate_percent / 1200
    if rate == 0:
        return tidy(round(principal / months, 2))
    return tidy(round(principal * rate / (1 - (1 + rate) ** -months), 2))


def _stock(symbol: str) -> Stock:
    stock = STOCKS.get(symbol.strip().upper())
    if stock is None:
        raise unknown("ticker symbol", symbol, STOCKS)
    return stock


def _currency(code: str) -> str:
    folded = code.strip().upper()
    if folded not in USD_RATES:
        raise unknown("currency", code, USD_RATES)
    return folded


def finance_tools() -> list[BaseTool]:
    """Return the tools of category `finance`."""
    return demo_tools(
        "finance",
        (
            get_stock_price,
            stock_price_history,
            find_ticker_symbol,
            convert_currency,
            compound_interest,
            loan_payment,
        ),
    )
