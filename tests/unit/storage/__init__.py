"""Tests of ``scrapy_backpressure.storage``."""
