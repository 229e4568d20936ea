"""Where requests are kept while they wait."""
