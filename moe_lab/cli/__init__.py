"""The command line: main, `--help`, launchers and `mode=prefetch`."""
