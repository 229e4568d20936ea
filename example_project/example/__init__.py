"""A Scrapy project as anyone might have it, plus one line in its settings."""
