"""The audit's arithmetic, and how it reads."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scrapy_backpressure.ledger import Ledger

counts = st.dictionaries(st.text(), st.integers(0, 1000)).map(Counter)


def test_empty_ledger_misses_nothing() -> None:
    assert Ledger().missing == 0


@given(
    handled=st.integers(0, 1000),
    persisted=st.integers(0, 1000),
    resumed=st.integers(0, 1000),
    lost=st.integers(-3, 3),
    dead=counts,
    given_up=counts,
    dropped=counts,
)
def test_missing_is_what_entered_and_did_not_end(
    handled: int,
    persisted: int,
    resumed: int,
    lost: int,
    dead: Counter[str],
    given_up: Counter[str],
    dropped: Counter[str],
) -> None:
    ledger = Ledger(
        resumed=resumed,
        handled=handled,
        dead=dead,
        given_up=given_up,
        dropped=dropped,
        persisted=persisted,
    )
    ledger.accepted = ledger.ended - resumed + lost
    assert ledger.missing == lost


def test_two_ledgers_share_no_counts() -> None:
    Ledger().dead["retries"] += 1
    assert Ledger().missing == 0


def test_text_balances_and_leaves_out_what_did_not_happen() -> None:
    assert str(Ledger(accepted=3, handled=3)) == (
        "3 accepted = 3 handled + 0 dead-lettered + 0 persisted + 0 dropped by filters"
    )


def test_text_tells_of_resumed_and_silently_given_up_requests() -> None:
    ledger = Ledger(accepted=3, resumed=2, handled=4, given_up=Counter(download_error=1))
    assert str(ledger) == (
        "3 accepted + 2 resumed = 4 handled + 0 dead-lettered + 0 persisted + "
        "0 dropped by filters + 1 given up without a letter"
    )
