"""One page about runs: ``reading`` takes a run folder in, ``charts`` draws, ``tables`` and ``page`` write HTML."""
