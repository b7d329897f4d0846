"""Leader election in PostgreSQL: runs a job while this process leads an election.

The names of this module are those for threads; ``leader_election.aio`` has them for asyncio. The
extension ``leader_election`` must be installed in the database.
"""

from ._errors import Kind, LeaderElectionError, LostError, PermanentError
from ._every import Schedule, Task, every
from ._follow import Leader
from ._options import Connect, Health, Length, Reason, State
from ._term import AsyncTerm, Term
from ._threads import Elector, Follower, follow, leader
from .aio import AsyncElector

__version__ = "1.0.0"
__all__ = ["AsyncElector", "AsyncTerm", "Elector", "Follower", "Leader", "Term"]
__all__ += ["Connect", "Health", "Kind", "Length", "Reason", "Schedule", "State", "Task"]
__all__ += ["LeaderElectionError", "LostError", "PermanentError", "every", "follow", "leader"]
