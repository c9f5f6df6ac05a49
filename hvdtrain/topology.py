"""Who this process is among the others: Horovod's six numbers as one value that is passed, never read globally."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Place of one process in the job.

    Attributes:
        rank: This process, ``0 <= rank < size``.
        size: Processes of the whole job.
        local_rank: This process among those of its host, ``0 <= local_rank < local_size``.
        local_size: Processes on this host.
        cross_rank: This host among those that have a process of the same ``local_rank``.
        cross_size: Hosts that have a process of the same ``local_rank``.

    Raises:
        ValueError: A rank lies outside its size.

    Example:
        >>> Topology(rank=1, size=2, local_rank=1, local_size=2, cross_rank=0, cross_size=1).is_root
        False
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers that cannot describe a process."""
        for prefix in ("", "local_", "cross_"):
            rank, size = getattr(self, f"{prefix}rank"), getattr(self, f"{prefix}size")
            if not 0 <= rank < size:
                raise ValueError(f"Topology: {prefix}rank must lie in [0, {size}), got {rank}.")

    @property
    def is_root(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def __str__(self) -> str:
        """Return the tag that ends a message of one rank, such as ``[rank 1 of 2]``."""
        return f"[rank {self.rank} of {self.size}]"
