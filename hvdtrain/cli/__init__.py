"""The ``hvdtrain`` program: one file per command; each imports its implementation when it runs."""
