"""The command line: main, `--help` and `mode=prefetch`."""
