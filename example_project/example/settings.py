"""Settings of the example: those of a new Scrapy project, plus one line."""

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]
NEWSPIDER_MODULE = "example.spiders"

ROBOTSTXT_OBEY = True
LOG_LEVEL = "INFO"
TELNETCONSOLE_ENABLED = False
FEED_EXPORT_ENCODING = "utf-8"

ADDONS = {"scrapy_backpressure.Addon": 300}
