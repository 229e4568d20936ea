"""Decisions: pure code, driven by the caller's clock and random numbers.

Nothing in this package imports Scrapy or Twisted, reads a clock or draws a random
number of its own, so that a simulator can drive it through an hour in a second.
"""
