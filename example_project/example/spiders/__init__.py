"""Three ways in which crawls find their requests: a list, a sitemap, links."""
