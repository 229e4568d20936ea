"""Fast tests that start no process and open no socket, save those of the flaky site itself."""
