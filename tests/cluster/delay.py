"""Carry frames between two interfaces, each of them late: a long wire, also where the kernel has no netem.

python delay.py INTERFACE INTERFACE SECONDS
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

ALL_PROTOCOLS = 3
LARGEST_FRAME = 65536


def open_port(interface: str) -> socket.socket:
    """Return a socket that takes every frame of an interface."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    port.bind((interface, 0))
    return port


def carry(ports: list[socket.socket], delay_s: float) -> None:
    """Carry frames both ways without end."""
    other = dict(zip(ports, reversed(ports), strict=True))
    late: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        for port in select.select(ports, [], [], wait)[0]:
            frame, address = port.recvfrom(LARGEST_FRAME)
            # The kernel shows a socket what others send on its interface too.
            if address[2] != socket.PACKET_OUTGOING:
                late.append((time.monotonic() + delay_s, other[port], frame))
        while late and late[0][0] <= time.monotonic():
            _, port, frame = late.popleft()
            port.send(frame)


if __name__ == "__main__":
    carry([open_port(name) for name in sys.argv[1:3]], float(sys.argv[3]))
