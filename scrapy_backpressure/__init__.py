"""Backpressure for Scrapy: the producer of requests and the internet at one speed."""

from scrapy_backpressure.addon import Addon
from scrapy_backpressure.concurrency import ConcurrencyMiddleware
from scrapy_backpressure.control.outcome import Outcome, Quota, Verdict
from scrapy_backpressure.deadletter import DeadLetter, DeadLetterExporter
from scrapy_backpressure.durable import DurableScheduler
from scrapy_backpressure.exceptions import GivenUp
from scrapy_backpressure.extension import BackpressureExtension
from scrapy_backpressure.gate import StartGateMiddleware
from scrapy_backpressure.policy import Evidence, OutcomePolicy
from scrapy_backpressure.retry import RetryMiddleware
from scrapy_backpressure.scheduling import SlotAwarePriorityQueue
from scrapy_backpressure.signals import (
    gate_closed,
    gate_opened,
    request_dead_lettered,
    request_parked,
)

__version__ = "0.1.0"

__all__ = [
    "Addon",
    "BackpressureExtension",
    "ConcurrencyMiddleware",
    "DeadLetter",
    "DeadLetterExporter",
    "DurableScheduler",
    "Evidence",
    "GivenUp",
    "Outcome",
    "OutcomePolicy",
    "Quota",
    "RetryMiddleware",
    "SlotAwarePriorityQueue",
    "StartGateMiddleware",
    "Verdict",
    "gate_closed",
    "gate_opened",
    "request_dead_lettered",
    "request_parked",
]
