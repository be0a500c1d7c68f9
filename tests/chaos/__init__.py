"""Three real nodes under kill -9, SIGSTOP and network cuts while clients write and read: `python -m tests.chaos`."""
