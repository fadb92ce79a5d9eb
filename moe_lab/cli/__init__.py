"""The command line: main, `--help`, `mode=doctor` and `mode=prefetch`."""
