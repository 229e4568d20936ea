"""Signals that this package sends, besides Scrapy's own.

Connect to them as to any Scrapy signal::

    crawler.signals.connect(self.on_letter, signal=scrapy_backpressure.request_dead_lettered)
"""

from __future__ import annotations

request_parked = object()
"""A request went into the retry queue. Arguments: ``request``, ``due`` (epoch seconds),
``spider``."""

request_dead_lettered = object()
"""A request was given up. Arguments: ``letter`` (:class:`~scrapy_backpressure.DeadLetter`),
``request``, ``reason``, ``spider``."""

gate_closed = object()
"""``start()`` is held back from now on. Arguments: ``reason`` (``queue``, ``retries``, ``memory``;
comma-separated if several), ``spider``."""

gate_opened = object()
"""``start()`` goes on. Arguments: ``reason`` (what had closed the gate), ``closed_for`` (seconds),
``spider``."""
