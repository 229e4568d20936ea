"""Tests of ``scrapy_backpressure.control``."""
