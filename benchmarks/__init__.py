"""Benchmarks of scrapy-backpressure: in virtual time, and real crawls beside stock Scrapy."""
