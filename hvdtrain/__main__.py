"""``python -m hvdtrain`` is the same program as ``hvdtrain``."""

from hvdtrain.cli.main import run

if __name__ == "__main__":
    run()
