"""Crawls in virtual time: model sites, limiters to compare, figures and what they must reach."""
