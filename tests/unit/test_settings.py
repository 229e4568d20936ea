"""Settings are read once, strictly, and an error says what is accepted."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings

from scrapy_backpressure.policy import OutcomePolicy
from scrapy_backpressure.settings import (
    DEAD_LETTER_CATEGORIES,
    PREFIX,
    BackpressureSettings,
)

NAMES = [PREFIX + field.name.upper() for field in fields(BackpressureSettings)]


def read(**values: Any) -> BackpressureSettings:
    return BackpressureSettings.from_settings(
        Settings({PREFIX + name: value for name, value in values.items()})
    )


def test_without_any_setting_the_defaults_hold() -> None:
    assert BackpressureSettings.from_settings(Settings()) == BackpressureSettings()


def test_defaults_are_what_their_own_parsers_accept() -> None:
    config = BackpressureSettings()
    for field in fields(config):
        value = getattr(config, field.name)
        assert field.metadata["parse"](value) == value


def test_each_setting_says_what_it_means() -> None:
    assert all(field.metadata["meaning"].endswith(".") for field in fields(BackpressureSettings))


def test_settings_cannot_be_changed_later() -> None:
    with pytest.raises(FrozenInstanceError):
        BackpressureSettings().queue_high = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "given_value", "parsed"),
    [
        ("ENABLED", "False", False),
        ("ENABLED", 1, True),
        ("ENABLED", "0", False),
        ("QUEUE_HIGH", "500", 500),
        ("QUEUE_HIGH", 500.0, 500),
        ("QUEUE_HIGH", None, None),
        ("QUEUE_HIGH", "None", None),
        ("QUEUE_HIGH", "", None),
        ("QUEUE_SECONDS", "1.5", 1.5),
        ("ERROR_RATE", 1, 1.0),
        ("SLOT_STATS", 0, 0),
        ("DEAD_LETTER_FEEDS", "{}", {}),
        ("DEAD_LETTER_FEEDS", "", {}),
        ("DEAD_LETTER_FEEDS", None, {}),
        ("DEAD_LETTER_FEEDS", '{"a.jsonl": {"format": "jl"}}', {"a.jsonl": {"format": "jl"}}),
        ("DEAD_LETTER_ON", "retries, blocked", ("retries", "blocked")),
        ("DEAD_LETTER_ON", [], ()),
        ("DEAD_LETTER_ON", "", ()),
        ("OUTCOME_POLICY", OutcomePolicy, OutcomePolicy),
        ("OUTCOME_POLICY", "project.policy.Mine", "project.policy.Mine"),
    ],
)
def test_values_may_come_as_python_or_from_the_command_line(
    name: str, given_value: Any, parsed: Any
) -> None:
    assert getattr(read(**{name: given_value}), name.lower()) == parsed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENABLED", "maybe"),
        ("ENABLED", 2),
        ("ENABLED", None),
        ("QUEUE_HIGH", 1),
        ("QUEUE_HIGH", -5),
        ("QUEUE_HIGH", 10.5),
        ("QUEUE_HIGH", "ten"),
        ("QUEUE_HIGH", True),
        ("QUEUE_HIGH", [100]),
        ("QUEUE_SECONDS", 0),
        ("QUEUE_SECONDS", float("nan")),
        ("QUEUE_SECONDS", float("inf")),
        ("QUEUE_SECONDS", None),
        ("ERROR_RATE", 0),
        ("ERROR_RATE", 1.5),
        ("ERROR_RATE", "50 %"),
        ("INTERVAL", -1),
        ("START_CONCURRENCY", 0),
        ("MIN_CONCURRENCY", 0.5),
        ("THROTTLE_TIMES", 0),
        ("RETRY_BUDGET", 2),
        ("DEAD_LETTER_FEEDS", "letters.jsonl"),
        ("DEAD_LETTER_FEEDS", {"letters.jsonl": "jsonlines"}),
        ("DEAD_LETTER_FEEDS", 7),
        ("DEAD_LETTER_FEEDS", "[1, 2]"),
        ("DEAD_LETTER_ON", "retires"),
        ("DEAD_LETTER_ON", ["retries", 5]),
        ("DEAD_LETTER_ON", None),
        ("OUTCOME_POLICY", "OutcomePolicy"),
        ("OUTCOME_POLICY", 3),
        ("GATE_CALLBACKS", "on"),
    ],
)
def test_wrong_value_is_refused_with_the_name_what_is_accepted_and_what_came(
    name: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=rf"^{PREFIX}{name} accepts ") as error:
        read(**{name: value})
    assert str(error.value).endswith(f"; got {value!r}")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"QUEUE_HIGH": 10, "QUEUE_LOW": 10}, "QUEUE_LOW accepts an integer below"),
        ({"QUEUE_HIGH": 10, "QUEUE_LOW": 11}, "QUEUE_LOW accepts an integer below"),
        ({"QUEUE_LOW": 10}, "QUEUE_LOW accepts a value only together with"),
        ({"BACKOFF_BASE": 10, "BACKOFF_MAX": 5}, "BACKOFF_BASE accepts at most"),
        ({"START_CONCURRENCY": 2, "MIN_CONCURRENCY": 3}, "MIN_CONCURRENCY accepts at most"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(**values)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("QUEUE_HIHG", "QUEUE_HIGH"),
        ("DEADLETTER_FEEDS", "DEAD_LETTER_FEEDS"),
        ("MAXPAUSE", "MAX_PAUSE"),
    ],
)
def test_unknown_name_is_told_with_the_nearest_known_one(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"{name}; did you mean {PREFIX}{nearest}") as error:
        read(**{name: 1})
    assert PREFIX + name in str(error.value)


def test_unknown_name_near_to_nothing_is_told_with_all_known_ones() -> None:
    with pytest.raises(ValueError, match="known ones: BACKPRESSURE_ENABLED, "):
        BackpressureSettings.from_settings(Settings({"BACKPRESSURE_ZZZ": 1}))


def test_settings_of_others_are_not_looked_at() -> None:
    settings = Settings({"MY_BACKPRESSURE_QUEUE_HIGH": "x", "backpressure_queue_high": "x"})
    assert BackpressureSettings.from_settings(settings) == BackpressureSettings()


def test_default_feeds_of_two_crawls_are_not_shared() -> None:
    BackpressureSettings().dead_letter_feeds.clear()
    assert BackpressureSettings().dead_letter_feeds


@given(st.sets(st.sampled_from(DEAD_LETTER_CATEGORIES)))
def test_any_choice_of_categories_is_accepted(chosen: set[str]) -> None:
    assert set(read(DEAD_LETTER_ON=chosen).dead_letter_on) == chosen
    assert set(read(DEAD_LETTER_ON=",".join(chosen)).dead_letter_on) == chosen


@given(
    st.sampled_from(NAMES),
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())
    ),
)
def test_no_value_of_any_setting_fails_otherwise_than_by_name(name: str, value: Any) -> None:
    error = ""
    try:
        BackpressureSettings.from_settings(Settings({name: value}))
    except ValueError as refused:
        error = str(refused)
    assert not error or name in error


@pytest.mark.parametrize("name", ["INTERVAL", "QUEUE_HIGH"])
def test_number_too_large_for_a_float_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"BACKPRESSURE_{name} accepts"):
        read(**{name: 10**400})
