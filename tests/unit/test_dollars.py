"""What calls to a model cost: never more than their bound, and never less than what was asked for."""

from __future__ import annotations

import random

import pytest
from book import Book
from lab import ROOT

from attuner.config import load_campaign
from attuner.core.errors import BudgetExceeded, UserError
from attuner.core.message import Message, ModelPrice, Reply, Usage
from attuner.policy import dollars
from attuner.yamlfile import read_yaml

PRICES = {name: ModelPrice.model_validate(p) for name, p in read_yaml(ROOT / "configs/prices/anthropic.yaml").items()}


def message(number: int, bound: float) -> Message:
    given = {"hypothesis": "h01", "thread": "main", "model": "m", "sent": [], "input_tokens": 1, "max_tokens": 1}
    return Message.model_validate({**given, "number": number, "bound_usd": bound})


@pytest.mark.parametrize("name", PRICES)
def test_no_split_of_a_prompt_costs_more_than_its_bound(name: str) -> None:
    price, chance = PRICES[name], random.Random(7)
    for _ in range(500):
        prompt, most = chance.choice([10, 1_000, 99_999, 100_000, 100_001, 900_000]), 16_000
        written = chance.randint(0, prompt)
        read = chance.randint(0, prompt - written)
        parts = {"cache_write_tokens": written, "cache_read_tokens": read, "input_tokens": prompt - written - read}
        usage = Usage(**parts, output_tokens=chance.randint(0, most))
        assert dollars.cost_usd(usage, price) <= dollars.bound_usd(prompt, most, price) * (1 + 1e-12)


def test_a_price_in_figures() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=100_000, cache_write_tokens=200_000, cache_read_tokens=2_000_000)
    assert dollars.cost_usd(usage, PRICES["claude-opus-5-5"]) == pytest.approx(4 + 2 + 1 + 0.4)
    short = Usage(input_tokens=100_000, output_tokens=1_000)
    long = Usage(input_tokens=100_001, output_tokens=1_000)
    haiku = PRICES["claude-haiku-5-5"]
    assert dollars.cost_usd(short, haiku) == pytest.approx(0.0105)
    assert dollars.cost_usd(long, haiku) == pytest.approx(5 * 0.0105, rel=1e-4)


def test_a_call_without_a_reply_counts_as_its_bound() -> None:
    book = Book()
    for number, bound in ((1, 0.5), (2, 0.25), (3, 0.125)):
        book.put("message", f"m{number:04d}", message(number, bound))
    book.put("reply", "m0001", Reply(status="answered", usd=0.01))
    book.put("reply", "m0003", Reply(status="failed"))
    assert dollars.spent_usd(book.history) == pytest.approx(0.01 + 0.25)
    dollars.require(book.history, 0.74, 1.0)
    with pytest.raises(BudgetExceeded, match=r"dollar limit: 0\.2600 of 1 US dollars are spent, the next call may cost 0\.7401"):
        dollars.require(book.history, 0.7401, 1.0)


def test_every_price_says_where_it_is_from_and_when() -> None:
    assert PRICES
    assert [n for n, p in PRICES.items() if not p.source or not p.read] == []
    assert [n for n, p in PRICES.items() if not p.cache_read_usd < p.input_usd < p.cache_write_usd < p.output_usd] == []


def test_a_campaign_keeps_the_price_of_its_birth() -> None:
    found = load_campaign(ROOT / "configs/campaigns/quickstart-claude.yaml", configs=ROOT / "configs")
    assert found.proposer.price == PRICES[found.proposer.model]


def test_an_unknown_model_is_refused_with_one_line_unless_its_price_is_given(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("campaigns")
    text = (ROOT / "configs/campaigns/quickstart-claude.yaml").read_text().replace("claude-opus-5-5", "mine-1")
    (folder / "x.yaml").write_text(text)
    with pytest.raises(
        UserError, match=r"proposer.model: mine-1: its price is not known; add it to .*prices, or write proposer.price"
    ):
        load_campaign(folder / "x.yaml", configs=ROOT / "configs")
    own = "price: {input_usd: 1, output_usd: 2, cache_write_usd: 1, cache_read_usd: 0}, model: mine-1"
    (folder / "x.yaml").write_text(text.replace("model: mine-1", own))
    found = load_campaign(folder / "x.yaml", configs=ROOT / "configs").proposer.price
    assert found is not None
    assert found.output_usd == 2
