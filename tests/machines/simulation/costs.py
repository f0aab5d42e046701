"""What statements cost a PostgreSQL: seconds of processor time of its backends, as measured.

PostgreSQL 15.18, `fsync` on, 1 GB of shared buffers, Linux, two processors of a virtual machine (AMD EPYC)
that others used too; psycopg 3, prepared statements, mostly 8 connections at once; 1,000 servers, 1,000,000
conversations, 50,000 of them with live work. docs/scale.md has the table.
"""

from __future__ import annotations

from typing import Final

RENEWAL: Final = 0.0001
SCAN_OF_A_SERVER: Final = 0.000_000_11
"""A scan sums up all rows of `servers`: 0.11 ms for 1,000."""
DEATH: Final = 0.0001
COUNT: Final = 0.0001
COUNT_OF_A_CONVERSATION: Final = 0.000_001
"""Each scan counts what waits: 0.1 ms if that is nothing, 1.3 to 2.5 ms for 2,500 conversations."""
CLAIM: Final = 0.0007
EMPTY_CLAIM: Final = 0.0003
QUESTION: Final = 0.000_03
"""Which server has a conversation?"""
TAKING: Final = 0.000_25
"""A claim of one conversation that a client asks for."""
RELEASE: Final = 0.000_012
"""For each conversation that a drained server gives back."""
HINT: Final = 0.000_006
HINT_HEARD: Final = 0.000_0275
"""A NOTIFY, for each listener: of its sender, and of the backends that pass it on."""
CONNECTION: Final = 0.0026
COMMIT: Final = 0.000_27
COMMITTED_ROW: Final = 0.000_0115
"""A fenced group commit, and each event in it: 0.28 ms with one, 0.41 with 10, 1.2 to 1.5 with 100."""

FLUSH: Final = 0.004
"""Seconds of one flush of the write-ahead log: the median here. One flush serves all commits that wait."""
ROUND_TRIP: Final = 0.0005
"""Seconds between a server and the database. Not measured: that of a network within a site."""
HINT_DELAY: Final = 0.000_045
"""Seconds for each listener until a hint has arrived: 38 to 49 ms with 1,000."""
