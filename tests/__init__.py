"""Tests of scrapy-backpressure."""
