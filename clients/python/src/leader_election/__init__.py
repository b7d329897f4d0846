"""Leader election in PostgreSQL: runs a job while this process leads an election.

The names of this module are those for threads; ``leader_election.aio`` has them for asyncio. The
extension ``leader_election`` must be installed in the database.
"""

from ._core import (
    Duration,
    JobNotStopped,
    Leader,
    LeaderElectionError,
    LeadershipLost,
    PoolerError,
    Reason,
    State,
)
from .aio import AsyncElector
from .threads import Connect, Elector, Follower, Term, every, follow, leader

__version__ = "1.0.0"
__all__ = [
    "AsyncElector",
    "Connect",
    "Duration",
    "Elector",
    "Follower",
    "JobNotStopped",
    "Leader",
    "LeaderElectionError",
    "LeadershipLost",
    "PoolerError",
    "Reason",
    "State",
    "Term",
    "every",
    "follow",
    "leader",
]
