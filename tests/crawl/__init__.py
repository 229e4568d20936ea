"""Real crawls, each in a process of its own, against the flaky site."""
