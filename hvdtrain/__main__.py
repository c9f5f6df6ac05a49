"""``python -m hvdtrain`` is the same program as ``hvdtrain``."""

from hvdtrain.cli.start import start

if __name__ == "__main__":
    start()
